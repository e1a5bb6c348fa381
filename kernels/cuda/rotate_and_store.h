// SPDX-License-Identifier: Apache-2.0
// What happens between the QKV projection and attention, in one kernel: the
// norm of each head of q and k, rotary position embedding, and the store of
// keys and values into their pages.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/kv_pages.h"

namespace baton::cuda {

inline constexpr int64_t kMaxHeadDim = 256;

struct RotateAndStoreArgs {
  // bf16; usually three views of one matrix. q and k are updated in place.
  void* q;             // [rows, q_heads, head_dim]
  void* k;             // [rows, kv_heads, head_dim]
  const void* v;       // [rows, kv_heads, head_dim]
  int64_t row_stride;  // elements, of all three
  int64_t rows, q_heads;
  // RMSNorm per head, rounded to bf16; null: none.
  const void* q_norm;  // [head_dim]
  const void* k_norm;  // [head_dim]
  float eps;
  // Pairs (i, i + num_freqs), angle = float(position) * inv_freq[i]; fp32,
  // rounded once at the end.
  const float* inv_freq;        // [num_freqs], device
  int64_t num_freqs;            // 0: no rotation
  float amplitude;              // factor of cos and sin
  const int32_t* positions;     // [rows], device
  const int32_t* row_sequence;  // [rows], device; below zero: skip the row
  KvPages pages;
};

// The bits of a row depend on that row alone. Positions, row_sequence and the
// page table must have been written before the stream's last launch that was
// not a programmatic dependent (kernels/README.md). Zero rows submit nothing.
// invalidValue: head_dim odd or above kMaxHeadDim, 2 * num_freqs > head_dim, 1
// to 3 frequencies where head_dim > 248.
[[nodiscard]] cudaError_t RotateAndStore(const RotateAndStoreArgs& args,
                                         cudaStream_t stream);

}  // namespace baton::cuda
