// SPDX-License-Identifier: Apache-2.0
// Functions of vectors. Include after one of the vec_*.h.
#pragma once

namespace baton::cpu {
namespace {

using F = Vec::F;

// e^r - 1 for |r| <= ln(2) / 2: r + r^2 times a polynomial.
inline F Expm1Small(F r) {
  F p = Vec::Set(1.9875691500e-4f);
  p = Vec::Fma(p, r, Vec::Set(1.3981999507e-3f));
  p = Vec::Fma(p, r, Vec::Set(8.3334519073e-3f));
  p = Vec::Fma(p, r, Vec::Set(4.1665795894e-2f));
  p = Vec::Fma(p, r, Vec::Set(1.6666665459e-1f));
  p = Vec::Fma(p, r, Vec::Set(5.0000001201e-1f));
  return Vec::Fma(Vec::Mul(r, r), p, r);
}

// x = n ln(2) + r.
struct Split {
  F n, r;
};
inline Split SplitLn2(F x) {
  const F n = Vec::Nearest(Vec::Mul(x, Vec::Set(1.44269504088896341f)));
  F r = Vec::Fma(n, Vec::Set(-0.693359375f), x);
  r = Vec::Fma(n, Vec::Set(2.12194440e-4f), r);
  return {n, r};
}

// e^x to a few ulp; 0 below -87, e^88 above 88, NaN for NaN.
inline F Exp(F x) {
  const F clamped = Vec::Min(Vec::Set(88.0f), Vec::Max(Vec::Set(-88.0f), x));
  const Split s = SplitLn2(clamped);
  const F y =
      Vec::Mul(Vec::Add(Expm1Small(s.r), Vec::Set(1.0f)), Vec::Pow2(s.n));
  return Vec::Select(Vec::Less(x, Vec::Set(-87.0f)), Vec::Set(0.0f), y);
}

// e^x - 1 for x <= 88, without cancellation near 0.
inline F Expm1(F x) {
  const Split s = SplitLn2(Vec::Max(Vec::Set(-40.0f), x));
  const F scale = Vec::Pow2(s.n);
  return Vec::Fma(Expm1Small(s.r), scale, Vec::Sub(scale, Vec::Set(1.0f)));
}

// erfc(t) for t >= 0, relative error under 2e-6 where it is above 1e-30 and
// 0 from there on: e^(-t^2) times a polynomial in w = (t - 3) / (t + 3), which
// was fitted to e^(t^2) erfc(t) on [0, 9.6] with relative weights.
inline F Erfc(F t) {
  const F three = Vec::Set(3.0f);
  const F w = Vec::Div(Vec::Sub(t, three), Vec::Add(t, three));
  F p = Vec::Set(-7.383439115e-5f);
  p = Vec::Fma(p, w, Vec::Set(-5.988819680e-4f));
  p = Vec::Fma(p, w, Vec::Set(7.882454140e-4f));
  p = Vec::Fma(p, w, Vec::Set(4.285734867e-3f));
  p = Vec::Fma(p, w, Vec::Set(-2.441303221e-2f));
  p = Vec::Fma(p, w, Vec::Set(7.166195170e-2f));
  p = Vec::Fma(p, w, Vec::Set(-1.501137493e-1f));
  p = Vec::Fma(p, w, Vec::Set(2.456040184e-1f));
  p = Vec::Fma(p, w, Vec::Set(-3.262336284e-1f));
  p = Vec::Fma(p, w, Vec::Set(1.790011501e-1f));
  return Vec::Mul(p, Exp(Vec::Sub(Vec::Set(0.0f), Vec::Mul(t, t))));
}

// sin and cos of a >= 0 up to 2^21: a = n pi/2 + r, |r| <= pi/4, with pi/2 in
// three parts so that the difference is exact to the last bits of r.
inline void SinCos(F a, F& sin, F& cos) {
  const F n = Vec::Nearest(Vec::Mul(a, Vec::Set(0.636619772367581343f)));
  F r = Vec::Fma(n, Vec::Set(-1.57079637050628662109375f), a);
  r = Vec::Fma(n, Vec::Set(4.37113900018624283e-8f), r);
  r = Vec::Fma(n, Vec::Set(1.71512451e-15f), r);
  const F z = Vec::Mul(r, r);
  F s = Vec::Set(-1.9515295891e-4f);
  s = Vec::Fma(s, z, Vec::Set(8.3321608736e-3f));
  s = Vec::Fma(s, z, Vec::Set(-1.6666654611e-1f));
  s = Vec::Fma(Vec::Mul(s, z), r, r);
  F c = Vec::Set(2.443315711809948e-5f);
  c = Vec::Fma(c, z, Vec::Set(-1.388731625493765e-3f));
  c = Vec::Fma(c, z, Vec::Set(4.166664568298827e-2f));
  c = Vec::Fma(Vec::Mul(c, z), z, Vec::Fma(z, Vec::Set(-0.5f), Vec::Set(1)));
  const Vec::Mask odd = Vec::HasBit(n, 1);
  const F zero = Vec::Set(0.0f);
  const F sin_part = Vec::Select(odd, c, s);
  const F cos_part = Vec::Select(odd, s, c);
  // Quadrants 2, 3 negate the sine; 1, 2 the cosine.
  sin = Vec::Select(Vec::HasBit(n, 2), Vec::Sub(zero, sin_part), sin_part);
  cos = Vec::Select(Vec::HasBit(Vec::Add(n, Vec::Set(1.0f)), 2),
                    Vec::Sub(zero, cos_part), cos_part);
}

}  // namespace
}  // namespace baton::cpu
