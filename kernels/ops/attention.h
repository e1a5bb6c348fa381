// SPDX-License-Identifier: Apache-2.0
// Attention over paged keys and values, and what comes before it: rotary
// position embedding and storing keys and values.
//
// A page holds kPageTokens tokens of one layer: first the keys of all KV heads,
// then the values of all, in the layout of the device. CPU, for each KV head:
//   keys   bf16 [head_dim/2][16][2]   f32 [head_dim][16]    tokens in lanes
//   values [16][head_dim]
// CUDA, bf16, all KV heads' keys, then all KV heads' values:
//   keys   [kv_heads][16][head_dim]
//   values [kv_heads][head_dim][16]
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/ops/batch.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// A CPU visits keys in spans of this many, from position 0, and combines span
// results in order, whatever the batch or the chunk. CUDA: kernels/README.md.
inline constexpr int64_t kAttentionSpan = 64;

// One layer's pages: [num_pages, PageBytes] of one pool.
struct KvPages {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_pages = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // even
  int64_t window = 0;    // positions a row sees, itself included; 0: all

  [[nodiscard]] int64_t PageBytes() const {
    return 2 * kv_heads * head_dim * kPageTokens * SizeOf(dtype);
  }
};

// Rotates the first `inv_freq.size() * 2` dims of each head, half-split:
// pairs (i, i + R/2), angle = position * inv_freq[i] as an fp32 product; cos
// and sin times `amplitude` and the rotation are in fp32, rounded once at the
// end.
struct Rope {
  static constexpr std::string_view kName = "rope";
  struct Args {
    View x;                              // [tokens, heads, head_dim], in place
    std::span<const int32_t> positions;  // [tokens]
    std::span<const float> inv_freq;     // [R / 2]
    float amplitude;
  };
};

// Stores keys and values of a batch's rows into their pages.
struct KvWrite {
  static constexpr std::string_view kName = "kv_write";
  struct Args {
    ConstView k;  // [tokens, kv_heads, head_dim]
    ConstView v;  // [tokens, kv_heads, head_dim]
    KvPages pages;
    const AttentionBatch* batch;
  };
};

// From the projections to attention, in one pass where the device has a kernel
// for it: RmsNorm over each head of q and k where there are weights, Rope where
// there are frequencies, KvWrite. Each step rounds to the dtype as the op of
// its name does.
struct RotateAndStore {
  static constexpr std::string_view kName = "rotate_and_store";
  struct Args {
    View q;            // [tokens, heads, head_dim], in place
    View k;            // [tokens, kv_heads, head_dim], in place
    ConstView v;       // [tokens, kv_heads, head_dim]
    ConstView q_norm;  // [head_dim], or no data: no norm of q and k
    ConstView k_norm;  // as q_norm
    float eps;
    ConstView inv_freq;  // [R / 2] f32, or no data: no rotation
    float amplitude;
    KvPages pages;
    const AttentionBatch* batch;
  };
};

// Causal softmax(q k^T scale) v, fp32 scores and softmax, fp32 accumulation.
// The row at position p sees keys of positions [0, p], or (p - window, p] where
// the pages have a window; query head h uses KV head h / (q_heads / kv_heads).
// Keys of the batch's own rows are in the pages already (KvWrite first).
struct PagedAttention {
  static constexpr std::string_view kName = "paged_attention";
  struct Args {
    ConstView q;  // [tokens, q_heads, head_dim]
    KvPages pages;
    const AttentionBatch* batch;
    float scale;
    View out;  // [tokens, q_heads, head_dim]
  };
};

// RotateAndStore, then PagedAttention of q as that leaves it: one pass where
// the device has a kernel for it. q and k hold anything behind it.
struct RotateAndAttend {
  static constexpr std::string_view kName = "rotate_and_attend";
  struct Args {
    RotateAndStore::Args entry;
    float scale;
    View out;  // [tokens, q_heads, head_dim]
  };
};

}  // namespace baton
