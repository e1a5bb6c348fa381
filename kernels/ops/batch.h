// SPDX-License-Identifier: Apache-2.0
// What the rows of one forward are: whose, at which positions, and of which
// kind.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/base/ids.h"

namespace baton {

// Numerics contract: a prompt's tokens and generated tokens may be computed by
// different kernels, and which one a token gets follows from what it is, never
// from when or beside what it is computed. (The CPU has one for both.)
enum class RowKind : uint8_t { kPrompt, kGenerated };

// Consecutive rows of one kind.
struct RowRun {
  RowKind kind = RowKind::kGenerated;
  int64_t first = 0;
  int64_t rows = 0;
};

// Rows of one sequence inside a batch: positions [first_position,
// first_position + rows), stored at batch rows [first_row, first_row + rows).
// The first `prompt_rows` of them are of the prompt.
struct SequenceSpan {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_position = 0;
  std::span<const PageId> pages;  // covers first_position + rows tokens
  int64_t prompt_rows = 0;
  // The same for layers with a window, which has room for less: pages of
  // positions that no row sees any more may hold another sequence's by now.
  std::span<const PageId> window_pages = {};
  int32_t state_slot = -1;  // of its fixed-size states; -1: it has none

  // Those of a layer with this window; 0: without one.
  [[nodiscard]] std::span<const PageId> PagesOf(int64_t window) const {
    return window > 0 ? window_pages : pages;
  }
};

// Up to kPromptTileRows prompt rows of one sequence: a unit of work.
struct PromptTile {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t first_position = 0;
  int32_t sequence = 0;  // row of the page table
};
inline constexpr int64_t kPromptTileRows = 128;

// The rows of one sequence, for what goes through them in order.
struct SequenceRows {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t first_position = 0;
  int32_t state_slot = -1;  // -1: begins with zeros, and nothing is kept
};

// The batch as arrays in the memory of a device that is not the host.
struct DeviceBatch {
  const int32_t* positions = nullptr;     // [rows]
  const int32_t* row_sequence = nullptr;  // [rows], rows of page_table
  const PageId* page_table = nullptr;     // [sequences, page_stride]
  const PageId* window_table = nullptr;   // the same of window pages
  int64_t page_stride = 0;
  const SequenceRows* sequences = nullptr;  // [num_sequences]
  int64_t num_sequences = 0;
  const PromptTile* tiles = nullptr;  // [num_tiles], most keys first
  int64_t num_tiles = 0;
  int64_t longest = 0;  // no generated row sees more tokens
};

struct AttentionBatch {
  std::span<const SequenceSpan> sequences;  // cover all rows, in order; host
  std::span<const int32_t> positions;       // [rows]; host
  std::span<const RowRun> runs;             // cover all rows, in order; host
  const DeviceBatch* device = nullptr;      // null where the host computes
};

}  // namespace baton
