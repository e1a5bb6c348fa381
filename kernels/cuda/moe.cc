// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts: shapes, then experts.h and grouped_matmul.h.
#include "kernels/ops/moe.h"

#include "kernels/cuda/context.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/grouped_matmul.h"
#include "kernels/cuda/kernels.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cuda {

Status RouteTopKCuda(const RouteTopK::Args& args, Stream& stream) {
  ShapeMatch match("route_top_k");
  match.Match("logits", args.logits, {"tokens", "experts"})
      .Match("experts", args.experts, {"tokens", "top"})
      .Match("weights", args.weights, {"tokens", "top"})
      .IsType("logits", args.logits, DType::kF32)
      .IsType("experts", args.experts, DType::kI32)
      .IsType("weights", args.weights, DType::kF32);
  BATON_RETURN_IF_ERROR(match.status());
  return CudaStatus(
      RouteRows({.logits = reinterpret_cast<const float*>(args.logits.data()),
                 .logits_stride = args.logits.row_stride(),
                 .experts = reinterpret_cast<int32_t*>(args.experts.data()),
                 .experts_stride = args.experts.row_stride(),
                 .weights = reinterpret_cast<float*>(args.weights.data()),
                 .weights_stride = args.weights.row_stride(),
                 .rows = match["tokens"],
                 .count = match["experts"],
                 .top = match["top"]},
                CudaStreamOf(stream)),
      "route_top_k");
}

Status GroupedMatmulCuda(const GroupedMatmul::Args& args, Stream& stream) {
  ShapeMatch match("grouped_matmul");
  match.Match("x", args.x, {"rows", "k"})
      .Match("experts", args.experts, {"tokens", "top"})
      .Match("out", args.out, {"slots", "n"})
      .IsType("x", args.x, DType::kBF16)
      .IsType("experts", args.experts, DType::kI32)
      .IsType("out", args.out, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t tokens = match["tokens"];
  const int64_t slots = match["slots"];
  match.Require(slots == tokens * match["top"], "out must have a row a slot")
      .Require(match["rows"] == tokens || match["rows"] == slots,
               "x must have a row for each of experts, or for each slot");
  for (const PackedMatrix& weight : args.weights) {
    match.Require(weight.dtype == DType::kBF16, "weights must be as x")
        .Require(weight.n == match["n"], "weights must be as wide as out")
        .Require(weight.k == match["k"], "weights must be as deep as x");
  }
  BATON_RETURN_IF_ERROR(match.status());
  if (slots == 0) return OkStatus();
  Context& context = Context::Of(stream);
  BATON_ASSIGN_OR_RETURN(const GroupedWeights* weights,
                         context.Grouped(args.weights));
  BATON_ASSIGN_OR_RETURN(
      void* const scratch,
      context.Workspace(GroupedScratchBytes(slots, match["k"])));
  return CudaStatus(
      GroupedMatmul(
          *weights,
          {.x = args.x.data(),
           .rows = match["rows"],
           .ldx = args.x.row_stride(),
           .experts = reinterpret_cast<const int32_t*>(args.experts.data()),
           .tokens = tokens,
           .top = match["top"],
           .ld_experts = args.experts.row_stride(),
           .out = args.out.data(),
           .ldo = args.out.row_stride(),
           .scratch = scratch},
          context.stream()),
      "grouped_matmul");
}

Status CombineExpertsCuda(const CombineExperts::Args& args, Stream& stream) {
  ShapeMatch match("combine_experts");
  match.Match("y", args.y, {"slots", "hidden"})
      .Match("weights", args.weights, {"tokens", "top"})
      .Match("out", args.out, {"tokens", "hidden"})
      .IsType("y", args.y, DType::kBF16)
      .IsType("weights", args.weights, DType::kF32)
      .IsType("out", args.out, DType::kBF16);
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
           .hidden = match["hidden"]},
          CudaStreamOf(stream)),
      "combine_experts");
}

}  // namespace baton::cuda
