// SPDX-License-Identifier: Apache-2.0
// Activations of one value, in fp32; formulas in kernels/ops/activation.h. They
// leave the compiler no choice of contraction: one kernel's bits are those of
// another.
#pragma once

namespace baton::cuda {

__device__ __forceinline__ float Relu2Of(float x) {
  const float r = x < 0 ? 0.0f : x;
  return __fmul_rn(r, r);
}

// positive: softplus(alpha_p); negative: beta + softplus(alpha_n).
__device__ __forceinline__ float XieluOf(float x, float positive,
                                         float negative, float beta,
                                         float eps) {
  const float linear = __fmul_rn(beta, x);
  if (x > 0) return __fmaf_rn(__fmul_rn(positive, x), x, linear);
  return __fmaf_rn(__fsub_rn(expm1f(x < eps ? x : eps), x), negative, linear);
}

// silu(gate) * up. The quick division has no slow path, which would keep
// elements from being worked on side by side; it is good to 2 ulp of fp32.
__device__ __forceinline__ float SiluMulOf(float gate, float up) {
  return __fmul_rn(__fdividef(gate, __fadd_rn(1.0f, expf(-gate))), up);
}

// gelu(gate) * up, with erfc of the negated value: 1 + erf(x) would cancel
// below zero.
__device__ __forceinline__ float GeluMulOf(float gate, float up) {
  constexpr float kRootOfHalf = 0.70710678f;
  const float tail = erfcf(__fmul_rn(gate, -kRootOfHalf));
  return __fmul_rn(__fmul_rn(__fmul_rn(gate, 0.5f), tail), up);
}

}  // namespace baton::cuda
