// SPDX-License-Identifier: Apache-2.0
// The tensor-core kernel of generated tokens.
//
// One block per multiprocessor walks over work items: (row, span, unit), where
// a unit is up to 8 query heads of one KV head. Each warp has its own ring of
// pages, which runs ahead into the next items.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/decode_combine.cuh"
#include "kernels/cuda/decode_page.cuh"

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
      ahead.count = PagesOf<Shape::kWarps>(found.tokens, warp);
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
    const int count = PagesOf<Shape::kWarps>(item.tokens, warp);
    uint4 q[kHeadDim / 32];
    LoadQueries<kHeadDim>(work, item.row, item.unit, q);
    DecodeState<kHeadDim> state;
    for (int n = 0; n < count; ++n, ++used) {
      const int stage = used % Shape::kStages;
      StageAwait(&block.arrived[warp][stage], used / Shape::kStages);
      const int page = warp + n * Shape::kWarps;
      const SeenTokens seen = {page == 0 ? item.hidden : 0,
                               min(item.tokens - page * kPage, kPage)};
      char* const keys = block.ring[warp][stage];
      if (!seen.IsAll()) {
        ClearUnseen<kHeadDim>(keys + Shape::kBlockBytes, seen);
        StageFence();
      }
      const PageScores scores = ScorePage<kHeadDim>(work, keys, seen, q);
      AddPage(keys + Shape::kBlockBytes, WeighPage(scores, state.largest),
              state);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        state.largest[h] = fmaxf(scores.best[h], state.largest[h]);
      }
      __syncwarp();
      feed.Next(work, block.rows, items, warp, block.ring[warp][0],
                block.arrived[warp]);
    }
    if (done >= 2) BarrierSync(kEmpty + done % 2, 2 * Shape::kThreads);
    if (count > 0) {
      DecodeStates<kHeadDim>& states = block.states[done % 2];
      PutState(state, states.Out(warp), states.Softmax(warp));
    }
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
  if (warp < Shape::kWarps && lane == 0) {
    StagesInit(block.arrived[warp], Shape::kStages);
  }
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
