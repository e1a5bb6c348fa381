// SPDX-License-Identifier: Apache-2.0
// Ops that work row by row: shapes, then row_kernels.h.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_kernels.h"
#include "runtime/tensor/cuda_device.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cuda {
namespace {

// A residual stream may be f32 or bf16: its dtype, or the one it should have.
DType StreamDType(ConstView stream) {
  return stream.dtype() == DType::kF32 ? DType::kF32 : DType::kBF16;
}
StreamType StreamTypeOf(ConstView stream) {
  return stream.dtype() == DType::kF32 ? StreamType::kF32 : StreamType::kBf16;
}

Status MatchActivation(ShapeMatch& match, ConstView x, View out) {
  match.IsType("x", x, DType::kBF16).IsType("out", out, DType::kBF16);
  return match.status();
}

Status MatchUnary(std::string_view op, ConstView x, View out) {
  ShapeMatch match(op);
  match.Match("x", x, {"rows", "ffn"}).Match("out", out, {"rows", "ffn"});
  return MatchActivation(match, x, out);
}

Status MatchGated(std::string_view op, ConstView gate_up, View out) {
  ShapeMatch match(op);
  match.Match("gate_up", gate_up, {"rows", "both"})
      .Match("out", out, {"rows", "ffn"});
  BATON_RETURN_IF_ERROR(MatchActivation(match, gate_up, out));
  match.Require(match["both"] == 2 * match["ffn"], "gate_up has 2 x ffn");
  return match.status();
}

ActivationArgs RowsOf(ConstView x, View out) {
  return {.x = x.data(),
          .x_stride = x.row_stride(),
          .out = out.data(),
          .out_stride = out.row_stride(),
          .rows = out.dim(0),
          .ffn = out.dim(1)};
}

}  // namespace

Status RmsNormCuda(const RmsNorm::Args& args, Stream& stream) {
  ShapeMatch match("rms_norm");
  match.Match("x", args.x, {"rows", "hidden"})
      .Match("weight", args.weight, {"hidden"})
      .Match("out", args.out, {"rows", "hidden"})
      .IsType("x", args.x, StreamDType(args.x))
      .IsType("weight", args.weight, DType::kBF16)
      .IsType("out", args.out, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  return CudaStatus(RmsNormRows({.x = args.x.data(),
                                 .x_stride = args.x.row_stride(),
                                 .weight = args.weight.data(),
                                 .out = args.out.data(),
                                 .out_stride = args.out.row_stride(),
                                 .rows = match["rows"],
                                 .hidden = match["hidden"],
                                 .eps = args.eps,
                                 .x_type = StreamTypeOf(args.x)},
                                CudaStreamOf(stream)),
                    "rms_norm");
}

Status AddRmsNormCuda(const AddRmsNorm::Args& args, Stream& stream) {
  ShapeMatch match("add_rms_norm");
  match.Match("stream", args.stream, {"rows", "hidden"})
      .Match("update", args.update, {"rows", "hidden"})
      .Match("weight", args.weight, {"hidden"})
      .Match("out", args.out, {"rows", "hidden"})
      .IsType("stream", args.stream, StreamDType(args.stream))
      .IsType("update", args.update, DType::kBF16)
      .IsType("weight", args.weight, DType::kBF16)
      .IsType("out", args.out, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  return CudaStatus(AddRmsNormRows({.residual = args.stream.data(),
                                    .residual_stride = args.stream.row_stride(),
                                    .update = args.update.data(),
                                    .update_stride = args.update.row_stride(),
                                    .weight = args.weight.data(),
                                    .out = args.out.data(),
                                    .out_stride = args.out.row_stride(),
                                    .rows = match["rows"],
                                    .hidden = match["hidden"],
                                    .eps = args.eps,
                                    .residual_type = StreamTypeOf(args.stream)},
                                   CudaStreamOf(stream)),
                    "add_rms_norm");
}

Status RmsNormAddCuda(const RmsNormAdd::Args& args, Stream& stream) {
  ShapeMatch match("rms_norm_add");
  match.Match("update", args.update, {"rows", "hidden"})
      .Match("weight", args.weight, {"hidden"})
      .Match("stream", args.stream, {"rows", "hidden"})
      .IsType("update", args.update, DType::kBF16)
      .IsType("weight", args.weight, DType::kBF16)
      .IsType("stream", args.stream, StreamDType(args.stream));
  BATON_RETURN_IF_ERROR(match.status());
  return CudaStatus(RmsNormAddRows({.update = args.update.data(),
                                    .update_stride = args.update.row_stride(),
                                    .weight = args.weight.data(),
                                    .residual = args.stream.data(),
                                    .residual_stride = args.stream.row_stride(),
                                    .rows = match["rows"],
                                    .hidden = match["hidden"],
                                    .eps = args.eps,
                                    .residual_type = StreamTypeOf(args.stream)},
                                   CudaStreamOf(stream)),
                    "rms_norm_add");
}

Status AddCuda(const Add::Args& args, Stream& stream) {
  ShapeMatch match("add");
  match.Match("stream", args.stream, {"rows", "hidden"})
      .Match("update", args.update, {"rows", "hidden"})
      .IsType("stream", args.stream, StreamDType(args.stream))
      .IsType("update", args.update, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  return CudaStatus(AddRows({.residual = args.stream.data(),
                             .residual_stride = args.stream.row_stride(),
                             .update = args.update.data(),
                             .update_stride = args.update.row_stride(),
                             .rows = match["rows"],
                             .hidden = match["hidden"],
                             .residual_type = StreamTypeOf(args.stream)},
                            CudaStreamOf(stream)),
                    "add");
}

Status SiluMulCuda(const SiluMul::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR(MatchGated("silu_mul", args.gate_up, args.out));
  return CudaStatus(
      SiluMulRows(RowsOf(args.gate_up, args.out), CudaStreamOf(stream)),
      "silu_mul");
}

Status GeluMulCuda(const GeluMul::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR(MatchGated("gelu_mul", args.gate_up, args.out));
  return CudaStatus(
      GeluMulRows(RowsOf(args.gate_up, args.out), CudaStreamOf(stream)),
      "gelu_mul");
}

Status GateHeadsCuda(const GateHeads::Args& args, Stream& stream) {
  ShapeMatch match("gate_heads");
  match.Match("x", args.x, {"rows", "heads", "head_dim"})
      .Match("gate", args.gate, {"rows", "heads"})
      .IsType("x", args.x, DType::kBF16)
      .IsType("gate", args.gate, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  return CudaStatus(GateHeadsRows({.x = args.x.data(),
                                   .x_stride = args.x.row_stride(),
                                   .gate = args.gate.data(),
                                   .gate_stride = args.gate.row_stride(),
                                   .rows = match["rows"],
                                   .heads = match["heads"],
                                   .head_dim = match["head_dim"]},
                                  CudaStreamOf(stream)),
                    "gate_heads");
}

Status Relu2Cuda(const Relu2::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR(MatchUnary("relu2", args.x, args.out));
  return CudaStatus(Relu2Rows(RowsOf(args.x, args.out), CudaStreamOf(stream)),
                    "relu2");
}

Status XieluCuda(const Xielu::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR(MatchUnary("xielu", args.x, args.out));
  const XieluConstants constants =
      XieluConstantsOf(args.alpha_p, args.alpha_n, args.beta, args.eps);
  return CudaStatus(
      XieluRows(RowsOf(args.x, args.out), constants, CudaStreamOf(stream)),
      "xielu");
}

Status EmbeddingCuda(const Embedding::Args& args, Stream& stream) {
  ShapeMatch match("embedding");
  match.Match("table", args.table, {"vocab", "hidden"})
      .Match("out", args.out, {"tokens", "hidden"})
      .IsType("table", args.table, DType::kBF16)
      .IsType("out", args.out, StreamDType(args.out));
  BATON_RETURN_IF_ERROR(match.status());
  match.Require(static_cast<int64_t>(args.ids.size()) == match["tokens"],
                "out must have one row per id");
  BATON_RETURN_IF_ERROR(match.status());
  return CudaStatus(LookUpRows({.index = args.ids.data(),
                                .tokens = args.drawn.data(),
                                .table = args.table.data(),
                                .table_stride = args.table.row_stride(),
                                .out = args.out.data(),
                                .out_stride = args.out.row_stride(),
                                .rows = match["tokens"],
                                .hidden = match["hidden"],
                                .out_type = StreamTypeOf(args.out)},
                               CudaStreamOf(stream)),
                    "embedding");
}

}  // namespace baton::cuda
