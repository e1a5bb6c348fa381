// SPDX-License-Identifier: Apache-2.0
// Products of heads: shapes, then head_matmul.h.
#include "kernels/cuda/head_shapes.h"
#include "kernels/cuda/kernels.h"
#include "kernels/ops/match_heads.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cuda {

StatusOr<HeadProducts> HeadProductsOf(const baton::HeadMatmul::Args& args,
                                      Context& context) {
  ShapeMatch match("head_matmul");
  BATON_RETURN_IF_ERROR(MatchHeads(match, args, DType::kBF16));
  const auto heads = static_cast<int64_t>(args.weights.size());
  BATON_ASSIGN_OR_RETURN(const GroupedWeights* weights,
                         context.Grouped(args.weights));
  return HeadProducts{.weights = {.pointers = weights->pointers,
                                  .heads = heads,
                                  .n = weights->n,
                                  .k = weights->k,
                                  .ldw = weights->ldw},
                      .args = {.x = args.x.data(),
                               .ldx = args.x.row_stride(),
                               .head_stride = match["columns"] / heads,
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
