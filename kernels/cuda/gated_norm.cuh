// SPDX-License-Identifier: Apache-2.0
// What all kernels with a gated norm agree on: sixteen lanes share a head, and
// lane l has the elements [8 (l + 16 v), + 8).
#pragma once

#include "kernels/cuda/common.cuh"

namespace baton::cuda {

inline constexpr int kNormLanes = 16;

// From the squares of the lane's elements, added up in order.
// `share`: ShareOf the head's elements.
__device__ __forceinline__ float GatedNormFactor(float squares, float share,
                                                 float eps) {
#pragma unroll
  for (int width = kNormLanes / 2; width > 0; width /= 2) {
    squares += __shfl_xor_sync(kAllLanes, squares, width);
  }
  return rsqrtf(fmaf(squares, share, eps));
}

__device__ __forceinline__ float GatedNormOf(float x, float factor,
                                             float weight, float gate) {
  return __fdividef(weight * (x * factor), 1.0f + expf(-gate));
}

}  // namespace baton::cuda
