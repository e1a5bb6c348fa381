// SPDX-License-Identifier: Apache-2.0
// Keys and values of one layer on the device.
//
// A page holds kPageTokens tokens: first the keys of all KV heads, then the
// values of all, transposed, bf16:
//   keys   [kv_heads][16][head_dim]
//   values [kv_heads][head_dim][16]
#pragma once

#include <cstdint>

namespace baton::cuda {

inline constexpr int64_t kPageTokens = 16;

struct KvPages {
  void* pool;          // page p is at pool + p * page_bytes; 16-byte aligned
  int64_t page_bytes;  // at least PageBytes(), multiple of 16
  // Page of tokens [16 i, 16 i + 16) of sequence s: page_table[s, i].
  const int32_t* page_table;  // [sequences, page_stride], device
  int64_t page_stride;
  int64_t kv_heads, head_dim;
  // Positions that a row sees, its own included; 0: all. A page before those of
  // every row of a visit may be another sequence's, or hold anything.
  int32_t window = 0;

  // The first position that the row at `position` sees.
  [[nodiscard]] constexpr int FirstSeen(int position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
  [[nodiscard]] constexpr int64_t PageBytes() const {
    return 2 * 2 * kv_heads * head_dim * kPageTokens;
  }
};

}  // namespace baton::cuda
