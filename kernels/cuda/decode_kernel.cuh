// SPDX-License-Identifier: Apache-2.0
// The tensor-core kernel of generated tokens.
//
// One block per multiprocessor walks over work items: (row, span, unit), where
// a unit is up to 8 query heads of one KV head. Scores are computed transposed,
// [16 tokens of a page, 8 heads], and so is the output, [dims, 8 heads], so
// that the 8 columns of the instruction are heads and no row of it is idle.
// Each warp has its own ring of pages, which runs ahead into the next items.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/decode_combine.cuh"
#include "kernels/cuda/mma.cuh"

namespace baton::cuda {

// Where an item's keys are.
struct DecodeItem {
  int row, unit, span;
  int page;    // of the sequence, where the span begins
  int hidden;  // tokens of that page before those that the row sees
  int tokens;  // of the span, 1 to 1.5 kDecodeSpan, hidden ones too
  int spans;   // of the row
};

// The row r for which before[r] <= number < before[r + 1].
__device__ __forceinline__ int FindRow(const int* before, int rows,
                                       int number) {
  int low = 0;
  int high = rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (before[middle] <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Full spans come first, tails fill up the blocks that have fewer of them.
__device__ __forceinline__ DecodeItem FindItem(const DecodeWork& work,
                                               const DecodeRows& rows,
                                               int item) {
  const int number = item / work.units;
  const int full = rows.full_before[work.rows];
  const bool is_full = number < full;
  DecodeItem found;
  found.row = is_full ? FindRow(rows.full_before, work.rows, number)
                      : FindRow(rows.tails_before, work.rows, number - full);
  const int before = rows.full_before[found.row];
  const int full_spans = rows.full_before[found.row + 1] - before;
  const int position = rows.position[found.row];
  found.unit = item % work.units;
  found.span = is_full ? number - before : full_spans;
  found.spans = full_spans + 1;
  found.page = FirstPage(work, position) + found.span * (kSpanTokens / kPage);
  found.hidden = found.span == 0 ? work.pages.FirstSeen(position) % kPage : 0;
  found.tokens = is_full ? kSpanTokens
                         : TokensOf(work, position) - full_spans * kSpanTokens;
  return found;
}

// The pages of a span that a warp takes: warp, warp + kWarps, ...
template <int kWarps>
__device__ __forceinline__ int PagesOf(const DecodeItem& item, int warp) {
  const int pages = (item.tokens + kPage - 1) / kPage;
  return pages > warp ? (pages - warp + kWarps - 1) / kWarps : 0;
}

// Fills a warp's ring, page after page, item after item. The page numbers of an
// item are asked for while pages of the one before are on their way.
template <int kHeadDim>
struct DecodeFeed {
  using Shape = DecodeShape<kHeadDim>;

  struct Item {
    int count = 0;  // pages of this warp
    int page = 0;   // lane i: number of its page i
    int kv_head = 0;
  };

  __device__ __forceinline__ void Ask(const DecodeWork& work,
                                      const DecodeRows& rows, int items,
                                      int warp) {
    ahead.count = 0;
    while (item < items && ahead.count == 0) {
      const DecodeItem found = FindItem(work, rows, item);
      item += static_cast<int>(gridDim.x);
      ahead.count = PagesOf<Shape::kWarps>(found, warp);
      ahead.kv_head = found.unit / work.unit_tiles;
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
      if (lane < ahead.count) {
        ahead.page = LoadInt(work.pages.page_table +
                             rows.sequence[found.row] * work.pages.page_stride +
                             found.page + warp + lane * Shape::kWarps);
      }
    }
  }

  __device__ __forceinline__ void Next(const DecodeWork& work,
                                       const DecodeRows& rows, int items,
                                       int warp, char* ring,
                                       uint64_t* barriers) {
    if (next == now.count) {
      if (ahead.count == 0) return;
      now = ahead;
      next = 0;
    }
    const int64_t id = __shfl_sync(kAllLanes, now.page, next);
    const char* keys = static_cast<const char*>(work.pages.pool) +
                       id * work.pages.page_bytes +
                       static_cast<int64_t>(now.kv_head) * Shape::kBlockBytes;
    const char* values = keys + work.pages.kv_heads * Shape::kBlockBytes;
    const int stage = filled % Shape::kStages;
    StageFill(barriers + stage, ring + stage * Shape::kStageBytes, keys, values,
              Shape::kBlockBytes);
    if (next == 0) Ask(work, rows, items, warp);
    ++next;
    ++filled;
  }

  int item;  // the next one to look at
  Item now;
  Item ahead;
  int next = 0;  // page of `now`
  int filled = 0;
};

// Queries of a unit, as B: of dims [32 j + 8 q, + 8) the lane holds all, and
// the two steps of block j take words (0, 1) and (2, 3) of both operands.
template <int kHeadDim>
__device__ __forceinline__ void LoadQueries(const DecodeWork& work,
                                            const DecodeItem& item,
                                            uint4 (&q)[kHeadDim / 32]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head = UnitHead(work, item.unit) + lane / 4;
  const bool is_head = lane / 4 < UnitHeads(work, item.unit);
  const uint16_t* from =
      work.q + item.row * work.q_stride + head * kHeadDim + lane % 4 * 8;
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    q[j] = is_head ? Load16(from + j * 32) : uint4{0, 0, 0, 0};
  }
}

// What a warp knows of its heads 2q and 2q + 1. `sum` is this lane's part.
template <int kHeadDim>
struct DecodeState {
  float largest[2];
  float sum[2];
  float out[kHeadDim / 16][4];  // C of 16 dims: heads 2q, 2q + 1
};

// Token (0 to 15) that row g of the scores stands for; row g + 8 is two more.
// So the four weights of a lane belong to tokens [4 q, 4 q + 4) of the values.
__device__ __forceinline__ int RowToken(int g) { return g / 2 * 4 + g % 2; }

// Whether a token of a page is one of [begin, end), those that the row sees.
__device__ __forceinline__ bool IsSeen(int token, int begin, int end) {
  return token >= begin && token < end;
}
// A mask of a word of two bf16, of this token and the next one.
__device__ __forceinline__ uint32_t SeenPair(int token, int begin, int end) {
  return (IsSeen(token, begin, end) ? 0xffffu : 0u) |
         (IsSeen(token + 1, begin, end) ? 0xffff0000u : 0u);
}

template <int kHeadDim>
__device__ __forceinline__ void Scores(const char* keys,
                                       const uint4 (&q)[kHeadDim / 32],
                                       float (&score)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const char* low = keys + RowToken(lane / 4) * (2 * kHeadDim) + lane % 4 * 16;
  const char* high = low + 2 * (2 * kHeadDim);
  float even[4] = {};
  float odd[4] = {};
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    const uint4 k = *reinterpret_cast<const uint4*>(low + j * 64);
    const uint4 l = *reinterpret_cast<const uint4*>(high + j * 64);
    Mma(even, {k.x, l.x, k.y, l.y}, q[j].x, q[j].y);
    Mma(odd, {k.z, l.z, k.w, l.w}, q[j].z, q[j].w);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) score[i] = even[i] + odd[i];
}

// A page, of which the row sees tokens [begin, end), one at the least.
template <int kHeadDim>
__device__ __forceinline__ void VisitPage(const DecodeWork& work,
                                          const char* keys, int begin, int end,
                                          const uint4 (&q)[kHeadDim / 32],
                                          DecodeState<kHeadDim>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const char* values = keys + DecodeShape<kHeadDim>::kBlockBytes;
  float score[4];
  Scores<kHeadDim>(keys, q, score);
  const int token = RowToken(lane / 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool sees = IsSeen(token + i / 2 * 2, begin, end);
    score[i] = sees ? score[i] * work.scale_log2 : -kInfinity;
  }
  float factor[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float best = fmaxf(score[i], score[i + 2]);
#pragma unroll
    for (int width = 4; width < kWarp; width *= 2) {
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, width));
    }
    best = fmaxf(best, state.largest[i]);
    factor[i] = Exp2(state.largest[i] - best);
    state.largest[i] = best;
    score[i] = Exp2(score[i] - best);
    score[i + 2] = Exp2(score[i + 2] - best);
    state.sum[i] = state.sum[i] * factor[i] + (score[i] + score[i + 2]);
  }
  const uint32_t b0 = Transpose(PackBf16(score[0], score[1]));
  const uint32_t b1 = Transpose(PackBf16(score[2], score[3]));
  // What was never written must not meet a weight of zero: it may be NaN.
  const uint32_t keep_low = SeenPair(lane % 4 * 4, begin, end);
  const uint32_t keep_high = SeenPair(lane % 4 * 4 + 2, begin, end);
  const char* from = values + lane / 4 * 32 + lane % 4 * 8;
#pragma unroll
  for (int t = 0; t < kHeadDim / 16; ++t) {
    const uint2 v = *reinterpret_cast<const uint2*>(from + t * 512);
    const uint2 w = *reinterpret_cast<const uint2*>(from + t * 512 + 256);
#pragma unroll
    for (int i = 0; i < 4; ++i) state.out[t][i] *= factor[i % 2];
    Mma(state.out[t],
        {v.x & keep_low, w.x & keep_low, v.y & keep_high, w.y & keep_high}, b0,
        b1);
  }
}

// The warp's state to shared memory.
template <int kHeadDim>
__device__ __forceinline__ void PutState(const DecodeState<kHeadDim>& state,
                                         int warp,
                                         DecodeStates<kHeadDim>& states) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = warp * kUnitHeads + lane % 4 * 2 + i;
    float sum = state.sum[i];
#pragma unroll
    for (int width = 4; width < kWarp; width *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, width);
    }
    if (lane / 4 == 0) states.softmax[at] = {state.largest[i], sum};
    float* to =
        states.out + at * DecodeShape<kHeadDim>::kStateStride + lane / 4;
#pragma unroll
    for (int t = 0; t < kHeadDim / 16; ++t) {
      to[t * 16] = state.out[t][i];
      to[t * 16 + 8] = state.out[t][i + 2];
    }
  }
}

// A visiting warp: its pages of all items of the block.
template <int kHeadDim>
__device__ __forceinline__ void VisitItems(const DecodeWork& work, int items,
                                           int warp,
                                           DecodeShared<kHeadDim>& block) {
  using Shape = DecodeShape<kHeadDim>;
  DecodeFeed<kHeadDim> feed;
  feed.item = static_cast<int>(blockIdx.x);
  feed.Ask(work, block.rows, items, warp);
  AwaitPreviousGrids();
  for (int i = 0; i < Shape::kStages; ++i) {
    feed.Next(work, block.rows, items, warp, block.ring[warp][0],
              block.arrived[warp]);
  }
  int used = 0;
  int done = 0;
  for (int i = static_cast<int>(blockIdx.x); i < items;
       i += static_cast<int>(gridDim.x), ++done) {
    const DecodeItem item = FindItem(work, block.rows, i);
    const int count = PagesOf<Shape::kWarps>(item, warp);
    uint4 q[kHeadDim / 32];
    LoadQueries<kHeadDim>(work, item, q);
    DecodeState<kHeadDim> state = {};
    state.largest[0] = state.largest[1] = -kInfinity;
    for (int n = 0; n < count; ++n, ++used) {
      const int stage = used % Shape::kStages;
      StageAwait(&block.arrived[warp][stage], used / Shape::kStages);
      const int page = warp + n * Shape::kWarps;
      VisitPage<kHeadDim>(work, block.ring[warp][stage],
                          page == 0 ? item.hidden : 0,
                          min(item.tokens - page * kPage, kPage), q, state);
      __syncwarp();
      feed.Next(work, block.rows, items, warp, block.ring[warp][0],
                block.arrived[warp]);
    }
    if (done >= 2) BarrierSync(kEmpty + done % 2, 2 * Shape::kThreads);
    if (count > 0) PutState(state, warp, block.states[done % 2]);
    BarrierArrive(kFull + done % 2, 2 * Shape::kThreads);
  }
}

// The combining warps: what the visiting warps made of each item, while these
// are at the next ones.
template <int kHeadDim>
__device__ __forceinline__ void CombineItems(const DecodeWork& work, int items,
                                             int thread,
                                             DecodeShared<kHeadDim>& block) {
  using Shape = DecodeShape<kHeadDim>;
  AwaitPreviousGrids();
  const int step = static_cast<int>(gridDim.x);
  int done = 0;
  for (int i = static_cast<int>(blockIdx.x); i < items; i += step, ++done) {
    const DecodeItem item = FindItem(work, block.rows, i);
    const int pages = (item.tokens + kPage - 1) / kPage;
    const int64_t place =
        static_cast<int64_t>(item.row) * work.units + item.unit;
    const int64_t stride = ResultFloats(work.stored_heads, kHeadDim);
    float* results = work.scratch + place * work.max_spans * stride;
    BarrierSync(kFull + done % 2, 2 * Shape::kThreads);
    CombineWarps<kHeadDim>(
        work, item.row, item.unit, item.spans, min(pages, Shape::kWarps),
        thread, block.states[done % 2], results + item.span * stride);
    BarrierSync(kCombining, Shape::kThreads);  // states read, results written
    if (i + 2 * step < items) {
      BarrierArrive(kEmpty + done % 2, 2 * Shape::kThreads);
    }
    if (item.spans > 1 && IsLastSpan<kHeadDim>(work, item.row, item.unit,
                                               item.spans, thread, block)) {
      CombineSpans<kHeadDim>(work, item.row, item.unit, item.spans, thread,
                             results);
    }
  }
}

// Rows, positions and page numbers are read ahead of the grids before: the
// visit's upload wrote them before its first kernel started.
template <int kHeadDim>
__global__ void __launch_bounds__(2 * DecodeShape<kHeadDim>::kThreads, 1)
    DecodeKernel(DecodeWork work) {
  using Shape = DecodeShape<kHeadDim>;
  extern __shared__ __align__(128) char shared[];
  auto& block = *reinterpret_cast<DecodeShared<kHeadDim>*>(shared);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  AllowNextGrid();
  if (warp < Shape::kWarps && lane < Shape::kStages) {
    StageInit(&block.arrived[warp][lane]);
  }
  StageInitFence();
  ReadRows<2 * Shape::kThreads>(work, block.rows);
  const int items =
      (block.rows.full_before[work.rows] + block.rows.tails_before[work.rows]) *
      work.units;
  if (warp < Shape::kWarps) {
    VisitItems<kHeadDim>(work, items, warp, block);
  } else {
    CombineItems<kHeadDim>(
        work, items, static_cast<int>(threadIdx.x) - Shape::kThreads, block);
  }
}

}  // namespace baton::cuda
