// SPDX-License-Identifier: Apache-2.0
// What the kernel of generated tokens works on, and how it is cut into items.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/decode_attention.h"

namespace baton::cuda {

inline constexpr int kPage = static_cast<int>(kPageTokens);
inline constexpr int kUnitHeads = 8;        // query heads of a unit, at most
inline constexpr int kMaxDecodeRows = 512;  // of one launch

struct DecodeWork {
  const uint16_t* q;  // [rows, q_heads, head_dim]
  int64_t q_stride;
  uint16_t* out;  // [rows, q_heads, head_dim]
  int64_t out_stride;
  const int32_t* positions;     // [rows]
  const int32_t* row_sequence;  // [rows]
  KvPages pages;
  float scale_log2;   // scale * log2(e)
  int rows;           // at most kMaxDecodeRows
  int group;          // query heads of a KV head
  int unit_tiles;     // units of a KV head
  int units;          // of a row
  int stored_heads;   // of a unit in the scratch
  int64_t max_spans;  // of a row in the scratch
  // Of span s of unit u of row r, at ((r units + u) max_spans + s):
  //   [stored_heads][head_dim] sums, [stored_heads][2] largest score, weight
  float* scratch;
  int32_t* counters;  // [rows, units]: spans done
};

__device__ __forceinline__ int UnitHead(const DecodeWork& work, int unit) {
  return unit / work.unit_tiles * work.group +
         unit % work.unit_tiles * kUnitHeads;
}
__device__ __forceinline__ int UnitHeads(const DecodeWork& work, int unit) {
  const int left = work.group - unit % work.unit_tiles * kUnitHeads;
  return left < kUnitHeads ? left : kUnitHeads;
}

// Floats of a span's result, padded to 16 bytes.
__host__ __device__ constexpr int64_t ResultFloats(int64_t stored_heads,
                                                   int64_t head_dim) {
  return stored_heads * (head_dim + 4);
}

// Tokens of a span of a sequence of so many: few where there is little to share
// out among multiprocessors, many where there would be many results to combine.
__host__ __device__ constexpr int64_t SpanTokens(int64_t tokens) {
  return tokens <= 1024    ? 128
         : tokens <= 8192  ? 256
         : tokens <= 32768 ? 512
                           : 1024;
}
// The most spans of a sequence of up to so many tokens.
constexpr int64_t MaxSpans(int64_t tokens) {
  int64_t most = 1;
  for (const int64_t end : {int64_t{1024}, int64_t{8192}, int64_t{32768}}) {
    const int64_t t = tokens < end ? tokens : end;
    const int64_t spans = CeilDiv(t, SpanTokens(t));
    most = spans > most ? spans : most;
  }
  const int64_t spans = CeilDiv(tokens, SpanTokens(tokens));
  return spans > most ? spans : most;
}

struct DecodeRows {
  int spans_before[kMaxDecodeRows + 1];
  int position[kMaxDecodeRows];
  int sequence[kMaxDecodeRows];
};

// All threads: what the rows need, and how many spans come before each.
__device__ __forceinline__ void ReadRows(const DecodeWork& work,
                                         DecodeRows& rows) {
  for (int i = static_cast<int>(threadIdx.x); i < work.rows;
       i += static_cast<int>(blockDim.x)) {
    const int sequence = LoadInt(work.row_sequence + i);
    const int position = LoadInt(work.positions + i);
    const int tokens = position + 1;
    const auto span = static_cast<int>(SpanTokens(tokens));
    rows.sequence[i] = sequence;
    rows.position[i] = position;
    rows.spans_before[i + 1] = sequence < 0 ? 0 : (tokens + span - 1) / span;
  }
  if (threadIdx.x == 0) rows.spans_before[0] = 0;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const int lane = static_cast<int>(threadIdx.x);
    int before = 0;
    for (int first = 0; first < work.rows; first += kWarp) {
      const int i = first + lane;
      int sum = i < work.rows ? rows.spans_before[i + 1] : 0;
#pragma unroll
      for (int width = 1; width < kWarp; width *= 2) {
        const int other = __shfl_up_sync(kAllLanes, sum, width);
        if (lane >= width) sum += other;
      }
      if (i < work.rows) rows.spans_before[i + 1] = before + sum;
      before += __shfl_sync(kAllLanes, sum, kWarp - 1);
    }
  }
  __syncthreads();
}

// One span of one unit of one row.
struct DecodeItem {
  int row, unit, span;
  int spans;   // of the row
  int first;   // token of the sequence
  int tokens;  // at least 1
};

__device__ __forceinline__ DecodeItem FindItem(const DecodeWork& work,
                                               const DecodeRows& rows,
                                               int item) {
  const int number = item / work.units;
  int low = 0;  // spans_before[low] <= number < spans_before[high]
  int high = work.rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (rows.spans_before[middle] <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int all = rows.position[low] + 1;
  const auto size = static_cast<int>(SpanTokens(all));
  DecodeItem found;
  found.row = low;
  found.unit = item - number * work.units;
  found.span = number - rows.spans_before[low];
  found.spans = rows.spans_before[low + 1] - rows.spans_before[low];
  found.first = found.span * size;
  const int left = all - found.first;
  found.tokens = left < size ? left : size;
  return found;
}

}  // namespace baton::cuda
