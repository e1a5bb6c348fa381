// SPDX-License-Identifier: Apache-2.0
// Causal attention of prompt rows, whose keys and values are in the pages
// already: the row at position p sees keys of positions [0, p], or of (p -
// window, p] where the pages have a window.
//
// Keys are visited in tiles of 64, cut at the same positions whatever the
// chunk, from the first tile of which any row sees a key. fp32 scores, softmax
// and sums; weights are rounded to bf16 for the product with the values. The
// bits of a row depend on its query and its sequence alone: not on how the
// prompt was cut into chunks and tiles.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/kv_pages.h"

namespace baton::cuda {

inline constexpr int64_t kPromptTileRows = 128;

// Rows of one sequence: positions [first_position, first_position + rows), at
// batch rows [first_row, first_row + rows).
struct PromptTile {
  int32_t first_row;
  int32_t rows;  // 0 (an idle tile) to kPromptTileRows
  int32_t first_position;
  int32_t sequence;
};

struct PromptAttentionArgs {
  const void* q;  // bf16 [rows, q_heads, head_dim]
  int64_t q_stride;
  void* out;  // bf16 [rows, q_heads, head_dim]; must not overlap q
  int64_t out_stride;
  int64_t q_heads;
  // Those with the most keys first: they take longest. 16-byte aligned.
  const PromptTile* tiles;  // [num_tiles], device
  int64_t num_tiles;        // at most 65535
  KvPages pages;
  float scale;  // above 0
};

// No tiles submit nothing. head_dim 64, 128 and 256 with 16-byte aligned rows
// use the tensor cores; any other even head_dim up to 256 a plain kernel.
// invalidValue: a head_dim of neither kind, q_heads not a multiple of kv_heads.
[[nodiscard]] cudaError_t PromptAttention(const PromptAttentionArgs& args,
                                          cudaStream_t stream);

}  // namespace baton::cuda
