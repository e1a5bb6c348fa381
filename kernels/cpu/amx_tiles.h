// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "runtime/tensor/dtype.h"

namespace baton::cpu {

// Rows of x against one block of 64 packed outputs, on AMX tiles.
struct AmxUnit {
  // Row tiles [k/32][rows of the tile][32], 16 * k elements apart; all tiles
  // but the last have 16 rows.
  const bf16* x;
  int64_t rows;
  const bf16* block;  // [k/2][64][2]
  int64_t k;          // padded
  int leaves;         // 1, 2, 4, 8
  float* scratch;     // AmxScratch(rows) floats, 64-byte aligned
  float* out;         // [rows][64], 64-byte aligned
};

inline constexpr int64_t kTileFloats = 256;  // an accumulator: 16 x 16

// Partial sums of three levels of the tree, four accumulators for every 16
// rows, and one more set.
[[nodiscard]] constexpr int64_t AmxScratch(int64_t rows) {
  return 4 * kTileFloats * (3 * ((rows + 15) / 16) + 1);
}

void AmxMatmul(const AmxUnit& unit);

}  // namespace baton::cpu
