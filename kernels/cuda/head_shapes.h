// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/cuda/head_matmul.h"
#include "kernels/ops/latent_attention.h"

namespace baton::cuda {

struct HeadProducts {
  HeadWeights weights;
  HeadMatmulArgs args;
};
// As the kernels take them. InvalidArgument: shapes that do not fit together.
[[nodiscard]] StatusOr<HeadProducts> HeadProductsOf(
    const baton::HeadMatmul::Args& args, Context& context);

}  // namespace baton::cuda
