// SPDX-License-Identifier: Apache-2.0
// What becomes of a sum: rounding, activation, the store.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/skinny_matmul.h"

namespace baton::cuda {

// Where results go, and through what.
struct SkinnySink {
  void* out;    // [m, n] bf16 or f32; gated: [m, n / 2] bf16
  int64_t ldo;  // elements
  SkinnyOut out_type;
  SkinnyActivation activation;
  XieluConstants xielu;
};

__device__ inline float RoundToBf16(float v) {
  return __bfloat162float(__float2bfloat16_rn(v));
}

// Where out[token, column] is.
__device__ __forceinline__ void* PlaceIn(const SkinnySink& sink, int64_t token,
                                         int64_t column) {
  const int64_t at = token * sink.ldo + column;
  return static_cast<char*>(sink.out) +
         at * (sink.out_type == SkinnyOut::kF32 ? 4 : 2);
}

// Stores the sum of an element.
__device__ inline void StoreSum(const SkinnySink& sink, void* at, float sum) {
  if (sink.out_type == SkinnyOut::kF32) {
    *static_cast<float*>(at) = sum;
    return;
  }
  if (sink.activation == SkinnyActivation::kRelu2) {
    sum = Relu2Of(RoundToBf16(sum));
  } else if (sink.activation == SkinnyActivation::kXielu) {
    const XieluConstants& c = sink.xielu;
    sum = XieluOf(RoundToBf16(sum), c.positive, c.negative, c.beta, c.eps);
  }
  *static_cast<__nv_bfloat16*>(at) = __float2bfloat16_rn(sum);
}

// Stores what the sums of a gate and of its other half make of an element.
__device__ inline void StoreGated(const SkinnySink& sink, void* at, float gate,
                                  float up) {
  gate = RoundToBf16(gate);
  up = RoundToBf16(up);
  const float y = sink.activation == SkinnyActivation::kSiluMul
                      ? SiluMulOf(gate, up)
                      : GeluMulOf(gate, up);
  *static_cast<__nv_bfloat16*>(at) = __float2bfloat16_rn(y);
}

}  // namespace baton::cuda
