// SPDX-License-Identifier: Apache-2.0
// The best of a row's values, by a warp.
#pragma once

#include "kernels/cuda/common.cuh"

namespace baton::cuda {

struct Choice {
  float p;
  int index;
};
// The larger p, of equal ones (and of NaNs) the lower index.
__device__ __forceinline__ Choice Better(Choice a, Choice b) {
  if (a.p > b.p) return a;
  if (b.p > a.p) return b;
  return a.index < b.index ? a : b;
}
// NaNs beside numbers have no order, so all lanes get what the first one finds.
__device__ __forceinline__ Choice WarpBest(Choice best) {
#pragma unroll
  for (int width = kWarp / 2; width > 0; width /= 2) {
    const Choice other = {__shfl_xor_sync(kAllLanes, best.p, width),
                          __shfl_xor_sync(kAllLanes, best.index, width)};
    best = Better(best, other);
  }
  return {__shfl_sync(kAllLanes, best.p, 0),
          __shfl_sync(kAllLanes, best.index, 0)};
}

// Lane l has value[i] of index l + 32 i, of `count`; bit i of `taken`: not to
// be chosen any more. The best of those left, which is taken then. There is one
// left.
template <int kHeld>
__device__ __forceinline__ Choice TakeBest(const float (&value)[kHeld],
                                           int count, uint32_t& taken) {
  static_assert(kHeld <= 32);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  constexpr int kNone = kWarp * kHeld;
  Choice best = {-kInfinity, kNone};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int index = lane + i * kWarp;
    if (index >= count || (taken >> i & 1) != 0) continue;
    // The first one, even if it is NaN.
    best = best.index == kNone ? Choice{value[i], index}
                               : Better(best, {value[i], index});
  }
  best = WarpBest(best);
  if (best.index % kWarp == lane) taken |= 1u << (best.index / kWarp);
  return best;
}

}  // namespace baton::cuda
