// SPDX-License-Identifier: Apache-2.0
// Attention over latents, and their store into pages
// (kernels/ops/latent_attention.h). fp32 scores, softmax and sums; the
// tensor-core kernel rounds weights to bf16 for the product with the latents.
//
// Tokens are visited in tiles of 64 from position 0. A row that is cut is cut
// into spans by its own position, combined in order. So the bits of a row
// depend on its query, its sequence and whether it is cut alone. Zero rows
// submit nothing. May be captured, and start as programmatic dependents.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/latent_pages.h"

namespace baton::cuda {

// Sizes of the tensor-core kernel.
inline constexpr int64_t kLatent = 512;
inline constexpr int64_t kLatentShared = 64;
inline constexpr int64_t kMaxLatent = 1024;       // of the plain kernel
inline constexpr int64_t kMaxLatentWidth = 2048;  // latent + shared

inline constexpr int kLatentMostSpans = 32;
// Tokens of a span of a row that sees `tokens`: 128 times a power of two.
[[nodiscard]] constexpr int LatentSpanTokens(int tokens) {
  int span = 128;
  while (span * kLatentMostSpans < tokens) span *= 2;
  return span;
}
// Spans that no row exceeds that sees up to `tokens`.
[[nodiscard]] constexpr int64_t LatentSpans(int64_t tokens) {
  const int64_t spans = (tokens + 127) / 128;
  return spans < kLatentMostSpans ? spans : kLatentMostSpans;
}

struct LatentWriteArgs {
  const void* rows;  // bf16 [count, latent + shared]
  int64_t stride;
  int64_t count;
  const int32_t* positions;     // [count], device
  const int32_t* row_sequence;  // [count], device
  LatentPages pages;
};
[[nodiscard]] cudaError_t LatentWrite(const LatentWriteArgs& args,
                                      cudaStream_t stream);

struct LatentAttentionArgs {
  const void* q_latent;  // bf16 [rows, heads, latent]
  int64_t q_latent_stride;
  const void* q_shared;  // bf16: head h's begin at h * head_stride
  int64_t q_shared_stride, head_stride;
  void* out;  // bf16 [rows, heads, latent]; must not overlap the queries
  int64_t out_stride;
  int64_t rows, heads;
  const int32_t* positions;     // [rows], device
  const int32_t* row_sequence;  // [rows], device
  LatentPages pages;
  float scale;
  // Spans of a row that there is room for; 0: rows are not cut, and the last
  // ones, which see most, start first.
  int64_t max_spans;
  void* scratch;  // LatentScratchBytes(), 16-byte aligned
};

[[nodiscard]] int64_t LatentScratchBytes(int64_t rows, int64_t heads,
                                         int64_t max_spans);

// 512 + 64 with aligned rows use the tensor cores, others a plain kernel, which
// cuts no row. invalidValue: sizes beyond the plain kernel's.
[[nodiscard]] cudaError_t LatentAttention(const LatentAttentionArgs& args,
                                          cudaStream_t stream);

}  // namespace baton::cuda
