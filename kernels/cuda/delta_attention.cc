// SPDX-License-Identifier: Apache-2.0
// Kimi Delta Attention: shapes, then conv_and_heads.h and delta_rule.h.
#include "kernels/ops/delta_attention.h"

#include <cstddef>
#include <utility>

#include "kernels/cuda/batch_shapes.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/conv_and_heads.h"
#include "kernels/cuda/delta_rows.h"
#include "kernels/cuda/delta_rule.h"
#include "kernels/cuda/head_shapes.h"
#include "kernels/cuda/kernels.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cuda {
namespace {

static_assert(sizeof(SequenceRows) == sizeof(baton::SequenceRows) &&
              offsetof(SequenceRows, state_slot) ==
                  offsetof(baton::SequenceRows, state_slot));

// The batch is on the device, is of `rows` rows, and slots hold `bytes` bytes.
void MatchStates(ShapeMatch& match, const AttentionBatch* batch,
                 const baton::StateSlots& states, int64_t bytes, int64_t rows) {
  MatchRows(match, batch, rows);
  match.Require(states.slot_bytes >= bytes, "a slot must hold a state");
}

StateSlots SlotsOf(const baton::StateSlots& states) {
  return {.data = states.data, .slot_bytes = states.slot_bytes};
}

Sequences SequencesOf(const DeviceBatch& batch) {
  return {.rows = reinterpret_cast<const SequenceRows*>(batch.sequences),
          .count = batch.num_sequences};
}

DeltaInput InputOf(ConstView view) {
  return {.data = view.data(), .stride = view.row_stride()};
}

const float* FloatsOf(ConstView view) {
  return reinterpret_cast<const float*>(view.data());
}

StatusOr<ShortConvArgs> ConvOf(const ShortConv::Args& args) {
  ShapeMatch match("short_conv");
  match.Match("x", args.x, {"tokens", "channels"})
      .Match("weight", args.weight, {"taps", "channels"})
      .Match("out", args.out, {"tokens", "channels"})
      .IsType("x", args.x, DType::kBF16)
      .IsType("weight", args.weight, DType::kF32)
      .IsType("out", args.out, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t taps = match["taps"];
  const int64_t channels = match["channels"];
  match.Require(taps >= 1 && taps <= kMaxTaps, "there are 1 to 8 taps");
  MatchStates(match, args.batch, args.states,
              (taps - 1) * channels * SizeOf(DType::kBF16), match["tokens"]);
  BATON_RETURN_IF_ERROR(match.status());
  return ShortConvArgs{.x = args.x.data(),
                       .x_stride = args.x.row_stride(),
                       .weight = FloatsOf(args.weight),
                       .weight_stride = args.weight.row_stride(),
                       .states = SlotsOf(args.states),
                       .sequences = SequencesOf(*args.batch->device),
                       .out = args.out.data(),
                       .out_stride = args.out.row_stride(),
                       .rows = match["tokens"],
                       .channels = channels,
                       .taps = taps};
}

StatusOr<DeltaRuleArgs> RuleOf(const baton::DeltaRule::Args& args) {
  ShapeMatch match("delta_rule");
  const std::pair<const char*, ConstView> inputs[] = {{"q", args.q},
                                                      {"k", args.k},
                                                      {"v", args.v},
                                                      {"decay", args.decay},
                                                      {"out", args.out}};
  for (const auto& [name, view] : inputs) {
    match.Match(name, view, {"tokens", "heads", "dim"})
        .IsType(name, view, DType::kBF16);
  }
  match.Match("beta", args.beta, {"tokens", "heads"})
      .Match("rate", args.rate, {"heads"})
      .Match("decay_bias", args.decay_bias, {"heads", "dim"})
      .IsType("beta", args.beta, DType::kBF16)
      .IsType("rate", args.rate, DType::kF32)
      .IsType("decay_bias", args.decay_bias, DType::kF32);
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t heads = match["heads"];
  const int64_t dim = match["dim"];
  match.Require(dim <= kMaxDeltaDim, "heads have up to 224 dimensions")
      .Require(args.decay_bias.contiguous(), "decay_bias is contiguous");
  MatchStates(match, args.batch, args.states,
              heads * dim * dim * SizeOf(DType::kF32), match["tokens"]);
  BATON_RETURN_IF_ERROR(match.status());
  return DeltaRuleArgs{.q = InputOf(args.q),
                       .k = InputOf(args.k),
                       .v = InputOf(args.v),
                       .decay = InputOf(args.decay),
                       .beta = InputOf(args.beta),
                       .rate = FloatsOf(args.rate),
                       .decay_bias = FloatsOf(args.decay_bias),
                       .states = SlotsOf(args.states),
                       .sequences = SequencesOf(*args.batch->device),
                       .out = args.out.data(),
                       .out_stride = args.out.row_stride(),
                       .rows = match["tokens"],
                       .heads = heads,
                       .dim = dim};
}

// Of what the rule gives, in place.
StatusOr<GatedNormArgs> NormOf(const baton::DeltaRuleNormed::Args& args) {
  const View out = args.rule.out;
  ShapeMatch match("gated_rms_norm");
  match.Match("out", out, {"tokens", "heads", "dim"})
      .Match("weight", args.weight, {"dim"})
      .Match("gate", args.gate, {"tokens", "heads", "dim"})
      .IsType("weight", args.weight, DType::kF32)
      .IsType("gate", args.gate, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  return GatedNormArgs{.x = out.data(),
                       .x_stride = out.row_stride(),
                       .weight = FloatsOf(args.weight),
                       .gate = args.gate.data(),
                       .gate_stride = args.gate.row_stride(),
                       .out = out.data(),
                       .out_stride = out.row_stride(),
                       .rows = match["tokens"],
                       .heads = match["heads"],
                       .dim = match["dim"],
                       .eps = args.eps};
}

}  // namespace

Status ShortConvAndHeadMatmulCuda(
    const baton::ShortConvAndHeadMatmul::Args& args, Stream& stream) {
  Context& context = Context::Of(stream);
  BATON_ASSIGN_OR_RETURN(const ShortConvArgs conv, ConvOf(args.conv));
  BATON_ASSIGN_OR_RETURN(const HeadProducts heads,
                         HeadProductsOf(args.heads, context));
  const cudaError_t error =
      ShortConvAndHeadMatmul(conv, heads.weights, heads.args, context.stream());
  if (error != cudaErrorNotSupported) {
    return CudaStatus(error, "short_conv_and_head_matmul");
  }
  BATON_RETURN_IF_ERROR(
      CudaStatus(ShortConvRows(conv, context.stream()), "short_conv"));
  return CudaStatus(HeadMatmul(heads.weights, heads.args, context.stream()),
                    "head_matmul");
}

Status DeltaRuleNormedCuda(const baton::DeltaRuleNormed::Args& args,
                           Stream& stream) {
  BATON_ASSIGN_OR_RETURN(const DeltaRuleArgs rule, RuleOf(args.rule));
  BATON_ASSIGN_OR_RETURN(const GatedNormArgs norm, NormOf(args));
  const cudaStream_t cuda = CudaStreamOf(stream);
  if (HasOneRowEach(*args.rule.batch)) {
    const cudaError_t error = DeltaRuleNormed(rule, norm, cuda);
    if (error != cudaErrorNotSupported) {
      return CudaStatus(error, "delta_rule_normed");
    }
  }
  BATON_RETURN_IF_ERROR(CudaStatus(DeltaRule(rule, cuda), "delta_rule"));
  return CudaStatus(GatedNormRows(norm, cuda), "gated_rms_norm");
}

}  // namespace baton::cuda
