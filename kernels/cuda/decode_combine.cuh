// SPDX-License-Identifier: Apache-2.0
// What the kernel of generated tokens works on, and how it combines the results
// of warps and of spans.
#pragma once

#include "kernels/cuda/barrier.cuh"
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
  const int32_t* positions;       // [rows]
  const int32_t* row_sequence;    // [rows]
  const SequenceRows* sequences;  // or null
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
  static constexpr int kWarps = kHeadDim == 256 ? 4 : 8;  // of each kind
  static constexpr int kThreads = kWarps * kWarp;         // of each kind
  static constexpr int kStages = kHeadDim == 64 ? 4 : 2;
  static constexpr int kBlockBytes = 2 * kPage * kHeadDim;  // of keys or values
  static constexpr int kStageBytes = 2 * kBlockBytes;
  static constexpr int kStateStride = kHeadDim + 4;  // no bank conflicts
  // Pairs of dims of a unit that a thread combines.
  static constexpr int kPairs = kUnitHeads * (kHeadDim / 2) / kThreads;
};

// The last span of a row is its tail; the others are full.
struct DecodeRows {
  int full_before[kMaxDecodeRows + 1];  // spans of the rows before
  int tails_before[kMaxDecodeRows + 1];
  int position[kMaxDecodeRows];
  int sequence[kMaxDecodeRows];
};

// What the visiting warps know of an item.
template <int kHeadDim>
struct DecodeStates {
  using Shape = DecodeShape<kHeadDim>;
  float out[Shape::kWarps * kUnitHeads * Shape::kStateStride];
  float2 softmax[Shape::kWarps * kUnitHeads];  // largest score, weight

  // Of a warp's heads: [kUnitHeads][kStateStride], [kUnitHeads].
  __device__ __forceinline__ float* Out(int warp) {
    return out + warp * kUnitHeads * Shape::kStateStride;
  }
  __device__ __forceinline__ float2* Softmax(int warp) {
    return softmax + warp * kUnitHeads;
  }
};

template <int kHeadDim>
struct DecodeShared {
  using Shape = DecodeShape<kHeadDim>;
  char ring[Shape::kWarps][Shape::kStages][Shape::kStageBytes];
  uint64_t arrived[Shape::kWarps][Shape::kStages];
  DecodeStates<kHeadDim> states[2];
  DecodeRows rows;
  int is_last;
};

// Barriers of a block, beside that of __syncthreads. Visiting warps hand states
// over to the combining ones, which give the place back.
enum DecodeBarrier : int {
  kFull = 1,       // and 2
  kEmpty = 3,      // and 4
  kCombining = 5,  // the combining warps among themselves
};

// Spans before the last one. The last has more than half a span, unless it is
// the only one, and at most one and a half: a short one costs as much as
// others.
constexpr int FullSpans(int tokens) {
  const int rounded = (tokens + kSpanTokens / 2 - 1) / kSpanTokens;
  return rounded > 0 ? rounded - 1 : 0;
}

// Where the spans of a row begin, and how many tokens they have in all.
__device__ __forceinline__ int FirstPage(const DecodeWork& work, int position) {
  return work.pages.FirstSeen(position) / kPage;
}
__device__ __forceinline__ int TokensOf(const DecodeWork& work, int position) {
  return position + 1 - FirstPage(work, position) * kPage;
}

// All threads: what the rows need, and how many spans come before each.
template <int kThreads>
__device__ __forceinline__ void ReadRows(const DecodeWork& work,
                                         DecodeRows& rows) {
  for (int i = static_cast<int>(threadIdx.x); i < work.rows; i += kThreads) {
    const int sequence = LoadInt(work.row_sequence + i);
    const int position = LoadInt(work.positions + i);
    rows.sequence[i] = sequence;
    rows.position[i] = position;
    rows.full_before[i + 1] =
        sequence < 0 ? 0 : FullSpans(TokensOf(work, position));
    rows.tails_before[i + 1] = sequence < 0 ? 0 : 1;
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (warp == 0) AddUp(work.rows, rows.full_before);
  if (warp == 1) AddUp(work.rows, rows.tails_before);
  __syncthreads();
}

// The pages of a span of so many tokens that a warp takes: warp, warp + kWarps,
// ...
template <int kWarps>
__device__ __forceinline__ int PagesOf(int tokens, int warp) {
  const int pages = (tokens + kPage - 1) / kPage;
  return pages > warp ? (pages - warp + kWarps - 1) / kWarps : 0;
}

__device__ __forceinline__ void StoreOut(const DecodeWork& work, int row,
                                         int head, int head_dim, int dim,
                                         float2 total, float sum) {
  uint16_t* to = work.out + row * work.out_stride + head * head_dim + dim;
  *reinterpret_cast<uint32_t*>(to) = PackBf16(total.x / sum, total.y / sum);
}

// A head's sums over parts of the keys, added part by part in a fixed order.
struct CombinedPair {
  float largest = -kInfinity;
  float2 out = {};
  float sum = 0;

  template <int kParts>
  __device__ __forceinline__ void Add(const float2 (&softmax)[kParts],
                                      const float2 (&parts)[kParts]) {
    float best = largest;
#pragma unroll
    for (int i = 0; i < kParts; ++i) best = fmaxf(best, softmax[i].x);
    const float keep = exp2f(largest - best);
    out = {out.x * keep, out.y * keep};
    sum *= keep;
    largest = best;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const float factor = exp2f(softmax[i].x - best);
      out.x = fmaf(parts[i].x, factor, out.x);
      out.y = fmaf(parts[i].y, factor, out.y);
      sum = fmaf(softmax[i].y, factor, sum);
    }
  }
};

// The combining threads of the block that is last: the spans of a unit, eight
// at a time, since each eight are a round trip to L2.
template <int kHeadDim>
__device__ __forceinline__ void CombineSpans(const DecodeWork& work, int row,
                                             int unit, int spans, int thread,
                                             const float* results) {
  using Shape = DecodeShape<kHeadDim>;
  constexpr int kParts = 8;
  const int heads = UnitHeads(work, unit);
  const int64_t stride = ResultFloats(work.stored_heads, kHeadDim);
  const float* of_heads = results + work.stored_heads * kHeadDim;
#pragma unroll
  for (int n = 0; n < Shape::kPairs; ++n) {
    const int pair = thread + n * Shape::kThreads;
    const int head = pair / (kHeadDim / 2);
    if (head >= heads) break;
    CombinedPair total;
    for (int first = 0; first < spans; first += kParts) {
      float2 softmax[kParts];
      float2 parts[kParts];
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const int64_t at = (first + i) * stride;
        softmax[i] = {-kInfinity, 0};
        parts[i] = {};
        if (first + i >= spans) continue;
        softmax[i] =
            __ldcg(reinterpret_cast<const float2*>(of_heads + at + 2 * head));
        parts[i] =
            __ldcg(reinterpret_cast<const float2*>(results + at + 2 * pair));
      }
      total.Add(softmax, parts);
    }
    StoreOut(work, row, UnitHead(work, unit) + head, kHeadDim,
             pair % (kHeadDim / 2) * 2, total.out, total.sum);
  }
}

// The combining threads: the states of the first `warps` visiting warps, in
// order, to the output of a row of one span, else to the scratch.
template <int kHeadDim>
__device__ __forceinline__ void CombineWarps(
    const DecodeWork& work, int row, int unit, int spans, int warps, int thread,
    const DecodeStates<kHeadDim>& states, float* result) {
  using Shape = DecodeShape<kHeadDim>;
  const int heads = UnitHeads(work, unit);
#pragma unroll
  for (int n = 0; n < Shape::kPairs; ++n) {
    const int pair = thread + n * Shape::kThreads;
    const int head = pair / (kHeadDim / 2);
    if (head >= heads) break;
    const int dim = pair % (kHeadDim / 2) * 2;
    float2 softmax[Shape::kWarps];
    float2 parts[Shape::kWarps];
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) {
      const int at = w * kUnitHeads + head;
      softmax[w] = {-kInfinity, 0};
      parts[w] = {};
      if (w >= warps) continue;
      softmax[w] = states.softmax[at];
      parts[w] = *reinterpret_cast<const float2*>(
          states.out + at * Shape::kStateStride + dim);
    }
    CombinedPair total;
    total.Add(softmax, parts);
    if (spans == 1) {
      StoreOut(work, row, UnitHead(work, unit) + head, kHeadDim, dim, total.out,
               total.sum);
      continue;
    }
    *reinterpret_cast<float2*>(result + 2 * pair) = total.out;
    if (dim == 0) {
      *reinterpret_cast<float2*>(result + work.stored_heads * kHeadDim +
                                 2 * head) = {total.largest, total.sum};
    }
  }
}

// The combining threads: whether this span of the unit is the last to be done.
template <int kHeadDim>
__device__ __forceinline__ bool IsLastSpan(const DecodeWork& work, int row,
                                           int unit, int spans, int thread,
                                           DecodeShared<kHeadDim>& block) {
  if (thread == 0) {
    int32_t* counter =
        work.counters + static_cast<int64_t>(row) * work.units + unit;
    __threadfence();
    const bool is_last = atomicAdd(counter, 1) == spans - 1;
    if (is_last) *counter = 0;
    block.is_last = is_last ? 1 : 0;
    __threadfence();
  }
  BarrierSync(kCombining, DecodeShape<kHeadDim>::kThreads);
  return block.is_last != 0;
}

}  // namespace baton::cuda
