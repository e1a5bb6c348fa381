// SPDX-License-Identifier: Apache-2.0
// Attention for head sizes that have no tensor-core kernel: one block per row
// and query head, keys in blocks of 128 from the first that the row sees. For
// small models and odd ones; it claims no speed.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/prompt_attention.h"

namespace baton::cuda {

inline constexpr int kPlainThreads = 128;
inline constexpr int kPlainMaxHeadDim = 256;

struct PlainAttentionWork {
  const uint16_t* q;  // [rows, q_heads, head_dim]
  int64_t q_stride;
  uint16_t* out;  // [rows, q_heads, head_dim]
  int64_t out_stride;
  int group;                    // query heads of a KV head
  const int32_t* positions;     // [rows], or null: rows come from tiles
  const int32_t* row_sequence;  // [rows]
  const PromptTile* tiles;      // block x / kPromptTileRows is the tile
  KvPages pages;
  float scale_log2;  // scale * log2(e)
};

struct PlainRow {
  int64_t row;
  int position;
  int sequence;  // below zero: nothing to do
};

__device__ inline PlainRow FindPlainRow(const PlainAttentionWork& work) {
  const auto block = static_cast<int64_t>(blockIdx.x);
  if (work.positions != nullptr) {
    return {block, LoadInt(work.positions + block),
            LoadInt(work.row_sequence + block)};
  }
  const auto* tile =
      reinterpret_cast<const int32_t*>(work.tiles + block / kPromptTileRows);
  const int i = static_cast<int>(block % kPromptTileRows);
  if (i >= LoadInt(tile + 1)) return {0, 0, -1};
  return {LoadInt(tile) + i, LoadInt(tile + 2) + i, LoadInt(tile + 3)};
}

__device__ inline float PlainDot(const float* q, const uint16_t* key,
                                 int head_dim) {
  float sum = 0;
  for (int d = 0; d < head_dim; d += 2) {
    const uint32_t pair = Load4(key + d);
    sum = fmaf(q[d], LowOf(pair), sum);
    sum = fmaf(q[d + 1], HighOf(pair), sum);
  }
  return sum;
}

static __global__ void __launch_bounds__(kPlainThreads)
    PlainAttentionKernel(PlainAttentionWork work) {
  __shared__ float q[kPlainMaxHeadDim];
  __shared__ float weights[kPlainThreads];
  __shared__ float scratch[2][kPlainThreads / kWarp];
  constexpr int kDims = kPlainMaxHeadDim / kPlainThreads;
  EnterKernel();
  const PlainRow row = FindPlainRow(work);
  if (row.sequence < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const auto head_dim = static_cast<int>(work.pages.head_dim);
  const int64_t keys_at = head / work.group * kPageTokens * head_dim;
  const int64_t values_at =
      work.pages.kv_heads * kPageTokens * head_dim + keys_at;
  const int32_t* table =
      work.pages.page_table + row.sequence * work.pages.page_stride;
  const auto page_of = [&](int token) {
    const int64_t id = LoadInt(table + token / kPageTokens);
    return reinterpret_cast<const uint16_t*>(
        static_cast<const char*>(work.pages.pool) + id * work.pages.page_bytes);
  };
  for (int d = thread; d < head_dim; d += kPlainThreads) {
    q[d] =
        FromBf16(Load2(work.q + row.row * work.q_stride + head * head_dim + d));
  }
  __syncthreads();
  float total[kDims] = {};
  float sum = 0;
  float largest = -kInfinity;
  for (int begin = work.pages.FirstSeen(row.position); begin <= row.position;
       begin += kPlainThreads) {
    const int count = min(kPlainThreads, row.position + 1 - begin);
    float score = -kInfinity;
    if (thread < count) {
      const int token = begin + thread;
      const uint16_t* key =
          page_of(token) + keys_at + token % kPageTokens * head_dim;
      score = PlainDot(q, key, head_dim) * work.scale_log2;
    }
    const float best = fmaxf(largest, BlockMax(score, scratch[0]));
    const float factor = exp2f(largest - best);
    largest = best;
    const float weight = exp2f(score - best);
    weights[thread] = weight;
    sum = sum * factor + BlockSum(weight, scratch[1]);
    for (int i = 0; i < kDims; ++i) {
      const int d = thread + i * kPlainThreads;
      if (d >= head_dim) break;
      float part = 0;
      for (int t = 0; t < count; ++t) {
        const int token = begin + t;
        const uint16_t* value =
            page_of(token) + values_at + d * kPageTokens + token % kPageTokens;
        part = fmaf(weights[t], FromBf16(Load2(value)), part);
      }
      total[i] = fmaf(total[i], factor, part);
    }
    __syncthreads();
  }
  for (int i = 0; i < kDims; ++i) {
    const int d = thread + i * kPlainThreads;
    if (d >= head_dim) break;
    work.out[row.row * work.out_stride + head * head_dim + d] =
        ToBf16(total[i] / sum);
  }
}

}  // namespace baton::cuda
