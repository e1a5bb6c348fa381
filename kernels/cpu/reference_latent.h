// SPDX-License-Identifier: Apache-2.0
// The definition of attention over latents. For reference.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/inner.h"
#include "kernels/cpu/reference_lanes.h"

namespace baton::cpu {
namespace {

template <typename T>
const T* TokenRow(const LatentTile<T>& tile, int64_t token) {
  return reinterpret_cast<const T*>(tile.data +
                                    tile.pages[token / 16] * tile.page_bytes) +
         token % 16 * tile.width;
}

template <typename T>
float LatentScore(const LatentTile<T>& tile, int query, int64_t token) {
  const T* row = TokenRow(tile, token);
  float dot = 0;
  for (int64_t d = 0; d < tile.width; ++d) {
    const T q = d < tile.latent ? tile.latent_query[query][d]
                                : tile.shared_query[query][d - tile.latent];
    dot += static_cast<float>(q) * static_cast<float>(row[d]);
  }
  return dot * tile.scale;
}

// As AttentionQueries: spans of 64 tokens, combined in order.
template <typename T>
void LatentQueries(const LatentTile<T>& tile) {
  const int64_t n = tile.latent;
  float* total = tile.scratch;
  float* weighted = total + n;
  for (int query = 0; query < tile.queries; ++query) {
    std::fill_n(total, n, 0.0f);
    float largest = -std::numeric_limits<float>::infinity();
    float sum = 0;
    for (int64_t begin = 0; begin < tile.visible; begin += 64) {
      const int64_t tokens = std::min<int64_t>(64, tile.visible - begin);
      float weights[64];
      float top = -std::numeric_limits<float>::infinity();
      for (int64_t t = 0; t < tokens; ++t) {
        weights[t] = LatentScore(tile, query, begin + t);
        top = std::max(top, weights[t]);
      }
      float lanes[kSumLanes] = {};
      std::fill_n(weighted, n, 0.0f);
      for (int64_t t = 0; t < tokens; ++t) {
        const float p = std::exp(weights[t] - top);
        lanes[t % kSumLanes] += p;
        const T* row = TokenRow(tile, begin + t);
        for (int64_t d = 0; d < n; ++d) {
          weighted[d] += p * static_cast<float>(row[d]);
        }
      }
      const float joint = std::max(largest, top);
      const float before = std::exp(largest - joint);
      const float now = std::exp(top - joint);
      for (int64_t d = 0; d < n; ++d) {
        total[d] = total[d] * before + weighted[d] * now;
      }
      sum = sum * before + AddLanes(lanes) * now;
      largest = joint;
    }
    for (int64_t d = 0; d < n; ++d) tile.out[query][d] = T(total[d] / sum);
  }
}

}  // namespace
}  // namespace baton::cpu
