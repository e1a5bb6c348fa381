// SPDX-License-Identifier: Apache-2.0
// One tdpbf16ps adds 32 products to each of 16 x 16 sums, row by row: the bits
// of a row depend neither on the rows beside it nor on how many there are.
#include "kernels/cpu/amx_tiles.h"

#include <immintrin.h>

#include "kernels/cpu/prefetch.h"

namespace baton::cpu {
namespace {

constexpr int64_t kStepBytes = 4096;  // of a block, for 32 of k

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0-3 are sums, 4-5 rows of x, 6-7 weights. `upper` is the number of
// rows of sums 0, 1 and of x 4; `lower` of sums 2, 3 and of x 5.
void Configure(int64_t upper, int64_t lower) {
  TileConfig config;
  const int64_t rows[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = static_cast<uint8_t>(rows[tile]);
  }
  // The intrinsic of GCC 12 tells the compiler of the first eight bytes only.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// Where the sums of a set of four tiles go: the tile is [16][16] floats.
void StoreSums(float* to) {
  _tile_stored(0, to, 64);
  _tile_stored(1, to + kTileFloats, 64);
  _tile_stored(2, to + 2 * kTileFloats, 64);
  _tile_stored(3, to + 3 * kTileFloats, 64);
}

// 32 rows x 32 outputs over one leaf.
void Leaf2x2(const bf16* upper, const bf16* lower, const char* block,
             int64_t steps) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < steps; ++step) {
    const char* weights = block + step * kStepBytes;
    _tile_loadd(4, upper + step * 512, 64);
    _tile_loadd(6, weights, 256);
    _tile_loadd(7, weights + 64, 256);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower + step * 512, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// As Leaf2x2 where the lower tile has fewer than 16 rows.
void Leaf2x2Ragged(const bf16* upper, const bf16* lower, int64_t lower_rows,
                   const char* block, int64_t steps) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < steps; ++step) {
    const char* weights = block + step * kStepBytes;
    _tile_loadd(4, upper + step * 512, 64);
    _tile_loadd(6, weights, 256);
    _tile_loadd(7, weights + 64, 256);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower + step * 32 * lower_rows, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// Up to 16 rows x 64 outputs over steps [begin, end) of a block, which is one
// stream of weights.
void Leaf1x4(const bf16* x, int64_t rows, const char* block, int64_t begin,
             int64_t end) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = begin; step < end; ++step) {
    const char* weights = block + step * kStepBytes;
    FetchAhead(block, step * kStepBytes, kStepBytes);
    _tile_loadd(4, x + step * 32 * rows, 64);
    _tile_loadd(6, weights, 256);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + 64, 256);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, weights + 128, 256);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, weights + 192, 256);
    _tile_dpbf16ps(3, 4, 7);
  }
}

// The tree as a counter: leaf i closes as many subtrees as i has trailing ones.
// levels[l] holds the left subtree of 2^l leaves that waits for its right one.
struct Tree {
  float* levels[3];
  float* fresh;

  // Where leaf i's sums are to be stored.
  float* Place(int leaf, int leaves) const {
    return leaf % 2 == 1 || leaves == 1 ? fresh : levels[0];
  }
  // Subtrees that leaf i closes.
  static int Closed(int leaf) { return __builtin_ctz(~leaf); }
};

__m512 AddLevels(const Tree& tree, int closed, int64_t at) {
  __m512 sum = _mm512_loadu_ps(tree.fresh + at);
  for (int level = 0; level < closed; ++level) {
    sum = _mm512_add_ps(_mm512_loadu_ps(tree.levels[level] + at), sum);
  }
  return sum;
}

// Adds what leaf i closes, and leaves it on its level; of each tile's rows the
// first `rows`.
void Close(const Tree& tree, int leaf, int64_t rows) {
  const int closed = Tree::Closed(leaf);
  if (closed == 0) return;  // stored in its place already
  for (int64_t tile = 0; tile < 4; ++tile) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = tile * kTileFloats + row * 16;
      _mm512_storeu_ps(tree.levels[closed] + at, AddLevels(tree, closed, at));
    }
  }
}

// The last leaf of 32 rows x 32 outputs: to the rows of the output.
void Finish2x2(const Tree& tree, int leaf, float* out, int64_t rows) {
  const int closed = Tree::Closed(leaf);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row / 16 * 2 * kTileFloats + row % 16 * 16;
    _mm512_storeu_ps(out + row * 64, AddLevels(tree, closed, at));
    _mm512_storeu_ps(out + row * 64 + 16,
                     AddLevels(tree, closed, at + kTileFloats));
  }
}

void Finish1x4(const Tree& tree, int leaf, float* out, int64_t rows) {
  const int closed = Tree::Closed(leaf);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t tile = 0; tile < 4; ++tile) {
      _mm512_storeu_ps(out + row * 64 + tile * 16,
                       AddLevels(tree, closed, tile * kTileFloats + row * 16));
    }
  }
}

// Up to 16 rows from row tile `first`.
void Few(const AmxUnit& unit, int64_t first, int64_t rows) {
  Configure(rows, rows);
  const int64_t steps = unit.k / unit.leaves / 32;
  const Tree tree = {{unit.scratch, unit.scratch + 4 * kTileFloats,
                      unit.scratch + 8 * kTileFloats},
                     unit.scratch + 12 * kTileFloats};
  const bf16* x = unit.x + first * 16 * unit.k;
  const char* block = reinterpret_cast<const char*>(unit.block);
  for (int leaf = 0; leaf < unit.leaves; ++leaf) {
    Leaf1x4(x, rows, block, leaf * steps, (leaf + 1) * steps);
    StoreSums(tree.Place(leaf, unit.leaves));
    if (leaf + 1 < unit.leaves) Close(tree, leaf, rows);
  }
  Finish1x4(tree, unit.leaves - 1, unit.out + first * 16 * 64, rows);
}

// Pairs of row tiles from `first`. Leaves run outermost in groups whose weights
// stay in the cache while all rows pass; the sums of a group's subtree wait for
// the next group on their level.
void Pairs(const AmxUnit& unit, int64_t first, int64_t pairs,
           int64_t lower_rows) {
  Configure(16, lower_rows);
  const int64_t steps = unit.k / unit.leaves / 32;
  const int64_t set = 4 * kTileFloats;
  const int64_t level_floats = 2 * pairs * set;
  const char* block = reinterpret_cast<const char*>(unit.block);
  const int64_t group_bytes = steps * kStepBytes;
  const int64_t share = (group_bytes / (2 * pairs) + 63) / 64 * 64;
  for (int leaf = 0; leaf < unit.leaves; ++leaf) {
    const char* weights = block + leaf * group_bytes;
    for (int64_t half = 0; half < 2; ++half) {
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const int64_t slot = half * pairs + pair;
        const char* next = weights + group_bytes + slot * share;
        for (int64_t line = 0; line < share; line += 64) Fetch(next + line);
        const bf16* upper = unit.x + (first + 2 * pair) * 16 * unit.k;
        const bf16* lower = upper + 16 * unit.k;
        float* base = unit.scratch + slot * set;
        const Tree tree = {{base, base + level_floats, base + 2 * level_floats},
                           unit.scratch + 3 * level_floats};
        const int64_t k_step = leaf * steps;
        if (lower_rows == 16) {
          Leaf2x2(upper + k_step * 512, lower + k_step * 512,
                  weights + half * 128, steps);
        } else {
          Leaf2x2Ragged(upper + k_step * 512, lower + k_step * 32 * lower_rows,
                        lower_rows, weights + half * 128, steps);
        }
        StoreSums(tree.Place(leaf, unit.leaves));
        if (leaf + 1 < unit.leaves) {
          Close(tree, leaf, 16);
        } else {
          Finish2x2(tree, leaf,
                    unit.out + (first + 2 * pair) * 16 * 64 + half * 32,
                    16 + lower_rows);
        }
      }
    }
  }
}

}  // namespace

void AmxMatmul(const AmxUnit& unit) {
  const int64_t pairs = unit.rows / 32;
  const int64_t rest = unit.rows % 32;
  if (pairs > 0) Pairs(unit, 0, pairs, 16);
  if (rest > 16) {
    Pairs(unit, 2 * pairs, 1, rest - 16);
  } else if (rest > 0) {
    Few(unit, 2 * pairs, rest);
  }
  _tile_release();
}

}  // namespace baton::cpu
