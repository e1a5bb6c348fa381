// SPDX-License-Identifier: Apache-2.0
// Eight floats in an AVX register. For files compiled with AVX2 and FMA only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "runtime/tensor/dtype.h"

namespace baton::cpu {
namespace {

struct Vec {
  static constexpr int64_t kLanes = 8;
  using F = __m256;
  using Mask = __m256;

  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static F Load(const bf16* p) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
  }
  static void Store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static void Store(bf16* p, F v) {
    const __m256i bits = _mm256_srli_epi32(RoundBits(v), 16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(bits),
                                      _mm256_extracti128_si256(bits, 1)));
  }
  static F Set(float v) { return _mm256_set1_ps(v); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  // b where they do not compare.
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static F Min(F a, F b) { return _mm256_min_ps(a, b); }
  static F Nearest(F a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // 2^n for whole n in [-127, 127]; 0 for -127.
  static F Pow2(F n) {
    const __m256i e =
        _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
  }
  static Mask Less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static F Select(Mask m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }
  // Bit `bit` of the whole number n is set.
  static Mask HasBit(F n, int bit) {
    const __m256i b = _mm256_set1_epi32(bit);
    return _mm256_castsi256_ps(
        _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_cvtps_epi32(n), b), b));
  }
  // Lanes 4, then 2, then 1 apart.
  static float SumLanes(F v) {
    __m128 b =
        _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    b = _mm_add_ss(b, _mm_movehdup_ps(b));
    return _mm_cvtss_f32(b);
  }
  static float Sqrt(float v) {
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(v)));
  }

 private:
  // The bf16 of each lane, to nearest even, in its upper half.
  static __m256i RoundBits(F v) {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    return _mm256_castps_si256(_mm256_blendv_ps(
        _mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet),
        _mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  }
};

}  // namespace
}  // namespace baton::cpu
