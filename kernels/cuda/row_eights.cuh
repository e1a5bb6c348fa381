// SPDX-License-Identifier: Apache-2.0
// Eight elements of a row, of bf16 or f32, as row kernels keep them.
#pragma once

#include <type_traits>

#include "kernels/cuda/common.cuh"

namespace baton::cuda {

// Whether 16-byte accesses suit a row of `size` at p, of bf16 or f32.
inline bool SuitsVectors(const void* p, int64_t stride, int64_t size) {
  return IsAligned(p, 16) && stride % 8 == 0 && size % 8 == 0;
}

// Of uint16_t, which stands for bf16: packed.
template <typename T>
struct EightOf {
  using Type = uint4;
};
template <>
struct EightOf<float> {
  struct Type {
    float x[8];
  };
};
template <typename T>
using Eight = typename EightOf<T>::Type;

// Bits that are there when all of `value` is.
__device__ __forceinline__ uint32_t AnyWord(const uint4& value) {
  return value.x;
}
__device__ __forceinline__ uint32_t AnyWord(const Eight<float>& value) {
  return __float_as_uint(value.x[0]) | __float_as_uint(value.x[4]);
}

template <bool kVectors>
__device__ __forceinline__ Eight<float> LoadEight(const float* row, int64_t at,
                                                  int64_t n) {
  Eight<float> value = {};
  if constexpr (kVectors) {
    if (at >= n) return value;
    const uint4 words[2] = {Load16(row + at), Load16(row + at + 4)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      value.x[4 * i] = __uint_as_float(words[i].x);
      value.x[4 * i + 1] = __uint_as_float(words[i].y);
      value.x[4 * i + 2] = __uint_as_float(words[i].z);
      value.x[4 * i + 3] = __uint_as_float(words[i].w);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (at + i < n) value.x[i] = __ldcg(row + at + i);
    }
  }
  return value;
}
template <bool kVectors>
__device__ __forceinline__ void StoreEight(float* row, int64_t at, int64_t n,
                                           const Eight<float>& value) {
  if constexpr (kVectors) {
    if (at >= n) return;
    auto* to = reinterpret_cast<float4*>(row + at);
    to[0] = {value.x[0], value.x[1], value.x[2], value.x[3]};
    to[1] = {value.x[4], value.x[5], value.x[6], value.x[7]};
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (at + i < n) row[at + i] = value.x[i];
    }
  }
}
__device__ __forceinline__ void Unpack(const Eight<float>& v, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = v.x[i];
}
// Rounds to T.
template <typename T>
__device__ __forceinline__ Eight<T> PackTo(const float (&x)[8]) {
  if constexpr (std::is_same_v<T, float>) {
    Eight<float> v;
#pragma unroll
    for (int i = 0; i < 8; ++i) v.x[i] = x[i];
    return v;
  } else {
    return Pack(x);
  }
}

}  // namespace baton::cuda
