// SPDX-License-Identifier: Apache-2.0
// The element-wise inner loops on vectors. Include after one of the vec_*.h.
#pragma once

#include "kernels/cpu/delta_inl.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/lanes_inl.h"
#include "kernels/cpu/math_inl.h"

namespace baton::cpu {
namespace {

template <typename S, typename T>
void RmsNormRow(const S* x, const T* weight, T* out, int64_t n, float eps) {
  const float mean = SumSquares(x, n) / static_cast<float>(n);
  const F scale = Vec::Set(1.0f / Vec::Sqrt(mean + eps));
  Map(x, weight, out, n,
      [&](F v, F w) { return Vec::Mul(w, Vec::Mul(v, scale)); });
}

template <typename S, typename T>
void AddRow(S* stream, const T* update, int64_t n) {
  Map(stream, update, stream, n, [](F a, F b) { return Vec::Add(a, b); });
}

template <typename T>
void SiluMulRow(const T* gate, const T* up, T* out, int64_t n) {
  const F one = Vec::Set(1.0f);
  Map(gate, up, out, n, [&](F g, F u) {
    const F below = Vec::Add(one, Exp(Vec::Sub(Vec::Set(0.0f), g)));
    return Vec::Mul(Vec::Div(g, below), u);
  });
}

template <typename T>
void GeluMulRow(const T* gate, const T* up, T* out, int64_t n) {
  const F one = Vec::Set(1.0f);
  Map(gate, up, out, n, [&](F g, F u) {
    const F minus = Vec::Sub(Vec::Set(0.0f), g);
    const F t = Vec::Mul(Vec::Max(g, minus), Vec::Set(0.707106781186547524f));
    // The part of a normal distribution beyond |g|.
    const F beyond = Vec::Mul(Vec::Set(0.5f), Erfc(t));
    const Vec::Mask below = Vec::Less(g, Vec::Set(0.0f));
    const F share = Vec::Select(below, beyond, Vec::Sub(one, beyond));
    return Vec::Mul(Vec::Mul(g, share), u);
  });
}

template <typename T>
void Relu2Row(const T* x, T* out, int64_t n) {
  Map(x, x, out, n, [](F v, F) {
    const F r = Vec::Max(Vec::Set(0.0f), v);
    return Vec::Mul(r, r);
  });
}

template <typename T>
void XieluRow(const T* x, T* out, int64_t n, const XieluConstants& c) {
  const F positive = Vec::Set(c.positive);
  const F negative = Vec::Set(c.negative);
  const F beta = Vec::Set(c.beta);
  const F eps = Vec::Set(c.eps);
  Map(x, x, out, n, [&](F v, F) {
    const F linear = Vec::Mul(beta, v);
    const F above = Vec::Fma(Vec::Mul(positive, v), v, linear);
    const F below =
        Vec::Fma(Vec::Sub(Expm1(Vec::Min(eps, v)), v), negative, linear);
    return Vec::Select(Vec::Less(Vec::Set(0.0f), v), above, below);
  });
}

template <typename T>
void RopeAngles(const float* inv_freq, int32_t position, float amplitude,
                float* cos, float* sin, int64_t half) {
  const F at = Vec::Set(static_cast<float>(position));
  const F scale = Vec::Set(amplitude);
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = half - i < kLanes ? half - i : kLanes;
    F s, c;
    SinCos(Vec::Mul(at, LoadTail(inv_freq + i, n)), s, c);
    StoreTail(cos + i, Vec::Mul(c, scale), n);
    StoreTail(sin + i, Vec::Mul(s, scale), n);
  }
}

template <typename T>
void RopeHead(T* head, const float* cos, const float* sin, int64_t half) {
  T* other = head + half;
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = half - i < kLanes ? half - i : kLanes;
    const F a = LoadTail(head + i, n);
    const F b = LoadTail(other + i, n);
    const F c = LoadTail(cos + i, n);
    const F s = LoadTail(sin + i, n);
    const F minus = Vec::Sub(Vec::Set(0.0f), b);
    StoreTail(head + i, Vec::Fma(a, c, Vec::Mul(minus, s)), n);
    StoreTail(other + i, Vec::Fma(b, c, Vec::Mul(a, s)), n);
  }
}

template <typename T>
void NarrowRow(const float* x, T* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Vec::Store(out + i, Vec::Load(x + i));
  if (i < n) StoreTail(out + i, LoadTail(x + i, n - i), n - i);
}

// The largest of n > 0 values; NaNs do not count.
inline float MaxOf(const float* x, int64_t n) {
  float lanes[kLanes];
  F best = Vec::Set(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) best = Vec::Max(Vec::Load(x + i), best);
  Vec::Store(lanes, best);
  float largest = lanes[0];
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

// In short runs of float lanes that are added up in double.
inline double SumExp(const float* x, float shift, float factor, int64_t n) {
  constexpr int64_t kRun = 32 * kLanes;
  const F base = Vec::Set(shift);
  const F scale = Vec::Set(factor);
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kRun) {
    const int64_t end = begin + kRun < n ? begin + kRun : n;
    F lanes = Vec::Set(0.0f);
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const F z = Vec::Mul(Vec::Sub(Vec::Load(x + i), base), scale);
      lanes = Vec::Add(lanes, Exp(z));
    }
    for (; i < end; ++i) {
      float one[kLanes];
      Vec::Store(one, Exp(Vec::Mul(Vec::Sub(Vec::Set(x[i]), base), scale)));
      sum += static_cast<double>(one[0]);
    }
    sum += static_cast<double>(Vec::SumLanes(lanes));
  }
  return sum;
}

// The table of this instruction set: these loops, and the three given.
template <typename T>
constexpr InnerLoops<T> LoopsWith(
    void (*matmul)(const MatmulTile<T>&),
    void (*attention)(const AttentionTile<T>&),
    void (*latent_attention)(const LatentTile<T>&)) {
  return {
      .rms_norm = &RmsNormRow<T, T>,
      .add = &AddRow<T, T>,
      .wide_rms_norm = &RmsNormRow<float, T>,
      .wide_add = &AddRow<float, T>,
      .silu_mul = &SiluMulRow<T>,
      .gelu_mul = &GeluMulRow<T>,
      .relu2 = &Relu2Row<T>,
      .xielu = &XieluRow<T>,
      .rope_angles = &RopeAngles<T>,
      .rope = &RopeHead<T>,
      .narrow = &NarrowRow<T>,
      .matmul = matmul,
      .attention = attention,
      .latent_attention = latent_attention,
      .short_conv = &ShortConvRows<T>,
      .delta_rule = &DeltaRuleRows<T>,
      .gated_rms_norm = &GatedRmsNormRow<T>,
      .max = &MaxOf,
      .sum_exp = &SumExp,
  };
}

}  // namespace
}  // namespace baton::cpu
