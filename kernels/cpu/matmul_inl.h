// SPDX-License-Identifier: Apache-2.0
// Rows of x against a block of 64 packed outputs, on vectors: outputs lie in
// lanes, K runs in order. Include after a vec_*.h and a step_*.h.
#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/prefetch.h"

namespace baton::cpu {
namespace {

// Sums of kRows x 64 outputs on the levels of the tree: level l holds the left
// subtree of 2^l leaves that waits for its right one.
template <int kRows>
struct Levels {
  float sums[3][kRows * 64];
};

// Columns [column, column + kVectors * lanes) of kRows rows over one leaf,
// added to the subtrees that the leaf closes, to `to` (stride 64).
template <typename T, int kRows, int kVectors, bool kStream>
void Leaf(const MatmulTile<T>& tile, int64_t row, int64_t column, int64_t begin,
          int64_t end, const Levels<kRows>& levels, int closed, float* to) {
  using S = Step<T>;
  constexpr int64_t kLanes = Vec::kLanes;
  Vec::F sums[kRows][kVectors];
  for (auto& sum : sums) {
    for (auto& vector : sum) vector = Vec::Set(0.0f);
  }
  const T* x = tile.x + row * tile.x_stride;
  const T* weights = tile.block + column * S::kDepth;
  for (int64_t k = begin; k < end; k += S::kDepth) {
    const T* line = weights + k * 64;
    if constexpr (kStream) {
      if (tile.fetches_pages) {
        FetchAhead(reinterpret_cast<const char*>(tile.block),
                   k / S::kDepth * 256, 256);
      }
    }
    if constexpr (kRows == 1) {
      const auto b = S::Broadcast(x + k);
      for (int v = 0; v < kVectors; ++v) {
        sums[0][v] =
            S::Add(sums[0][v], b, S::Load(line + v * kLanes * S::kDepth));
      }
    } else {
      decltype(S::Load(line)) w[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        w[v] = S::Load(line + v * kLanes * S::kDepth);
      }
      for (int r = 0; r < kRows; ++r) {
        const auto b = S::Broadcast(x + r * tile.x_stride + k);
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = S::Add(sums[r][v], b, w[v]);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = r * 64 + column + v * kLanes;
      Vec::F sum = sums[r][v];
      for (int level = 0; level < closed; ++level) {
        sum = Vec::Add(Vec::Load(levels.sums[level] + at), sum);
      }
      Vec::Store(to + at, sum);
    }
  }
}

template <typename T, int kRows, int kVectors>
void Rows(const MatmulTile<T>& tile, int64_t row) {
  constexpr bool kStream = kVectors * Vec::kLanes == 64;
  Levels<kRows> levels;
  const int64_t leaf = tile.k / tile.leaves;
  for (int i = 0; i < tile.leaves; ++i) {
    // Leaf i closes as many subtrees as i has trailing ones.
    const int closed = __builtin_ctz(~i);
    float* to =
        i + 1 == tile.leaves ? tile.out + row * 64 : levels.sums[closed];
    for (int64_t column = 0; column < 64; column += kVectors * Vec::kLanes) {
      Leaf<T, kRows, kVectors, kStream>(tile, row, column, i * leaf,
                                        (i + 1) * leaf, levels, closed, to);
    }
  }
}

// What the registers hold: kOne vectors of outputs for a single row, kMore for
// each of 2 to kMaxRows rows.
template <typename T, int kOne, int kMore, int kMaxRows>
void MatmulBlock(const MatmulTile<T>& tile) {
  int64_t row = 0;
  for (; row + kMaxRows <= tile.rows; row += kMaxRows) {
    Rows<T, kMaxRows, kMore>(tile, row);
  }
  switch (tile.rows - row) {
    case 5:
      return Rows<T, 5, kMore>(tile, row);
    case 4:
      return Rows<T, 4, kMore>(tile, row);
    case 3:
      return Rows<T, 3, kMore>(tile, row);
    case 2:
      return Rows<T, 2, kMore>(tile, row);
    case 1:
      return Rows<T, 1, kOne>(tile, row);
    default:
      return;
  }
}

}  // namespace
}  // namespace baton::cpu
