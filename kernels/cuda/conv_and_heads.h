// SPDX-License-Identifier: Apache-2.0
// The short convolution and products of heads in one launch, for few rows:
// neither reads what the other writes, so that some blocks do one and others
// the other. May be captured, and starts as a programmatic dependent.
#pragma once

#include "kernels/cuda/delta_rows.h"
#include "kernels/cuda/head_matmul.h"

namespace baton::cuda {

// ShortConvRows and HeadMatmul, with the same bits. notSupported: there is no
// kernel for these.
[[nodiscard]] cudaError_t ShortConvAndHeadMatmul(const ShortConvArgs& conv,
                                                 const HeadWeights& weights,
                                                 const HeadMatmulArgs& heads,
                                                 cudaStream_t stream);

}  // namespace baton::cuda
