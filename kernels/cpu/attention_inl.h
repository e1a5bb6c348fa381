// SPDX-License-Identifier: Apache-2.0
// Attention of a tile of query vectors on vectors: keys of a page lie in lanes
// for the scores, dimensions lie in lanes for the values. Every query goes
// through its own additions in the same order however many share the loads.
// Include after a vec_*.h and a step_*.h.
#pragma once

#include <cstring>

#include "kernels/cpu/inner.h"
#include "kernels/cpu/lanes_inl.h"
#include "kernels/cpu/math_inl.h"

namespace baton::cpu {
namespace {

constexpr int64_t kSpan = 64;
constexpr int64_t kPage = 16;
constexpr float kInfinity = __builtin_inff();

// State of all queries of a tile, in its scratch.
template <typename T>
struct State {
  explicit State(const AttentionTile<T>& tile)
      : total(tile.scratch),
        weighted(total + tile.queries * tile.head_dim),
        weights(weighted + tile.queries * tile.head_dim),
        largest(weights + tile.queries * kSpan),
        sum(largest + tile.queries) {
    for (int64_t i = 0; i < tile.queries * tile.head_dim; ++i) total[i] = 0;
    for (int q = 0; q < tile.queries; ++q) {
      largest[q] = -kInfinity;
      sum[q] = 0;
    }
  }

  float* total;     // [queries][head_dim], of the spans so far
  float* weighted;  // [queries][head_dim], of this span
  float* weights;   // [queries][64], scores, then e^(score - largest)
  float* largest;   // [queries]
  float* sum;       // [queries]
};

template <typename T>
const T* PageOf(const AttentionTile<T>& tile, const std::byte* base,
                int64_t position) {
  return reinterpret_cast<const T*>(base + tile.pages[position / kPage] *
                                               tile.page_bytes);
}

// Scores of kRows queries for the 16 keys of each of kPages pages.
template <typename T, int kRows, int kPages>
void Scores(const AttentionTile<T>& tile, int query, const T* const* keys,
            float* to) {
  using S = Step<T>;
  constexpr int kVectors = static_cast<int>(kPage / kLanes);
  F sums[kRows][kPages][kVectors];
  for (auto& row : sums) {
    for (auto& page : row) {
      for (F& sum : page) sum = Vec::Set(0.0f);
    }
  }
  for (int64_t d = 0; d < tile.head_dim; d += S::kDepth) {
    decltype(S::Load(keys[0])) k[kPages][kVectors];
    for (int p = 0; p < kPages; ++p) {
      for (int v = 0; v < kVectors; ++v) {
        k[p][v] = S::Load(keys[p] + d * kPage + v * kLanes * S::kDepth);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const auto b = S::Broadcast(tile.query[query + r] + d);
      for (int p = 0; p < kPages; ++p) {
        for (int v = 0; v < kVectors; ++v) {
          sums[r][p][v] = S::Add(sums[r][p][v], b, k[p][v]);
        }
      }
    }
  }
  const F scale = Vec::Set(tile.scale);
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPages; ++p) {
      for (int v = 0; v < kVectors; ++v) {
        Vec::Store(to + r * kSpan + p * kPage + v * kLanes,
                   Vec::Mul(sums[r][p][v], scale));
      }
    }
  }
}

// Whether weighted values are added to nothing or to what is there.
enum class Sums { kFresh, kGoOn };

// Adds weight * value for tokens [from, to) of the span to kVectors vectors of
// dimensions.
template <typename T, int kRows, int kVectors>
void Values(const AttentionTile<T>& tile, const State<T>& state, int query,
            int64_t begin, int64_t from, int64_t to, Sums so_far,
            int64_t column) {
  F sums[kRows][kVectors];
  float* place = state.weighted + query * tile.head_dim + column;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = so_far == Sums::kFresh
                       ? Vec::Set(0.0f)
                       : Vec::Load(place + r * tile.head_dim + v * kLanes);
    }
  }
  const float* weights = state.weights + query * kSpan;
  const T* page = nullptr;
  for (int64_t t = from; t < to; ++t) {
    if (t == from || t % kPage == 0) {
      page = PageOf(tile, tile.values, begin + t) + column;
    }
    const T* value = page + t % kPage * tile.head_dim;
    F loaded[kVectors];
    for (int v = 0; v < kVectors; ++v)
      loaded[v] = Vec::Load(value + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const F weight = Vec::Set(weights[r * kSpan + t]);
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = Vec::Fma(weight, loaded[v], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      Vec::Store(place + r * tile.head_dim + v * kLanes, sums[r][v]);
    }
  }
}

// The dimensions that fill no vector, one by one.
template <typename T>
void ValuesTail(const AttentionTile<T>& tile, const State<T>& state, int query,
                int64_t begin, int64_t from, int64_t to, Sums so_far,
                int64_t column) {
  float* place = state.weighted + query * tile.head_dim;
  for (int64_t d = column; d < tile.head_dim; ++d) {
    float one[kLanes] = {};
    F sum = Vec::Set(so_far == Sums::kFresh ? 0.0f : place[d]);
    for (int64_t t = from; t < to; ++t) {
      T value[kLanes];
      std::memset(static_cast<void*>(value), 0, sizeof(value));
      value[0] =
          PageOf(tile, tile.values, begin + t)[t % kPage * tile.head_dim + d];
      sum = Vec::Fma(Vec::Set(state.weights[query * kSpan + t]),
                     Vec::Load(value), sum);
    }
    Vec::Store(one, sum);
    place[d] = one[0];
  }
}

template <typename T, int kRows>
void AllValues(const AttentionTile<T>& tile, const State<T>& state, int query,
               int64_t begin, int64_t from, int64_t to, Sums so_far) {
  constexpr int kVectors = kLanes == 16 ? 4 : 2;
  int64_t column = 0;
  for (; column + kVectors * kLanes <= tile.head_dim;
       column += kVectors * kLanes) {
    Values<T, kRows, kVectors>(tile, state, query, begin, from, to, so_far,
                               column);
  }
  for (; column + kLanes <= tile.head_dim; column += kLanes) {
    Values<T, kRows, 1>(tile, state, query, begin, from, to, so_far, column);
  }
  if (column == tile.head_dim) return;
  for (int r = 0; r < kRows; ++r) {
    ValuesTail(tile, state, query + r, begin, from, to, so_far, column);
  }
}

inline float ExpOf(float x) {
  float lanes[kLanes];
  Vec::Store(lanes, Exp(Vec::Set(x)));
  return lanes[0];
}

struct Softmax {
  float largest;
  float sum;
};

// Scores of keys [from, to) become e^(score - largest), others 0.
inline Softmax Weigh(float* weights, int64_t from, int64_t to) {
  for (int64_t t = 0; t < from; ++t) weights[t] = -kInfinity;
  for (int64_t t = to; t < kSpan; ++t) weights[t] = -kInfinity;
  F best = Vec::Load(weights);
  for (int64_t t = kLanes; t < kSpan; t += kLanes) {
    best = Vec::Max(Vec::Load(weights + t), best);
  }
  float lanes[kLanes];
  Vec::Store(lanes, best);
  float largest = lanes[0];
  for (const float lane : lanes) largest = lane > largest ? lane : largest;

  constexpr int64_t kGroups = 16 / kLanes;
  F sums[kGroups];
  for (F& sum : sums) sum = Vec::Set(0.0f);
  for (int64_t t = 0; t < kSpan; t += kLanes) {
    const F p = Exp(Vec::Sub(Vec::Load(weights + t), Vec::Set(largest)));
    Vec::Store(weights + t, p);
    F& sum = sums[t / kLanes % kGroups];
    sum = Vec::Add(sum, p);
  }
  F all = sums[0];
  if constexpr (kGroups == 2) all = Vec::Add(all, sums[kGroups - 1]);
  return {largest, Vec::SumLanes(all)};
}

// Joins a span's softmax and weighted values, of one query and n columns, to
// those of the spans before it.
inline void Combine(float& largest, float& sum, float* total,
                    const Softmax& span, const float* weighted, int64_t n) {
  const float joint = largest > span.largest ? largest : span.largest;
  const float before = ExpOf(largest - joint);
  const float now = ExpOf(span.largest - joint);
  int64_t d = 0;
  for (; d + kLanes <= n; d += kLanes) {
    Vec::Store(total + d,
               Vec::Fma(Vec::Load(total + d), Vec::Set(before),
                        Vec::Mul(Vec::Load(weighted + d), Vec::Set(now))));
  }
  for (; d < n; ++d) {
    total[d] = __builtin_fmaf(total[d], before, weighted[d] * now);
  }
  sum = __builtin_fmaf(sum, before, span.sum * now);
  largest = joint;
}

// Weighted values of kRows queries, which see tokens [from, to) of the span.
// The first query begins first and ends first; what all see is loaded once.
template <typename T, int kRows>
void SpanValues(const AttentionTile<T>& tile, const State<T>& state, int query,
                int64_t begin, const int64_t* from, const int64_t* to) {
  const int64_t end = to[0];
  const int64_t start = from[kRows - 1] < end ? from[kRows - 1] : end;
  Sums so_far = Sums::kFresh;
  if (from[0] < start) {
    for (int r = 0; r < kRows; ++r) {
      const int64_t first = from[r] < start ? from[r] : start;
      AllValues<T, 1>(tile, state, query + r, begin, first, start,
                      Sums::kFresh);
    }
    so_far = Sums::kGoOn;
  }
  AllValues<T, kRows>(tile, state, query, begin, start, end, so_far);
  for (int r = 1; r < kRows; ++r) {
    const int64_t rest = from[r] > end ? from[r] : end;
    if (rest == to[r]) continue;
    AllValues<T, 1>(tile, state, query + r, begin, rest, to[r], Sums::kGoOn);
  }
}

// kRows queries from `query`, all of which see a key of the span at `begin`.
template <typename T, int kRows>
void SpanOf(const AttentionTile<T>& tile, const State<T>& state, int query,
            int64_t begin, const T* const* keys) {
  float* weights = state.weights + query * kSpan;
  constexpr int kPages = kLanes == 16 ? 4 : 1;
  for (int page = 0; page < 4; page += kPages) {
    Scores<T, kRows, kPages>(tile, query, keys + page, weights + page * kPage);
  }
  Softmax softmax[kRows];
  int64_t from[kRows], to[kRows];
  for (int r = 0; r < kRows; ++r) {
    const int64_t before = tile.first[query + r] - begin;
    const int64_t left = tile.visible[query + r] - begin;
    from[r] = before > 0 ? before : 0;
    to[r] = left < kSpan ? left : kSpan;
    softmax[r] = Weigh(weights + r * kSpan, from[r], to[r]);
  }
  SpanValues<T, kRows>(tile, state, query, begin, from, to);
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = (query + r) * tile.head_dim;
    Combine(state.largest[query + r], state.sum[query + r], state.total + at,
            softmax[r], state.weighted + at, tile.head_dim);
  }
}

template <typename T>
void WriteOut(const AttentionTile<T>& tile, const State<T>& state, int query) {
  const float* total = state.total + query * tile.head_dim;
  const F sum = Vec::Set(state.sum[query]);
  for (int64_t d = 0; d < tile.head_dim; d += kLanes) {
    const int64_t left = tile.head_dim - d;
    const int64_t n = left < kLanes ? left : kLanes;
    float in[kLanes] = {};
    T rounded[kLanes];
    std::memcpy(in, total + d, static_cast<size_t>(n) * sizeof(float));
    Vec::Store(rounded, Vec::Div(Vec::Load(in), sum));
    std::memcpy(static_cast<void*>(tile.out[query] + d), rounded,
                static_cast<size_t>(n) * sizeof(T));
  }
}

template <typename T>
void AttentionQueries(const AttentionTile<T>& tile) {
  constexpr int kMaxRows = kLanes == 16 ? 6 : 4;
  const State<T> state(tile);
  const int64_t end = tile.visible[tile.queries - 1];
  int first = 0, last = 0;  // the queries that see a key of the span
  for (int64_t begin = tile.first[0] / kSpan * kSpan; begin < end;
       begin += kSpan) {
    while (tile.visible[first] <= begin) ++first;
    while (last < tile.queries && tile.first[last] < begin + kSpan) ++last;
    // Pages past the last key stand for nothing: their lanes are masked.
    const T* keys[4];
    for (int64_t p = 0; p < 4; ++p) {
      const int64_t key = begin + p * kPage;
      keys[p] = PageOf(tile, tile.keys, key < end ? key : end - 1);
    }
    int query = first;
    for (; query + kMaxRows <= last; query += kMaxRows) {
      SpanOf<T, kMaxRows>(tile, state, query, begin, keys);
    }
    for (; query + 2 <= last; query += 2) {
      SpanOf<T, 2>(tile, state, query, begin, keys);
    }
    if (query < last) SpanOf<T, 1>(tile, state, query, begin, keys);
  }
  for (int query = 0; query < tile.queries; ++query) {
    WriteOut(tile, state, query);
  }
}

}  // namespace
}  // namespace baton::cpu
