// SPDX-License-Identifier: Apache-2.0
// What q, k and the gates of a token become before the recurrence. No choice of
// contraction, so that all kernels agree.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/delta_rule.h"

namespace baton::cuda {

inline constexpr float kDeltaEps = 1e-6f;

__device__ __forceinline__ float SigmoidOf(float x) {
  return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x)));
}
// exp(-rate * ln(1 + e^z)).
__device__ __forceinline__ float DecayOf(float z, float rate) {
  const float softplus = __fadd_rn(fmaxf(z, 0.0f), log1pf(expf(-fabsf(z))));
  return expf(__fmul_rn(-rate, softplus));
}
// 1 / |x| from the sum of squares.
__device__ __forceinline__ float InverseNorm(float squares) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(squares, kDeltaEps)));
}

}  // namespace baton::cuda
