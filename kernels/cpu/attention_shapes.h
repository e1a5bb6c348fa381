// SPDX-License-Identifier: Apache-2.0
// Where a page keeps its heads, and the checks that KvWrite and PagedAttention
// share.
#pragma once

#include "kernels/cpu/batch_shapes.h"
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
  match.Require(pages.dtype == dtype, "the pages must be of the kernel's dtype")
      .Require(pages.head_dim > 0 && pages.head_dim % 2 == 0,
               "head_dim must be even");
  MatchPages(match, batch, pages.window, pages.num_pages, tokens);
}

}  // namespace baton::cpu
