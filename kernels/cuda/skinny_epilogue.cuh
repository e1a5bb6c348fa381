// SPDX-License-Identifier: Apache-2.0
// What becomes of a sum: rounding, activation, the store.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/skinny_matmul.h"

namespace baton::cuda {

// Where results go, and through what.
struct SkinnySink {
  void* out;    // [m, n] bf16 or f32
  int64_t ldo;  // elements
  SkinnyOut out_type;
  SkinnyActivation activation;
  SkinnyXielu xielu;
};

__device__ inline float RoundToBf16(float v) {
  return __bfloat162float(__float2bfloat16_rn(v));
}

// Element-wise functions of bf16 values, in fp32; contracted in one way only.
__device__ inline float Relu2Of(float v) {
  const float r = v < 0 ? 0.0f : v;
  return __fmul_rn(r, r);
}
__device__ inline float XieluOf(float v, const SkinnyXielu& c) {
  const float linear = __fmul_rn(c.beta, v);
  if (v > 0) return __fmaf_rn(__fmul_rn(c.positive, v), v, linear);
  return __fmaf_rn(__fsub_rn(expm1f(fminf(v, c.eps)), v), c.negative, linear);
}

// Stores the sum of out[token, row].
__device__ inline void StoreSum(const SkinnySink& sink, int64_t token,
                                int64_t row, float sum) {
  const int64_t at = token * sink.ldo + row;
  if (sink.out_type == SkinnyOut::kF32) {
    static_cast<float*>(sink.out)[at] = sum;
    return;
  }
  if (sink.activation == SkinnyActivation::kRelu2) {
    sum = Relu2Of(RoundToBf16(sum));
  } else if (sink.activation == SkinnyActivation::kXielu) {
    sum = XieluOf(RoundToBf16(sum), sink.xielu);
  }
  static_cast<__nv_bfloat16*>(sink.out)[at] = __float2bfloat16_rn(sum);
}

}  // namespace baton::cuda
