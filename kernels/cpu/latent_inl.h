// SPDX-License-Identifier: Apache-2.0
// Attention over latents on vectors: dimensions lie in lanes, for scores and
// for sums. Queries of a row share the loads; each goes through its own
// additions in the same order however many do. Include after a vec_*.h and a
// step_*.h.
#pragma once

#include <cstring>

#include "kernels/cpu/attention_inl.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/lanes_inl.h"

namespace baton::cpu {
namespace {

// State of all queries of a tile, in its scratch.
template <typename T>
struct LatentState {
  explicit LatentState(const LatentTile<T>& tile)
      : stride((tile.width + 15) / 16 * 16),
        query(tile.scratch),
        total(query + tile.queries * stride),
        weighted(total + tile.queries * tile.latent),
        weights(weighted + tile.queries * tile.latent),
        largest(weights + tile.queries * kSpan),
        sum(largest + tile.queries) {
    const int64_t shared = tile.width - tile.latent;
    for (int q = 0; q < tile.queries; ++q) {
      float* to = query + q * stride;
      for (int64_t d = 0; d < stride; ++d) to[d] = 0;
      Widen(tile.latent_query[q], to, tile.latent);
      Widen(tile.shared_query[q], to + tile.latent, shared);
      for (int64_t d = 0; d < tile.latent; ++d) total[q * tile.latent + d] = 0;
      largest[q] = -kInfinity;
      sum[q] = 0;
    }
  }

  static void Widen(const T* from, float* to, int64_t n) {
    for (int64_t d = 0; d < n; d += kLanes) {
      const int64_t left = n - d < kLanes ? n - d : kLanes;
      StoreTail(to + d, LoadTail(from + d, left), left);
    }
  }

  int64_t stride;   // of queries: width, padded to whole vectors
  float* query;     // [queries][stride], zeros behind width
  float* total;     // [queries][latent], of the spans so far
  float* weighted;  // [queries][latent], of this span
  float* weights;   // [queries][64], scores, then e^(score - largest)
  float* largest;   // [queries]
  float* sum;       // [queries]
};

// The row of a token.
template <typename T>
const T* TokenRow(const LatentTile<T>& tile, int64_t token) {
  return reinterpret_cast<const T*>(tile.data + tile.pages[token / kPage] *
                                                    tile.page_bytes) +
         token % kPage * tile.width;
}

// Scores of kQueries queries for kKeys tokens from `token` on.
template <typename T, int kQueries, int kKeys>
void LatentScores(const LatentTile<T>& tile, const LatentState<T>& state,
                  int query, int64_t token, float* to) {
  F sums[kQueries][kKeys];
  const T* rows[kKeys];
  for (int k = 0; k < kKeys; ++k) {
    rows[k] = TokenRow(tile, token + k);
    for (int q = 0; q < kQueries; ++q) sums[q][k] = Vec::Set(0.0f);
  }
  for (int64_t d = 0; d < tile.width; d += kLanes) {
    const int64_t n = tile.width - d < kLanes ? tile.width - d : kLanes;
    F keys[kKeys];
    for (int k = 0; k < kKeys; ++k) keys[k] = LoadTail(rows[k] + d, n);
    for (int q = 0; q < kQueries; ++q) {
      const F x = Vec::Load(state.query + (query + q) * state.stride + d);
      for (int k = 0; k < kKeys; ++k) {
        sums[q][k] = Vec::Fma(x, keys[k], sums[q][k]);
      }
    }
  }
  for (int q = 0; q < kQueries; ++q) {
    for (int k = 0; k < kKeys; ++k) {
      to[q * kSpan + k] = Vec::SumLanes(sums[q][k]) * tile.scale;
    }
  }
}

// weighted = the sum over `tokens` tokens from `begin` of weight * latent.
template <typename T, int kQueries>
void LatentSums(const LatentTile<T>& tile, const LatentState<T>& state,
                int query, int64_t begin, int64_t tokens) {
  for (int64_t d = 0; d < tile.latent; d += kLanes) {
    const int64_t n = tile.latent - d < kLanes ? tile.latent - d : kLanes;
    F sums[kQueries];
    for (F& sum : sums) sum = Vec::Set(0.0f);
    for (int64_t t = 0; t < tokens; ++t) {
      const F latent = LoadTail(TokenRow(tile, begin + t) + d, n);
      for (int q = 0; q < kQueries; ++q) {
        const F weight = Vec::Set(state.weights[(query + q) * kSpan + t]);
        sums[q] = Vec::Fma(weight, latent, sums[q]);
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      StoreTail(state.weighted + (query + q) * tile.latent + d, sums[q], n);
    }
  }
}

// kQueries queries over the span at `begin`.
template <typename T, int kQueries>
void LatentSpan(const LatentTile<T>& tile, const LatentState<T>& state,
                int query, int64_t begin) {
  constexpr int kKeys = kLanes == 16 ? 4 : 2;
  const int64_t left = tile.visible - begin;
  const int64_t tokens = left < kSpan ? left : kSpan;
  float* weights = state.weights + query * kSpan;
  int64_t t = 0;
  for (; t + kKeys <= tokens; t += kKeys) {
    LatentScores<T, kQueries, kKeys>(tile, state, query, begin + t,
                                     weights + t);
  }
  for (; t < tokens; ++t) {
    LatentScores<T, kQueries, 1>(tile, state, query, begin + t, weights + t);
  }
  Softmax softmax[kQueries];
  for (int q = 0; q < kQueries; ++q) {
    softmax[q] = Weigh(weights + q * kSpan, 0, tokens);
  }
  LatentSums<T, kQueries>(tile, state, query, begin, tokens);
  for (int q = 0; q < kQueries; ++q) {
    const int64_t at = (query + q) * tile.latent;
    Combine(state.largest[query + q], state.sum[query + q], state.total + at,
            softmax[q], state.weighted + at, tile.latent);
  }
}

template <typename T>
void LatentQueries(const LatentTile<T>& tile) {
  constexpr int kTogether = 4;
  const LatentState<T> state(tile);
  for (int64_t begin = 0; begin < tile.visible; begin += kSpan) {
    int query = 0;
    for (; query + kTogether <= tile.queries; query += kTogether) {
      LatentSpan<T, kTogether>(tile, state, query, begin);
    }
    for (; query < tile.queries; ++query) {
      LatentSpan<T, 1>(tile, state, query, begin);
    }
  }
  for (int q = 0; q < tile.queries; ++q) {
    const F sum = Vec::Set(state.sum[q]);
    for (int64_t d = 0; d < tile.latent; d += kLanes) {
      const int64_t n = tile.latent - d < kLanes ? tile.latent - d : kLanes;
      const float* total = state.total + q * tile.latent + d;
      StoreTail(tile.out[q] + d, Vec::Div(LoadTail(total, n), sum), n);
    }
  }
}

}  // namespace
}  // namespace baton::cpu
