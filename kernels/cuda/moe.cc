// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts: shapes, then experts.h and grouped_matmul.h.
#include "kernels/ops/moe.h"

#include <algorithm>

#include "kernels/cuda/context.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/grouped_matmul.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul_shapes.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cuda {
namespace {

// [tokens, experts] to [tokens, top] of each.
void MatchRoute(ShapeMatch& match, ConstView logits, View experts,
                View weights) {
  match.Match("logits", logits, {"tokens", "experts"})
      .Match("experts", experts, {"tokens", "top"})
      .Match("weights", weights, {"tokens", "top"})
      .IsType("logits", logits, DType::kF32)
      .IsType("experts", experts, DType::kI32)
      .IsType("weights", weights, DType::kF32);
}

RouteArgs RouteOf(ConstView logits, View experts, View weights) {
  return {.logits = reinterpret_cast<const float*>(logits.data()),
          .logits_stride = logits.row_stride(),
          .experts = reinterpret_cast<int32_t*>(experts.data()),
          .experts_stride = experts.row_stride(),
          .weights = reinterpret_cast<float*>(weights.data()),
          .weights_stride = weights.row_stride(),
          .rows = logits.dim(0),
          .count = logits.dim(1),
          .top = experts.dim(1)};
}

// Of some tokens; plan and scratch are missing. Products go where a gated
// activation finds them.
GroupedArgs ArgsOf(const GroupedMatmul::Args& args, const RowRun& run) {
  const int64_t top = args.experts.dim(1);
  const int64_t token_rows = args.x.dim(0) / args.experts.dim(0);
  const int64_t end = run.first + run.rows;
  const ConstView x = args.x.Rows(run.first * token_rows, end * token_rows);
  const ConstView experts = args.experts.Rows(run.first, end);
  const View out = (args.activation.IsGated() ? args.product : args.out)
                       .Rows(run.first * top, end * top);
  return {.x = x.data(),
          .rows = x.dim(0),
          .ldx = x.row_stride(),
          .experts = reinterpret_cast<const int32_t*>(experts.data()),
          .tokens = run.rows,
          .top = top,
          .ld_experts = experts.row_stride(),
          .out = out.data(),
          .ldo = out.row_stride(),
          .out_type =
              out.dtype() == DType::kF32 ? SkinnyOut::kF32 : SkinnyOut::kBf16,
          .plan = nullptr};
}

// Where the slots of `part` are sorted, or have been.
Status FindPlan(RowKind kind, Context& context, GroupedArgs& part) {
  BATON_ASSIGN_OR_RETURN(
      const Context::KeptPlan plan,
      context.Plan(
          {.experts = part.experts, .tokens = part.tokens, .kind = kind},
          part.tokens * part.top));
  part.plan = plan.memory;
  part.sort = plan.sort;
  return OkStatus();
}

// Slots of `run` in args.out, of products in args.product.
Status Activate(const GroupedMatmul::Args& args, const RowRun& run,
                Stream& stream) {
  if (!args.activation.IsGated()) return OkStatus();
  const int64_t first = run.first * args.experts.dim(1);
  const int64_t end = first + run.rows * args.experts.dim(1);
  const View product = args.product.Rows(first, end);
  const View out = args.out.Rows(first, end);
  return args.activation.kind == MatmulActivation::Kind::kSiluMul
             ? SiluMulCuda({.gate_up = product, .out = out}, stream)
             : GeluMulCuda({.gate_up = product, .out = out}, stream);
}

// A thousand tokens at a time, so that the scratch, which takes their rows of
// x, does not grow with a prompt that has no recipe of its own.
Status Generated(const GroupedMatmul::Args& args, const RowRun& run,
                 const GroupedWeights& weights, Stream& stream) {
  constexpr int64_t kMostTokens = 1024;
  Context& context = Context::Of(stream);
  const bool fused = args.activation.IsGated() && TakesGates(weights) &&
                     SuitsCopies(args.x.data(), args.x.row_stride());
  GroupedMatmul::Args to = args;
  if (fused) to.product = args.out;  // no room is needed
  for (int64_t i = 0; i < run.rows; i += kMostTokens) {
    GroupedArgs part =
        ArgsOf(to, {.kind = run.kind,
                    .first = run.first + i,
                    .rows = std::min(kMostTokens, run.rows - i)});
    if (fused) part.activation = KindOf(args.activation);
    if (SortsSlots(weights, part)) {
      BATON_RETURN_IF_ERROR(FindPlan(RowKind::kGenerated, context, part));
      BATON_ASSIGN_OR_RETURN(part.scratch,
                             context.Workspace(GroupedScratchBytes(
                                 part.tokens * part.top, weights.k)));
    }
    BATON_RETURN_IF_ERROR(CudaStatus(
        GroupedMatmul(weights, part, context.stream()), "grouped_matmul"));
  }
  return fused ? OkStatus() : Activate(args, run, stream);
}

// Whether there is one token, a generated one.
bool IsOneGenerated(const GroupedMatmul::Args& args) {
  return args.experts.dim(0) == 1 &&
         std::all_of(args.runs.begin(), args.runs.end(), [](const RowRun& run) {
           return run.kind == RowKind::kGenerated;
         });
}
// Of that one, which needs no plan and no scratch: with the activation inside.
GroupedArgs TokenArgsOf(const GroupedMatmul::Args& args) {
  GroupedMatmul::Args to = args;
  to.product = args.out;
  GroupedArgs token =
      ArgsOf(to, {.kind = RowKind::kGenerated, .first = 0, .rows = 1});
  token.activation = KindOf(args.activation);
  return token;
}

Status Prompt(const GroupedMatmul::Args& args, const RowRun& run,
              const GroupedWeights& weights, Stream& stream) {
  Context& context = Context::Of(stream);
  GroupedArgs part = ArgsOf(args, run);
  BATON_RETURN_IF_ERROR(FindPlan(RowKind::kPrompt, context, part));
  BATON_ASSIGN_OR_RETURN(part.scratch,
                         context.Workspace(GroupedPromptScratchBytes(weights)));
  BATON_RETURN_IF_ERROR(CudaStatus(
      GroupedPromptMatmul(weights, part, context.stream()), "grouped_matmul"));
  return Activate(args, run, stream);
}

Status MatchGrouped(const GroupedMatmul::Args& args) {
  ShapeMatch match("grouped_matmul");
  match.Match("x", args.x, {"rows", "k"})
      .Match("experts", args.experts, {"tokens", "top"})
      .Match("out", args.out, {"slots", "columns"})
      .IsType("x", args.x, DType::kBF16)
      .IsType("experts", args.experts, DType::kI32);
  const bool gated = args.activation.IsGated();
  if (gated) {
    match.Match("product", args.product, {"slots", "n"})
        .IsType("product", args.product, DType::kBF16)
        .IsType("out", args.out, DType::kBF16);
  }
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t n = gated ? match["n"] : match["columns"];
  const int64_t tokens = match["tokens"];
  const int64_t slots = match["slots"];
  match.Require(slots == tokens * match["top"], "out must have a row a slot")
      .Require(
          args.out.dtype() == DType::kBF16 || args.out.dtype() == DType::kF32,
          "out must be bf16 or f32")
      .Require(match["rows"] == tokens || match["rows"] == slots,
               "x must have a row for each of experts, or for each slot")
      .Require(gated || args.activation.kind == MatmulActivation::Kind::kNone,
               "experts have gated activations")
      .Require(!gated || n == 2 * match["columns"], "product has 2 x out");
  for (const PackedMatrix& weight : args.weights) {
    match.Require(weight.dtype == DType::kBF16, "weights must be as x")
        .Require(weight.n == n, "weights must be as wide as their products")
        .Require(weight.k == match["k"], "weights must be as deep as x");
  }
  return match.status();
}

// Of what fits together.
Status MultiplyGroups(const GroupedMatmul::Args& args, Stream& stream) {
  if (args.out.dim(0) == 0) return OkStatus();
  Context& context = Context::Of(stream);
  BATON_ASSIGN_OR_RETURN(const GroupedWeights* weights,
                         context.Grouped(args.weights));
  if (args.order == SlotOrder::kNew) context.ForgetPlans();
  if (args.runs.empty()) {
    return Generated(args, {RowKind::kGenerated, 0, args.experts.dim(0)},
                     *weights, stream);
  }
  for (const RowRun& run : args.runs) {
    BATON_RETURN_IF_ERROR(run.kind == RowKind::kPrompt && TakesPrompts(*weights)
                              ? Prompt(args, run, *weights, stream)
                              : Generated(args, run, *weights, stream));
  }
  return OkStatus();
}

}  // namespace

Status RouteTopKCuda(const RouteTopK::Args& args, Stream& stream) {
  ShapeMatch match("route_top_k");
  MatchRoute(match, args.logits, args.experts, args.weights);
  BATON_RETURN_IF_ERROR(match.status());
  return CudaStatus(RouteRows(RouteOf(args.logits, args.experts, args.weights),
                              CudaStreamOf(stream)),
                    "route_top_k");
}

Status RouteGroupedCuda(const RouteGrouped::Args& args, Stream& stream) {
  ShapeMatch match("route_grouped");
  MatchRoute(match, args.logits, args.experts, args.weights);
  match.Match("bias", args.bias, {"experts"})
      .IsType("bias", args.bias, DType::kF32);
  BATON_RETURN_IF_ERROR(match.status());
  return CudaStatus(
      RouteGroupedRows(
          {.route = RouteOf(args.logits, args.experts, args.weights),
           .bias = reinterpret_cast<const float*>(args.bias.data()),
           .groups = args.groups,
           .top_groups = args.top_groups,
           .scale = args.scale},
          CudaStreamOf(stream)),
      "route_grouped");
}

Status GroupedMatmulCuda(const GroupedMatmul::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR(MatchGrouped(args));
  return MultiplyGroups(args, stream);
}

Status GroupedAndSharedMatmulCuda(const GroupedAndSharedMatmul::Args& args,
                                  Stream& stream) {
  BATON_RETURN_IF_ERROR(MatchGrouped(args.grouped));
  BATON_RETURN_IF_ERROR(MatchMatmul(args.shared));
  if (IsOneGenerated(args.grouped) && args.shared.x.dim(0) == 1) {
    Context& context = Context::Of(stream);
    BATON_ASSIGN_OR_RETURN(const GroupedWeights* weights,
                           context.Grouped(args.grouped.weights));
    BATON_ASSIGN_OR_RETURN(const SkinnyWeight* shared,
                           context.Skinny(args.shared.weight));
    if (args.grouped.order == SlotOrder::kNew) context.ForgetPlans();
    const cudaError_t error =
        GroupedAndSharedMatmul(*weights, TokenArgsOf(args.grouped), *shared,
                               SkinnyArgsOf(args.shared, args.shared.out, 0, 1,
                                            args.shared.activation),
                               context.stream());
    if (error != cudaErrorNotSupported) {
      return CudaStatus(error, "grouped_and_shared_matmul");
    }
  }
  BATON_RETURN_IF_ERROR(MatmulCuda(args.shared, stream));
  return MultiplyGroups(args.grouped, stream);
}

Status CombineExpertsCuda(const CombineExperts::Args& args, Stream& stream) {
  ShapeMatch match("combine_experts");
  match.Match("y", args.y, {"slots", "hidden"})
      .Match("weights", args.weights, {"tokens", "top"})
      .Match("out", args.out, {"tokens", "hidden"})
      .IsType("y", args.y, DType::kBF16)
      .IsType("weights", args.weights, DType::kF32)
      .IsType("out", args.out, DType::kBF16);
  const bool adds = args.added.data() != nullptr;
  if (adds) {
    match.Match("added", args.added, {"tokens", "hidden"})
        .IsType("added", args.added, DType::kBF16);
  }
  BATON_RETURN_IF_ERROR(match.status());
  match.Require(match["slots"] == match["tokens"] * match["top"],
                "y must have a row a slot");
  BATON_RETURN_IF_ERROR(match.status());
  return CudaStatus(
      CombineRows(
          {.y = args.y.data(),
           .y_stride = args.y.row_stride(),
           .weights = reinterpret_cast<const float*>(args.weights.data()),
           .weights_stride = args.weights.row_stride(),
           .out = args.out.data(),
           .out_stride = args.out.row_stride(),
           .rows = match["tokens"],
           .top = match["top"],
           .hidden = match["hidden"],
           .added = args.added.data(),
           .added_stride = adds ? args.added.row_stride() : 0},
          CudaStreamOf(stream)),
      "combine_experts");
}

}  // namespace baton::cuda
