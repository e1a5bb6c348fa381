// SPDX-License-Identifier: Apache-2.0
// What the kernel of generated tokens works on, and how it combines the results
// of warps and of spans.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/decode_attention.h"

namespace baton::cuda {

inline constexpr int kPage = static_cast<int>(kPageTokens);
inline constexpr int kSpanTokens = static_cast<int>(kDecodeSpan);
inline constexpr int kUnitHeads = 8;        // query heads of a unit, at most
inline constexpr int kMaxDecodeRows = 512;  // of one launch
inline constexpr int kCombineSpans = 128;   // weighted at a time

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

// The ring holds 128 KB whatever the head.
template <int kHeadDim>
struct DecodeShape {
  static constexpr int kWarps = kHeadDim == 256 ? 4 : 8;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kStages = kHeadDim == 64 ? 4 : 2;
  static constexpr int kBlockBytes = 2 * kPage * kHeadDim;  // of keys or values
  static constexpr int kStageBytes = 2 * kBlockBytes;
  static constexpr int kMergeStride = kHeadDim + 4;  // no bank conflicts
  // Pairs of dims of a unit that a thread combines.
  static constexpr int kPairs = kUnitHeads * (kHeadDim / 2) / kThreads;
};

struct DecodeRows {
  int spans_before[kMaxDecodeRows + 1];
  int position[kMaxDecodeRows];
  int sequence[kMaxDecodeRows];
};

template <int kHeadDim>
struct DecodeShared {
  using Shape = DecodeShape<kHeadDim>;
  char ring[Shape::kWarps][Shape::kStages][Shape::kStageBytes];
  uint64_t barriers[Shape::kWarps][Shape::kStages];
  float merge[Shape::kWarps * kUnitHeads * Shape::kMergeStride];
  float2 softmax[Shape::kWarps * kUnitHeads];  // largest score, weight
  DecodeRows rows;
  int is_last;
};

// All threads: what the rows need, and how many spans come before each.
template <int kThreads>
__device__ __forceinline__ void ReadRows(const DecodeWork& work,
                                         DecodeRows& rows) {
  for (int i = static_cast<int>(threadIdx.x); i < work.rows; i += kThreads) {
    const int sequence = LoadInt(work.row_sequence + i);
    const int position = LoadInt(work.positions + i);
    rows.sequence[i] = sequence;
    rows.position[i] = position;
    rows.spans_before[i + 1] = sequence < 0 ? 0 : position / kSpanTokens + 1;
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

__device__ __forceinline__ void StoreOut(const DecodeWork& work, int row,
                                         int head, int head_dim, int dim,
                                         float2 total, float sum) {
  uint16_t* to = work.out + row * work.out_stride + head * head_dim + dim;
  *reinterpret_cast<uint32_t*>(to) = PackBf16(total.x / sum, total.y / sum);
}

// All threads of the last block: the spans of a unit, in order, in two passes:
// the largest score of each head, then the weighted sum.
template <int kHeadDim>
__device__ __forceinline__ void CombineSpans(const DecodeWork& work, int row,
                                             int unit, int spans,
                                             const float* results,
                                             DecodeShared<kHeadDim>& block) {
  using Shape = DecodeShape<kHeadDim>;
  const int thread = static_cast<int>(threadIdx.x);
  const int heads = UnitHeads(work, unit);
  const int64_t stride = ResultFloats(work.stored_heads, kHeadDim);
  const float* softmax = results + work.stored_heads * kHeadDim;
  float* largest = block.merge;                        // [8]
  float* factors = largest + kUnitHeads;               // [8][spans]
  float* sums = factors + kUnitHeads * kCombineSpans;  // [8][spans]
  for (int head = thread / kWarp; head < heads; head += Shape::kWarps) {
    float best = -kInfinity;
    for (int s = thread % kWarp; s < spans; s += kWarp) {
      best = fmaxf(best, __ldcg(softmax + s * stride + 2 * head));
    }
    best = WarpMax(best);
    if (thread % kWarp == 0) largest[head] = best;
  }
  float2 total[Shape::kPairs] = {};
  float sum[Shape::kPairs] = {};
  for (int first = 0; first < spans; first += kCombineSpans) {
    const int count = min(kCombineSpans, spans - first);
    __syncthreads();
    for (int i = thread; i < heads * count; i += Shape::kThreads) {
      const int head = i / count;
      const int s = i % count;
      const float2 x = __ldcg(reinterpret_cast<const float2*>(
          softmax + (first + s) * stride + 2 * head));
      const float factor = exp2f(x.x - largest[head]);
      factors[head * kCombineSpans + s] = factor;
      sums[head * kCombineSpans + s] = factor * x.y;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < Shape::kPairs; ++n) {
      const int pair = thread + n * Shape::kThreads;
      const int head = pair / (kHeadDim / 2);
      if (head >= heads) break;
      const float* from = results + first * stride + 2 * pair;
#pragma unroll 8
      for (int s = 0; s < count; ++s) {
        const float2 x =
            __ldcg(reinterpret_cast<const float2*>(from + s * stride));
        const float factor = factors[head * kCombineSpans + s];
        total[n].x = fmaf(x.x, factor, total[n].x);
        total[n].y = fmaf(x.y, factor, total[n].y);
        sum[n] += sums[head * kCombineSpans + s];
      }
    }
  }
#pragma unroll
  for (int n = 0; n < Shape::kPairs; ++n) {
    const int pair = thread + n * Shape::kThreads;
    const int head = pair / (kHeadDim / 2);
    if (head >= heads) break;
    StoreOut(work, row, UnitHead(work, unit) + head, kHeadDim,
             pair % (kHeadDim / 2) * 2, total[n], sum[n]);
  }
}

// All threads: the results of the first `warps` warps, in order. A row of one
// span is done then; the last span of others combines them all.
template <int kHeadDim>
__device__ __forceinline__ void MergeWarps(const DecodeWork& work, int row,
                                           int unit, int span, int spans,
                                           int warps,
                                           DecodeShared<kHeadDim>& block) {
  using Shape = DecodeShape<kHeadDim>;
  const int thread = static_cast<int>(threadIdx.x);
  const int heads = UnitHeads(work, unit);
  const int64_t place = static_cast<int64_t>(row) * work.units + unit;
  float* results = work.scratch + place * work.max_spans *
                                      ResultFloats(work.stored_heads, kHeadDim);
  float* result = results + span * ResultFloats(work.stored_heads, kHeadDim);
#pragma unroll
  for (int n = 0; n < Shape::kPairs; ++n) {
    const int pair = thread + n * Shape::kThreads;
    const int head = pair / (kHeadDim / 2);
    if (head >= heads) break;
    const int dim = pair % (kHeadDim / 2) * 2;
    float largest = -kInfinity;
    for (int w = 0; w < warps; ++w) {
      largest = fmaxf(largest, block.softmax[w * kUnitHeads + head].x);
    }
    float2 total = {};
    float sum = 0;
    for (int w = 0; w < warps; ++w) {
      const float2 softmax = block.softmax[w * kUnitHeads + head];
      const float factor = exp2f(softmax.x - largest);
      const float2 x = *reinterpret_cast<const float2*>(
          block.merge + (w * kUnitHeads + head) * Shape::kMergeStride + dim);
      total.x = fmaf(x.x, factor, total.x);
      total.y = fmaf(x.y, factor, total.y);
      sum = fmaf(softmax.y, factor, sum);
    }
    if (spans == 1) {
      StoreOut(work, row, UnitHead(work, unit) + head, kHeadDim, dim, total,
               sum);
      continue;
    }
    *reinterpret_cast<float2*>(result + 2 * pair) = total;
    if (dim == 0) {
      *reinterpret_cast<float2*>(result + work.stored_heads * kHeadDim +
                                 2 * head) = {largest, sum};
    }
  }
  if (spans == 1) return;
  __threadfence();
  __syncthreads();
  if (thread == 0) {
    const bool is_last = atomicAdd(work.counters + place, 1) == spans - 1;
    if (is_last) work.counters[place] = 0;
    block.is_last = is_last ? 1 : 0;
  }
  __syncthreads();
  if (block.is_last == 0) return;
  __threadfence();
  CombineSpans<kHeadDim>(work, row, unit, spans, results, block);
}

}  // namespace baton::cuda
