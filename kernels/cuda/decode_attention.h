// SPDX-License-Identifier: Apache-2.0
// Attention of generated tokens: each row is one query token, and sees the keys
// of positions [0, its own] of its sequence, or those of the pages' window up
// to its own. They are in the pages already.
//
// Keys are visited in spans of kDecodeSpan tokens from the page of the first
// that the row sees, so a window costs what it holds, not what came before; the
// last span takes what is left, half a span to one and a half. Inside a span
// its pages are dealt to warps in a fixed way; warps, then spans, are combined
// in order. fp32 scores, softmax and sums; weights are rounded to bf16 for the
// product with the values. The bits of a row depend on its query and its
// sequence alone: not on the other rows, on max_spans or on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/rotate_and_store.h"
#include "kernels/ops/batch.h"

namespace baton::cuda {

inline constexpr int64_t kDecodeSpan = 512;  // tokens

struct DecodeAttentionArgs {
  const void* q;  // bf16 [rows, q_heads, head_dim]
  int64_t q_stride;
  void* out;  // bf16 [rows, q_heads, head_dim]; must not overlap q
  int64_t out_stride;
  int64_t rows, q_heads;
  const int32_t* positions;     // [rows], device
  const int32_t* row_sequence;  // [rows], device; below zero: skip the row
  // What the visit writes begins at first_position of each sequence; device.
  // Null: anywhere, so that nothing is read ahead of the grids before.
  const SequenceRows* sequences;
  KvPages pages;
  float scale;
  // No row has more spans (DecodeSpans). The grid and the scratch depend on it,
  // so that a graph may be replayed for any positions.
  int64_t max_spans;
  void* scratch;      // DecodeScratchBytes(), 16-byte aligned
  int32_t* counters;  // [DecodeCounters()], zero; left zero
};

// The most spans of a row at a position below `longest`, given the pages'
// window: at least 1.
[[nodiscard]] int64_t DecodeSpans(int64_t longest, int32_t window);
[[nodiscard]] int64_t DecodeScratchBytes(int64_t rows, int64_t q_heads,
                                         int64_t kv_heads, int64_t head_dim,
                                         int64_t max_spans);
[[nodiscard]] int64_t DecodeCounters(int64_t rows, int64_t q_heads,
                                     int64_t kv_heads);

// Zero rows submit nothing. head_dim 64, 128 and 256 with 16-byte aligned rows
// use the tensor cores where a block may have 227 KB of shared memory; all
// else, even head_dim up to 256, a plain kernel. Positions, row_sequence,
// sequences and the page table must have been written before the stream's last
// launch that was not a programmatic dependent (kernels/README.md).
// invalidValue: a head_dim of neither kind, q_heads not a multiple of kv_heads.
[[nodiscard]] cudaError_t DecodeAttention(const DecodeAttentionArgs& args,
                                          cudaStream_t stream);

// RotateAndStore, then DecodeAttention of the queries as that leaves them, in
// one kernel and with the same bits; q and k stay as they are. Rows are of
// different sequences, of which the visit has no other row; `entry` is of these
// rows, and `sequences` is not needed. NotSupported: there is no kernel for
// these sizes or so many rows, and nothing is submitted.
[[nodiscard]] cudaError_t RotateAndAttend(const RotateAndStoreArgs& entry,
                                          const DecodeAttentionArgs& args,
                                          cudaStream_t stream);

}  // namespace baton::cuda
