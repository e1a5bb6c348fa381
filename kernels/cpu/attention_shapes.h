// SPDX-License-Identifier: Apache-2.0
// Where a page keeps its heads, and the checks that KvWrite and PagedAttention
// share.
#pragma once

#include "kernels/ops/attention.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {

// Keys of `head` in `page`: bf16 [head_dim/2][16][2], f32 [head_dim][16].
template <typename T>
[[nodiscard]] T* KeyBlock(const KvPages& pages, PageId page, int64_t head) {
  return reinterpret_cast<T*>(pages.data + page * pages.PageBytes()) +
         head * pages.head_dim * kPageTokens;
}

// Values of `head` in `page`: [16][head_dim].
template <typename T>
[[nodiscard]] T* ValueBlock(const KvPages& pages, PageId page, int64_t head) {
  return KeyBlock<T>(pages, page, pages.kv_heads + head);
}

// The batch covers `tokens` rows in order, its pages exist and reach as far as
// its positions. Fails `match` otherwise.
inline void MatchBatch(ShapeMatch& match, const AttentionBatch* batch,
                       const KvPages& pages, DType dtype, int64_t tokens) {
  match.Require(batch != nullptr, "there must be a batch")
      .Require(pages.dtype == dtype, "the pages must be of the kernel's dtype")
      .Require(pages.head_dim > 0 && pages.head_dim % 2 == 0,
               "head_dim must be even");
  if (!match.status().ok()) return;
  int64_t next_row = 0;
  for (const SequenceSpan& sequence : batch->sequences) {
    const int64_t end = sequence.first_position + sequence.rows;
    const std::span<const PageId> table = sequence.PagesOf(pages.window);
    const auto covered = static_cast<int64_t>(table.size()) * kPageTokens;
    match
        .Require(sequence.first_row == next_row && sequence.rows >= 0,
                 "sequences must cover the rows in order")
        .Require(sequence.first_position >= 0 && covered >= end,
                 "the pages of a sequence must cover its positions");
    for (const PageId page : table) {
      match.Require(page >= 0 && page < pages.num_pages,
                    "pages must lie inside the pool");
    }
    next_row += sequence.rows;
  }
  match.Require(next_row == tokens, "sequences must cover all rows");
}

}  // namespace baton::cpu
