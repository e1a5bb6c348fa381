// SPDX-License-Identifier: Apache-2.0
// The definition of the ops of Kimi Delta Attention. For reference.cc.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cpu/inner.h"
#include "kernels/cpu/reference_lanes.h"

namespace baton::cpu {
namespace {

inline float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// ln(1 + e^x).
inline float Softplus(float x) {
  return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x)));
}

template <typename T>
void ShortConvRows(const ConvTile<T>& tile) {
  const int64_t before = tile.taps - 1;
  for (int64_t row = 0; row < tile.rows; ++row) {
    for (int64_t c = 0; c < tile.channels; ++c) {
      float sum = 0;
      for (int64_t w = 0; w < tile.taps; ++w) {
        const int64_t from = row - before + w;
        const T u = from < 0
                        ? tile.before[(before + from) * tile.before_stride + c]
                        : tile.x[from * tile.x_stride + c];
        sum += tile.weight[w * tile.weight_stride + c] * static_cast<float>(u);
      }
      tile.out[row * tile.out_stride + c] = T(sum * Sigmoid(sum));
    }
  }
}

template <typename T>
float At(const Strided<T>& rows, int64_t row, int64_t i) {
  return static_cast<float>(rows.data[row * rows.stride + i]);
}

// x / sqrt(sum(x^2) + 1e-6), times scale.
template <typename T>
void L2Normed(const Strided<const T>& x, int64_t row, float scale, float* out,
              int64_t n) {
  const float squares = SumSquares(x.data + row * x.stride, n);
  const float inverse = 1.0f / std::sqrt(squares + 1e-6f);
  for (int64_t i = 0; i < n; ++i) out[i] = At(x, row, i) * inverse * scale;
}

template <typename T>
void DeltaRuleRows(const DeltaTile<T>& tile) {
  const int64_t dim = tile.dim;
  float* q = tile.scratch;
  float* k = q + dim;
  float* decay = k + dim;
  for (int64_t row = 0; row < tile.rows; ++row) {
    L2Normed(tile.q, row, tile.q_scale, q, dim);
    L2Normed(tile.k, row, 1, k, dim);
    for (int64_t d = 0; d < dim; ++d) {
      const float z = At(tile.decay, row, d) + tile.decay_bias[d];
      decay[d] = std::exp(-tile.rate * Softplus(z));
    }
    const float beta = Sigmoid(At(tile.beta, row, 0));
    for (int64_t j = 0; j < dim; ++j) {
      float predicted = 0;
      for (int64_t d = 0; d < dim; ++d) {
        float& s = tile.state[d * dim + j];
        s *= decay[d];
        predicted += k[d] * s;
      }
      const float update = beta * (At(tile.v, row, j) - predicted);
      float out = 0;
      for (int64_t d = 0; d < dim; ++d) {
        float& s = tile.state[d * dim + j];
        s += k[d] * update;
        out += q[d] * s;
      }
      tile.out.data[row * tile.out.stride + j] = T(out);
    }
  }
}

template <typename T>
void GatedRmsNormRow(const T* x, const float* weight, const T* gate, T* out,
                     int64_t n, float eps) {
  const float mean = SumSquares(x, n) / static_cast<float>(n);
  const float scale = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < n; ++i) {
    const float normed = weight[i] * (static_cast<float>(x[i]) * scale);
    out[i] = T(normed * Sigmoid(static_cast<float>(gate[i])));
  }
}

}  // namespace
}  // namespace baton::cpu
