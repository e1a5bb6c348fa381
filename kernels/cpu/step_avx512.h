// SPDX-License-Identifier: Apache-2.0
// One step along K of a product: how deep it is, and how it adds. For files
// compiled with AVX512 only.
#pragma once

#include <immintrin.h>

#include "runtime/tensor/dtype.h"

namespace baton::cpu {
namespace {

template <typename T>
struct Step;

template <>
struct Step<float> {
  static constexpr int kDepth = 1;
  static __m512 Load(const float* w) { return _mm512_loadu_ps(w); }
  static __m512 Broadcast(const float* x) { return _mm512_set1_ps(*x); }
  static __m512 Add(__m512 sum, __m512 x, __m512 w) {
    return _mm512_fmadd_ps(x, w, sum);
  }
};

template <>
struct Step<bf16> {
  static constexpr int kDepth = 2;
  static __m512i Load(const bf16* w) { return _mm512_loadu_si512(w); }
  static __m512i Broadcast(const bf16* x) {
    int pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    return _mm512_set1_epi32(pair);
  }
  static __m512 Add(__m512 sum, __m512i x, __m512i w) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w);
  }
};

}  // namespace
}  // namespace baton::cpu
