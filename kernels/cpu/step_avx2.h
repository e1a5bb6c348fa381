// SPDX-License-Identifier: Apache-2.0
// One step along K of a product: how deep it is, and how it adds. For files
// compiled with AVX2 only.
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
  static __m256 Load(const float* w) { return _mm256_loadu_ps(w); }
  static __m256 Broadcast(const float* x) { return _mm256_set1_ps(*x); }
  static __m256 Add(__m256 sum, __m256 x, __m256 w) {
    return _mm256_fmadd_ps(x, w, sum);
  }
};

// Pairs as two vectors of floats, the even k first.
struct Pair {
  __m256 even, odd;
};

template <>
struct Step<bf16> {
  static constexpr int kDepth = 2;
  static Pair Load(const bf16* w) {
    return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
  }
  static Pair Broadcast(const bf16* x) {
    int pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    return Widen(_mm256_set1_epi32(pair));
  }
  static __m256 Add(__m256 sum, const Pair& x, const Pair& w) {
    return _mm256_fmadd_ps(x.odd, w.odd, _mm256_fmadd_ps(x.even, w.even, sum));
  }

 private:
  static Pair Widen(__m256i pairs) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, upper))};
  }
};

}  // namespace
}  // namespace baton::cpu
