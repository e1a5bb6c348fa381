// SPDX-License-Identifier: Apache-2.0
// Sixteen floats in an AVX512 register. For files compiled with AVX512 only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "runtime/tensor/dtype.h"

namespace baton::cpu {
namespace {

struct Vec {
  static constexpr int64_t kLanes = 16;
  using F = __m512;
  using Mask = __mmask16;

  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static F Load(const bf16* p) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
  }
  static void Store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static void Store(bf16* p, F v) {
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(p),
        _mm512_cvtepi32_epi16(_mm512_srli_epi32(RoundBits(v), 16)));
  }
  static F Set(float v) { return _mm512_set1_ps(v); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  // b where they do not compare.
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static F Min(F a, F b) { return _mm512_min_ps(a, b); }
  static F Nearest(F a) {
    return _mm512_roundscale_ps(a,
                                _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // 2^n for whole n in [-127, 127]; 0 for -127.
  static F Pow2(F n) {
    const __m512i e =
        _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
  }
  static Mask Less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static F Select(Mask m, F yes, F no) {
    return _mm512_mask_blend_ps(m, no, yes);
  }
  // Bit `bit` of the whole number n is set.
  static Mask HasBit(F n, int bit) {
    return _mm512_test_epi32_mask(_mm512_cvtps_epi32(n),
                                  _mm512_set1_epi32(bit));
  }
  // Lane 0 + 8, 1 + 9, ..., then 4, 2, 1 apart.
  static float SumLanes(F v) {
    __m256 a =
        _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b =
        _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    b = _mm_add_ss(b, _mm_movehdup_ps(b));
    return _mm_cvtss_f32(b);
  }
  static float Sqrt(float v) {
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(v)));
  }

 private:
  // The bf16 of each lane, to nearest even, in its upper half.
  static __m512i RoundBits(F v) {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q),
                                   rounded, quiet);
  }
};

}  // namespace
}  // namespace baton::cpu
