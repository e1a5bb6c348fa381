// SPDX-License-Identifier: Apache-2.0
// Products of heads: shapes, then head_matmul.h.
#include "kernels/cuda/head_shapes.h"
#include "kernels/cuda/kernels.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cuda {

StatusOr<HeadProducts> HeadProductsOf(const baton::HeadMatmul::Args& args,
                                      Context& context) {
  ShapeMatch match("head_matmul");
  match.Match("x", args.x, {"tokens", "columns"})
      .Match("out", args.out, {"tokens", "outputs"})
      .IsType("x", args.x, DType::kBF16)
      .IsType("out", args.out, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  const auto heads = static_cast<int64_t>(args.weights.size());
  match.Require(heads > 0, "there must be a head");
  BATON_RETURN_IF_ERROR(match.status());
  const PackedMatrix& first = args.weights[0];
  const int64_t stride = match["columns"] / heads;
  match
      .Require(match["columns"] % heads == 0 && first.k <= stride,
               "x must have columns enough for each head")
      .Require(match["outputs"] == heads * first.n,
               "out must be as wide as all heads");
  for (const PackedMatrix& weight : args.weights) {
    match.Require(weight.n == first.n && weight.k == first.k,
                  "heads must have matrices of one shape");
  }
  BATON_RETURN_IF_ERROR(match.status());
  BATON_ASSIGN_OR_RETURN(const GroupedWeights* weights,
                         context.Grouped(args.weights));
  return HeadProducts{.weights = {.pointers = weights->pointers,
                                  .heads = heads,
                                  .n = weights->n,
                                  .k = weights->k,
                                  .ldw = weights->ldw},
                      .args = {.x = args.x.data(),
                               .ldx = args.x.row_stride(),
                               .head_stride = stride,
                               .out = args.out.data(),
                               .ldo = args.out.row_stride(),
                               .rows = match["tokens"]}};
}

Status HeadMatmulCuda(const baton::HeadMatmul::Args& args, Stream& stream) {
  Context& context = Context::Of(stream);
  BATON_ASSIGN_OR_RETURN(const HeadProducts products,
                         HeadProductsOf(args, context));
  return CudaStatus(
      HeadMatmul(products.weights, products.args, context.stream()),
      "head_matmul");
}

}  // namespace baton::cuda
