// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul_shapes.h"
#include "kernels/cuda/row_kernels.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cuda {
namespace {

// Rows whose sums by halves are in f32 at a time.
constexpr int64_t kHalvesRows = 2048;

XieluConstants XieluOf(const MatmulActivation& a) {
  if (a.kind != MatmulActivation::Kind::kXielu) return {};
  return XieluConstantsOf(a.alpha_p, a.alpha_n, a.beta, a.eps);
}

// Rows [first, first + rows) of out, of y in their place or in args.product.
Status Activate(const Matmul::Args& args, const RowRun& run, Stream& stream) {
  const MatmulActivation& a = args.activation;
  const View out = args.out.Rows(run.first, run.first + run.rows);
  switch (a.kind) {
    case MatmulActivation::Kind::kNone:
      return OkStatus();
    case MatmulActivation::Kind::kRelu2:
      return Relu2Cuda({.x = out, .out = out}, stream);
    case MatmulActivation::Kind::kXielu:
      return XieluCuda({.x = out,
                        .out = out,
                        .alpha_p = a.alpha_p,
                        .alpha_n = a.alpha_n,
                        .beta = a.beta,
                        .eps = a.eps},
                       stream);
    case MatmulActivation::Kind::kSiluMul:
      return SiluMulCuda(
          {.gate_up = args.product.Rows(run.first, run.first + run.rows),
           .out = out},
          stream);
    case MatmulActivation::Kind::kGeluMul:
      return GeluMulCuda(
          {.gate_up = args.product.Rows(run.first, run.first + run.rows),
           .out = out},
          stream);
  }
  return Internal("matmul: no such activation");
}
// Where y goes that Activate takes further.
View ProductOf(const Matmul::Args& args) {
  return args.activation.IsGated() ? args.product : args.out;
}

// Runs of generated rows: 64 at a time, whose bits are those of one alone.
Status Generated(const Matmul::Args& args, const RowRun& run, Stream& stream) {
  Context& context = Context::Of(stream);
  BATON_ASSIGN_OR_RETURN(const SkinnyWeight* weight,
                         context.Skinny(args.weight));
  const bool fused = !args.activation.IsGated() ||
                     TakesGates(*weight, args.x.data(), args.x.row_stride());
  const View to = fused ? args.out : args.product;
  for (int64_t i = 0; i < run.rows; i += kSkinnyMaxRows) {
    const int64_t first = run.first + i;
    const int64_t rows = std::min(kSkinnyMaxRows, run.rows - i);
    const SkinnyArgs skinny = SkinnyArgsOf(
        args, to, first, rows, fused ? args.activation : MatmulActivation{});
    BATON_RETURN_IF_ERROR(
        CudaStatus(SkinnyMatmul(*weight, skinny, context.stream()), "matmul"));
  }
  return fused ? OkStatus() : Activate(args, run, stream);
}

// A part of the inputs of a weight that prompts sum for itself.
struct LtPart {
  int64_t first = 0;  // of k
  bool adds = false;
};

Status RunLt(const Matmul::Args& args, ConstView x, View out, int64_t k,
             const LtPart& part, Context& context) {
  const LtOut type = out.dtype() == DType::kF32 ? LtOut::kF32 : LtOut::kBf16;
  PackedMatrix weight = args.weight;
  weight.data += part.first * SizeOf(DType::kBF16);
  const LtMatmul::Weight lt_weight = {
      .w = weight.data, .n = weight.n, .k = k, .ldw = RowStrideOf(weight)};
  BATON_ASSIGN_OR_RETURN(LtMatmul * lt, context.Lt(lt_weight, type));
  return LtStatus(lt->Run({.weight = lt_weight,
                           .x = x.data() + part.first * SizeOf(DType::kBF16),
                           .m = x.dim(0),
                           .ldx = x.row_stride(),
                           .out = out.data(),
                           .ldo = out.row_stride(),
                           .out_type = type,
                           .adds = part.adds}),
                  "matmul");
}

// Both halves of k for themselves, then their sum, as two ranks would.
Status PromptByHalves(const Matmul::Args& args, ConstView x, View out,
                      Stream& stream) {
  Context& context = Context::Of(stream);
  const int64_t n = args.weight.n;
  const int64_t half = args.weight.k / 2;
  const int64_t most = std::min(x.dim(0), kHalvesRows);
  BATON_ASSIGN_OR_RETURN(void* const memory,
                         context.Workspace(most * n * SizeOf(DType::kF32)));
  for (int64_t i = 0; i < x.dim(0); i += most) {
    const int64_t end = std::min(i + most, x.dim(0));
    const ConstView rows = x.Rows(i, end);
    const View sums(static_cast<std::byte*>(memory), DType::kF32, {end - i, n});
    BATON_RETURN_IF_ERROR(RunLt(args, rows, sums, half, {}, context));
    BATON_RETURN_IF_ERROR(
        RunLt(args, rows, sums, half, {.first = half, .adds = true}, context));
    const View to = out.Rows(i, end);
    BATON_RETURN_IF_ERROR(
        CudaStatus(RoundRows({.x = reinterpret_cast<const float*>(sums.data()),
                              .x_stride = n,
                              .out = to.data(),
                              .out_stride = to.row_stride(),
                              .rows = end - i,
                              .size = n},
                             context.stream()),
                   "matmul"));
  }
  return OkStatus();
}

Status Prompt(const Matmul::Args& args, const RowRun& run, Stream& stream) {
  const ConstView x = args.x.Rows(run.first, run.first + run.rows);
  const View out = ProductOf(args).Rows(run.first, run.first + run.rows);
  BATON_RETURN_IF_ERROR(
      args.weight.halves == 2 && out.dtype() == DType::kBF16
          ? PromptByHalves(args, x, out, stream)
          : RunLt(args, x, out, args.weight.k, {}, Context::Of(stream)));
  return Activate(args, run, stream);
}

// Whether cuBLASLt can take them: by the shape of the weight and how rows of x
// lie, whatever their number.
bool TakesPrompts(const PackedMatrix& weight, ConstView x) {
  return weight.k % kCudaRowPad == 0 && weight.n % kCudaRowPad == 0 &&
         x.row_stride() % kCudaRowPad == 0 &&
         reinterpret_cast<uintptr_t>(x.data()) % 16 == 0;
}

}  // namespace

Status PackMatrixCuda(const PackMatrix::Args& args, Stream& stream) {
  ShapeMatch match("pack_matrix");
  match.Match("rows", args.rows, {"rows", "k"})
      .IsType("rows", args.rows, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  match.Require(match["k"] == args.k, "k of the rows and of the matrix")
      .Require(args.first_row >= 0 && args.first_row + match["rows"] <= args.n,
               "rows outside the matrix");
  BATON_RETURN_IF_ERROR(match.status());
  constexpr size_t kElement = sizeof(bf16);
  const auto row = static_cast<size_t>(PadTo(args.k, kCudaRowPad)) * kElement;
  BATON_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy2DAsync(args.packed + static_cast<size_t>(args.first_row) * row,
                        row, args.rows.data(),
                        static_cast<size_t>(args.rows.row_stride()) * kElement,
                        static_cast<size_t>(args.k) * kElement,
                        static_cast<size_t>(match["rows"]),
                        cudaMemcpyHostToDevice, CudaStreamOf(stream)),
      "pack_matrix"));
  return stream.Synchronize();  // the caller's rows go
}

Status MatchMatmul(const Matmul::Args& args) {
  ShapeMatch match("matmul");
  match.Match("x", args.x, {"tokens", "k"})
      .Match("out", args.out, {"tokens", "columns"})
      .IsType("x", args.x, DType::kBF16);
  const bool gated = args.activation.IsGated();
  if (gated) {
    match.Match("product", args.product, {"tokens", "n"})
        .IsType("product", args.product, DType::kBF16)
        .IsType("out", args.out, DType::kBF16);
  }
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t n = gated ? match["n"] : match["columns"];
  match.Require(match["k"] == args.weight.k, "k of x and of the weight")
      .Require(n == args.weight.n, "n of out and of the weight")
      .Require(!gated || n == 2 * match["columns"], "product has 2 x out")
      .Require(args.weight.dtype == DType::kBF16, "the weight is bf16");
  return match.status();
}

SkinnyActivation KindOf(const MatmulActivation& a) {
  switch (a.kind) {
    case MatmulActivation::Kind::kNone:
      return SkinnyActivation::kNone;
    case MatmulActivation::Kind::kRelu2:
      return SkinnyActivation::kRelu2;
    case MatmulActivation::Kind::kXielu:
      return SkinnyActivation::kXielu;
    case MatmulActivation::Kind::kSiluMul:
      return SkinnyActivation::kSiluMul;
    case MatmulActivation::Kind::kGeluMul:
      return SkinnyActivation::kGeluMul;
  }
  return SkinnyActivation::kNone;
}

SkinnyArgs SkinnyArgsOf(const Matmul::Args& args, View out, int64_t first,
                        int64_t rows, const MatmulActivation& activation) {
  const ConstView x = args.x.Rows(first, first + rows);
  const View to = out.Rows(first, first + rows);
  return {.x = x.data(),
          .m = rows,
          .ldx = x.row_stride(),
          .out = to.data(),
          .ldo = to.row_stride(),
          .out_type =
              to.dtype() == DType::kF32 ? SkinnyOut::kF32 : SkinnyOut::kBf16,
          .activation = KindOf(activation),
          .xielu = XieluOf(activation)};
}

Status MatmulCuda(const Matmul::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR(MatchMatmul(args));
  if (args.runs.empty()) {
    return Generated(args, {RowKind::kGenerated, 0, args.x.dim(0)}, stream);
  }
  for (const RowRun& run : args.runs) {
    BATON_RETURN_IF_ERROR(run.kind == RowKind::kPrompt &&
                                  TakesPrompts(args.weight, args.x)
                              ? Prompt(args, run, stream)
                              : Generated(args, run, stream));
  }
  return OkStatus();
}

}  // namespace baton::cuda
