// SPDX-License-Identifier: Apache-2.0
// The plain kernel of skinny_matmul.h: any GPU, any k, any alignment. One warp
// an output row; lane l adds up k = l, l + 32, ... in order, and the lanes are
// combined by a balanced tree; of two halves of k each for itself. Its bits are
// its own: they do not depend on the number of rows either, but differ from the
// Hopper kernel's.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/skinny_epilogue.cuh"

namespace baton::cuda {

inline constexpr int kPlainWarps = 8;   // rows of W of a block
inline constexpr int kPlainTokens = 8;  // rows of x per pass over W

struct SkinnyPlainWork {
  const __nv_bfloat16* x;  // [m, k], row stride ldx
  int64_t ldx;
  const __nv_bfloat16* w;  // [n, k], row stride ldw
  int64_t ldw;
  int64_t m, n, k;
  int parts;  // of k that are summed for themselves: 2 halves, or 1
  SkinnySink sink;
};

__global__ void __launch_bounds__(32 * kPlainWarps)
    SkinnyPlainKernel(const SkinnyPlainWork work) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kPlainWarps +
                      static_cast<int>(threadIdx.x) / 32;
  if (row >= work.n) return;
  const __nv_bfloat16* w = work.w + row * work.ldw;
  for (int64_t first = 0; first < work.m; first += kPlainTokens) {
    float sums[kPlainTokens] = {};
    for (int part = 0; part < work.parts; ++part) {
      float sum[kPlainTokens] = {};
      const int64_t end = (part + 1) * work.k / work.parts;
      for (int64_t k = part * work.k / work.parts + lane; k < end; k += 32) {
        const float weight = __bfloat162float(w[k]);
#pragma unroll
        for (int j = 0; j < kPlainTokens; ++j) {
          if (first + j >= work.m) break;
          const float x = __bfloat162float(work.x[(first + j) * work.ldx + k]);
          sum[j] = __fmaf_rn(weight, x, sum[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kPlainTokens; ++j) {
        for (int mask = 1; mask < 32; mask *= 2) {
          sum[j] += __shfl_xor_sync(~0u, sum[j], mask);
        }
        sums[j] = part == 0 ? sum[j] : sums[j] + sum[j];
      }
    }
#pragma unroll
    for (int j = 0; j < kPlainTokens; ++j) {
      if (lane == 0 && first + j < work.m) {
        StoreSum(work.sink, PlaceIn(work.sink, first + j, row), sums[j]);
      }
    }
  }
}

}  // namespace baton::cuda
