// SPDX-License-Identifier: Apache-2.0
// The inner loops of Kimi Delta Attention on vectors: channels, and dimensions
// of values, lie in lanes; every lane goes through its own additions in order.
// Include after one of the vec_*.h.
#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/lanes_inl.h"
#include "kernels/cpu/math_inl.h"

namespace baton::cpu {
namespace {

inline F Sigmoid(F x) {
  const F one = Vec::Set(1.0f);
  return Vec::Div(one, Vec::Add(one, Exp(Vec::Sub(Vec::Set(0.0f), x))));
}

// ln(1 + t) for 0 <= t <= 1: 2 artanh(s) with s = t / (2 + t) <= 1 / 3.
inline F Log1p(F t) {
  const F s = Vec::Div(t, Vec::Add(Vec::Set(2.0f), t));
  const F z = Vec::Mul(s, s);
  F p = Vec::Set(1.0f / 17);
  for (int odd = 15; odd >= 3; odd -= 2) {
    p = Vec::Fma(p, z, Vec::Set(1.0f / static_cast<float>(odd)));
  }
  const F twice = Vec::Add(s, s);
  return Vec::Fma(Vec::Mul(twice, z), p, twice);
}

// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|).
inline F Softplus(F x) {
  const F positive = Vec::Max(Vec::Set(0.0f), x);
  const F minus = Vec::Min(Vec::Sub(Vec::Set(0.0f), x), x);
  return Vec::Add(positive, Log1p(Exp(minus)));
}

template <typename T>
void ShortConvRows(const ConvTile<T>& tile) {
  const int64_t before = tile.taps - 1;
  const auto input = [&](int64_t row) {
    return row < 0 ? tile.before + (before + row) * tile.before_stride
                   : tile.x + row * tile.x_stride;
  };
  for (int64_t c = 0; c < tile.channels; c += kLanes) {
    const int64_t left = tile.channels - c;
    const int64_t n = left < kLanes ? left : kLanes;
    for (int64_t row = 0; row < tile.rows; ++row) {
      F sum = Vec::Set(0.0f);
      for (int64_t w = 0; w < tile.taps; ++w) {
        sum = Vec::Fma(LoadTail(tile.weight + w * tile.weight_stride + c, n),
                       LoadTail(input(row - before + w) + c, n), sum);
      }
      StoreTail(tile.out + row * tile.out_stride + c,
                Vec::Mul(sum, Sigmoid(sum)), n);
    }
  }
}

template <typename T>
T* At(const Strided<T>& rows, int64_t row) {
  return rows.data + row * rows.stride;
}

// What a row of q, k and gates becomes before the recurrence.
struct Prepared {
  float* q;      // [dim]
  float* k;      // [dim]
  float* decay;  // [dim]
  float* beta;   // [1]
};

template <typename T>
Prepared PreparedRow(const DeltaTile<T>& tile, int64_t in_run) {
  float* row = tile.scratch + in_run * (3 * tile.dim + 1);
  return {row, row + tile.dim, row + 2 * tile.dim, row + 3 * tile.dim};
}

template <typename T>
void Prepare(const DeltaTile<T>& tile, int64_t row, const Prepared& to) {
  const auto inverse = [&](const T* x) {
    return Vec::Set(1.0f / Vec::Sqrt(SumSquares(x, tile.dim) + 1e-6f));
  };
  const T* q = At(tile.q, row);
  const T* k = At(tile.k, row);
  const T* decay = At(tile.decay, row);
  const F q_inverse = inverse(q);
  const F k_inverse = inverse(k);
  const F q_scale = Vec::Set(tile.q_scale);
  const F rate = Vec::Set(-tile.rate);
  for (int64_t d = 0; d < tile.dim; d += kLanes) {
    const int64_t n = tile.dim - d < kLanes ? tile.dim - d : kLanes;
    StoreTail(to.q + d,
              Vec::Mul(Vec::Mul(LoadTail(q + d, n), q_inverse), q_scale), n);
    StoreTail(to.k + d, Vec::Mul(LoadTail(k + d, n), k_inverse), n);
    const F z =
        Vec::Add(LoadTail(decay + d, n), LoadTail(tile.decay_bias + d, n));
    StoreTail(to.decay + d, Exp(Vec::Mul(rate, Softplus(z))), n);
  }
  StoreTail(to.beta, Sigmoid(LoadTail(At(tile.beta, row), 1)), 1);
}

// Columns [column, column + n) of the state through `rows` prepared rows that
// begin at `first`. n fills kVectors vectors, or less than one.
template <typename T, int kVectors>
void DeltaColumns(const DeltaTile<T>& tile, int64_t first, int64_t rows,
                  int64_t column, int64_t n) {
  const int64_t each = kVectors > 1 ? kLanes : n;
  for (int64_t row = 0; row < rows; ++row) {
    const Prepared p = PreparedRow(tile, row);
    F predicted[kVectors], update[kVectors], out[kVectors];
    for (int v = 0; v < kVectors; ++v) predicted[v] = out[v] = Vec::Set(0.0f);
    for (int64_t d = 0; d < tile.dim; ++d) {
      float* s = tile.state + d * tile.dim + column;
      const F decay = Vec::Set(p.decay[d]);
      const F k = Vec::Set(p.k[d]);
      for (int v = 0; v < kVectors; ++v) {
        const F decayed = Vec::Mul(LoadTail(s + v * kLanes, each), decay);
        StoreTail(s + v * kLanes, decayed, each);
        predicted[v] = Vec::Fma(k, decayed, predicted[v]);
      }
    }
    const F beta = Vec::Set(*p.beta);
    const T* value = At(tile.v, first + row) + column;
    for (int v = 0; v < kVectors; ++v) {
      update[v] = Vec::Mul(
          beta, Vec::Sub(LoadTail(value + v * kLanes, each), predicted[v]));
    }
    for (int64_t d = 0; d < tile.dim; ++d) {
      float* s = tile.state + d * tile.dim + column;
      const F k = Vec::Set(p.k[d]);
      const F q = Vec::Set(p.q[d]);
      for (int v = 0; v < kVectors; ++v) {
        const F now = Vec::Fma(k, update[v], LoadTail(s + v * kLanes, each));
        StoreTail(s + v * kLanes, now, each);
        out[v] = Vec::Fma(q, now, out[v]);
      }
    }
    T* to = At(tile.out, first + row) + column;
    for (int v = 0; v < kVectors; ++v) {
      StoreTail(to + v * kLanes, out[v], each);
    }
  }
}

// A block of columns stays in the nearest cache for a run of rows.
template <typename T>
void DeltaRuleRows(const DeltaTile<T>& tile) {
  constexpr int kVectors = 4;
  constexpr int64_t kRun = DeltaTile<T>::kRun;
  for (int64_t first = 0; first < tile.rows; first += kRun) {
    const int64_t left = tile.rows - first;
    const int64_t rows = left < kRun ? left : kRun;
    for (int64_t row = 0; row < rows; ++row) {
      Prepare(tile, first + row, PreparedRow(tile, row));
    }
    int64_t column = 0;
    for (; column + kVectors * kLanes <= tile.dim;
         column += kVectors * kLanes) {
      DeltaColumns<T, kVectors>(tile, first, rows, column, kVectors * kLanes);
    }
    for (; column < tile.dim; column += kLanes) {
      const int64_t n = tile.dim - column;
      DeltaColumns<T, 1>(tile, first, rows, column, n < kLanes ? n : kLanes);
    }
  }
}

template <typename T>
void GatedRmsNormRow(const T* x, const float* weight, const T* gate, T* out,
                     int64_t n, float eps) {
  const float mean = SumSquares(x, n) / static_cast<float>(n);
  const F scale = Vec::Set(1.0f / Vec::Sqrt(mean + eps));
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = n - i < kLanes ? n - i : kLanes;
    const F normed = Vec::Mul(LoadTail(weight + i, count),
                              Vec::Mul(LoadTail(x + i, count), scale));
    StoreTail(out + i, Vec::Mul(normed, Sigmoid(LoadTail(gate + i, count))),
              count);
  }
}

}  // namespace
}  // namespace baton::cpu
