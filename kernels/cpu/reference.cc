// SPDX-License-Identifier: Apache-2.0
// The reference: plain loops in float. It is the definition of every op; the
// fast loops are tested against it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/inner.h"
#include "kernels/cpu/reference_delta.h"
#include "kernels/cpu/reference_lanes.h"
#include "kernels/cpu/reference_latent.h"

namespace baton::cpu {
namespace {

template <typename S, typename T>
void RmsNormRow(const S* x, const T* weight, T* out, int64_t n, float eps) {
  const float mean = SumSquares(x, n) / static_cast<float>(n);
  const float scale = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < n; ++i) {
    const float normed = static_cast<float>(x[i]) * scale;
    out[i] = T(static_cast<float>(weight[i]) * normed);
  }
}

template <typename S, typename T>
void AddRow(S* stream, const T* update, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    stream[i] =
        S(static_cast<float>(stream[i]) + static_cast<float>(update[i]));
  }
}

template <typename T>
void SiluMulRow(const T* gate, const T* up, T* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = static_cast<float>(gate[i]);
    const float silu = g / (1.0f + std::exp(-g));
    out[i] = T(silu * static_cast<float>(up[i]));
  }
}

template <typename T>
void GeluMulRow(const T* gate, const T* up, T* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = static_cast<float>(gate[i]);
    const float gelu = g * 0.5f * std::erfc(g * -std::sqrt(0.5f));
    out[i] = T(gelu * static_cast<float>(up[i]));
  }
}

template <typename T>
void Relu2Row(const T* x, T* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = static_cast<float>(x[i]);
    const float r = v < 0 ? 0.0f : v;
    out[i] = T(r * r);
  }
}

template <typename T>
void XieluRow(const T* x, T* out, int64_t n, const XieluConstants& c) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = static_cast<float>(x[i]);
    const float y =
        v > 0
            ? c.positive * v * v + c.beta * v
            : (std::expm1(v < c.eps ? v : c.eps) - v) * c.negative + c.beta * v;
    out[i] = T(y);
  }
}

template <typename T>
void RopeAngles(const float* inv_freq, int32_t position, float amplitude,
                float* cos, float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    cos[i] = std::cos(angle) * amplitude;
    sin[i] = std::sin(angle) * amplitude;
  }
}

template <typename T>
void RopeHead(T* head, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = static_cast<float>(head[i]);
    const float b = static_cast<float>(head[i + half]);
    head[i] = T(a * cos[i] - b * sin[i]);
    head[i + half] = T(b * cos[i] + a * sin[i]);
  }
}

template <typename T>
void Narrow(const float* x, T* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(x[i]);
}

// Element (k, output) of a packed block.
float Packed(const float* block, int64_t k, int64_t output) {
  return block[k * 64 + output];
}
float Packed(const bf16* block, int64_t k, int64_t output) {
  return static_cast<float>(block[((k / 2) * 64 + output) * 2 + k % 2]);
}

template <typename T>
float Dot(const T* x, const T* block, int64_t output, int64_t begin,
          int64_t end) {
  float sum = 0;
  for (int64_t k = begin; k < end; ++k) {
    sum += static_cast<float>(x[k]) * Packed(block, k, output);
  }
  return sum;
}

// Leaves [first, first + count) of one output, as a balanced tree.
template <typename T>
float DotTree(const T* x, const T* block, int64_t output, int64_t leaf,
              int first, int count) {
  if (count == 1) {
    return Dot(x, block, output, first * leaf, (first + 1) * leaf);
  }
  const int half = count / 2;
  return DotTree(x, block, output, leaf, first, half) +
         DotTree(x, block, output, leaf, first + half, half);
}

template <typename T>
void MatmulBlock(const MatmulTile<T>& tile) {
  const int64_t leaf = tile.k / tile.leaves;
  for (int64_t row = 0; row < tile.rows; ++row) {
    const T* x = tile.x + row * tile.x_stride;
    for (int64_t output = 0; output < 64; ++output) {
      tile.out[row * 64 + output] =
          DotTree(x, tile.block, output, leaf, 0, tile.leaves);
    }
  }
}

float MaxOf(const float* x, int64_t n) {
  float best = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] > best) best = x[i];
  }
  return best;
}

double SumExp(const float* x, float shift, float factor, int64_t n) {
  double lanes[kSumLanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    lanes[i % kSumLanes] +=
        static_cast<double>(std::exp((x[i] - shift) * factor));
  }
  return AddLanes(lanes);
}

// Dimension d of the key of `slot` in a page, in its head's block.
float Key(const float* keys, int64_t slot, int64_t d) {
  return keys[d * 16 + slot];
}
float Key(const bf16* keys, int64_t slot, int64_t d) {
  return static_cast<float>(keys[((d / 2) * 16 + slot) * 2 + d % 2]);
}

// Keys [begin, end) of a span of 64 for one query: the largest score, the sum
// of weights e^(score - largest), and the weighted sum of values.
template <typename T>
struct Span {
  float largest;
  float sum;

  Span(const AttentionTile<T>& tile, int query, int64_t begin, int64_t end,
       float* weighted) {
    float weight[64];
    largest = -std::numeric_limits<float>::infinity();
    for (int64_t t = begin; t < end; ++t) {
      const T* keys = Page(tile, tile.keys, t);
      float dot = 0;
      for (int64_t d = 0; d < tile.head_dim; ++d) {
        dot += static_cast<float>(tile.query[query][d]) * Key(keys, t % 16, d);
      }
      weight[t % 64] = dot * tile.scale;
      largest = std::max(largest, weight[t % 64]);
    }
    float lanes[kSumLanes] = {};
    std::fill_n(weighted, tile.head_dim, 0.0f);
    for (int64_t t = begin; t < end; ++t) {
      const float p = std::exp(weight[t % 64] - largest);
      lanes[t % kSumLanes] += p;
      const T* value = Page(tile, tile.values, t) + (t % 16) * tile.head_dim;
      for (int64_t d = 0; d < tile.head_dim; ++d) {
        weighted[d] += p * static_cast<float>(value[d]);
      }
    }
    sum = AddLanes(lanes);
  }

  static const T* Page(const AttentionTile<T>& tile, const std::byte* base,
                       int64_t t) {
    return reinterpret_cast<const T*>(base +
                                      tile.pages[t / 16] * tile.page_bytes);
  }
};

template <typename T>
void AttentionQueries(const AttentionTile<T>& tile) {
  float* total = tile.scratch;
  float* weighted = tile.scratch + tile.head_dim;
  for (int query = 0; query < tile.queries; ++query) {
    std::fill_n(total, tile.head_dim, 0.0f);
    float largest = -std::numeric_limits<float>::infinity();
    float sum = 0;
    const int64_t first = tile.first[query];
    for (int64_t begin = first / 64 * 64; begin < tile.visible[query];
         begin += 64) {
      const int64_t end = std::min(begin + 64, tile.visible[query]);
      const Span<T> span(tile, query, std::max(begin, first), end, weighted);
      const float joint = std::max(largest, span.largest);
      const float before = std::exp(largest - joint);
      const float now = std::exp(span.largest - joint);
      for (int64_t d = 0; d < tile.head_dim; ++d) {
        total[d] = total[d] * before + weighted[d] * now;
      }
      sum = sum * before + span.sum * now;
      largest = joint;
    }
    for (int64_t d = 0; d < tile.head_dim; ++d) {
      tile.out[query][d] = T(total[d] / sum);
    }
  }
}

template <typename T>
constexpr InnerLoops<T> kLoops = {
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
    .narrow = &Narrow<T>,
    .matmul = &MatmulBlock<T>,
    .attention = &AttentionQueries<T>,
    .latent_attention = &LatentQueries<T>,
    .short_conv = &ShortConvRows<T>,
    .delta_rule = &DeltaRuleRows<T>,
    .gated_rms_norm = &GatedRmsNormRow<T>,
    .max = &MaxOf,
    .sum_exp = &SumExp,
};

}  // namespace

const InnerLoops<float> kReferenceF32 = kLoops<float>;
const InnerLoops<bf16> kReferenceBF16 = kLoops<bf16>;

}  // namespace baton::cpu
