// SPDX-License-Identifier: Apache-2.0
// The tensor-core kernel of generated tokens.
//
// Blocks walk over work items: (row, span, unit), where a unit is up to 8 query
// heads of one KV head. One warp of a block only fetches: it keeps a ring of
// stages on their way, across items. The others, the visitors, take the stages
// of an item in turn. Scores are computed transposed, [16 tokens of a page, 8
// heads], and so is the output, [dims, 8 heads], so that the 8 columns of the
// instruction are heads and no row of it is idle.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/decode_combine.cuh"
#include "kernels/cuda/mma.cuh"

namespace baton::cuda {

// Blocks of a multiprocessor overlap each other's merges. Together they have
// 128 KB or more of stages.
template <int kHeadDim>
struct DecodeShape {
  static constexpr int kThreads = kVisitors + kWarp;
  static constexpr int kBlocks = kHeadDim == 64 ? 3 : 2;  // of a multiprocessor
  // Pages of a stage, which one softmax step takes.
  static constexpr int kStagePages = kHeadDim == 256 ? 1 : 2;
  static constexpr int kStageTokens = kStagePages * kPage;
  static constexpr int kStages = kHeadDim == 64 ? 7 : kHeadDim == 128 ? 5 : 4;
  static constexpr int kBlockBytes = 2 * kPage * kHeadDim;  // of keys or values
  static constexpr int kPageBytes = 2 * kBlockBytes;
};

template <int kHeadDim>
struct DecodeShared {
  using Shape = DecodeShape<kHeadDim>;
  char ring[Shape::kStages][Shape::kStagePages][Shape::kPageBytes];
  uint64_t filled[Shape::kStages];
  uint64_t emptied[Shape::kStages];
  DecodeMerge<kHeadDim> merge;
  DecodeRows rows;
};

template <int kHeadDim>
__device__ __forceinline__ int StagesOf(const DecodeItem& item) {
  constexpr int kTokens = DecodeShape<kHeadDim>::kStageTokens;
  return (item.tokens + kTokens - 1) / kTokens;
}

// ---- Fetching --------------------------------------------------------------

// All lanes of the fetching warp: one item. `fills` counts stages.
template <int kHeadDim>
__device__ __forceinline__ void FetchItem(const DecodeWork& work,
                                          const DecodeItem& item, int& fills,
                                          DecodeShared<kHeadDim>& block) {
  using Shape = DecodeShape<kHeadDim>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int pages = (item.tokens + kPage - 1) / kPage;
  const int64_t kv_head = item.unit / work.unit_tiles;
  const char* pool =
      static_cast<const char*>(work.pages.pool) + kv_head * Shape::kBlockBytes;
  const int64_t values_at = work.pages.kv_heads * Shape::kBlockBytes;
  const int32_t* table =
      work.pages.page_table +
      block.rows.sequence[item.row] * work.pages.page_stride +
      item.first / kPage;
  for (int first = 0; first < pages; first += kWarp) {
    const int count = min(kWarp, pages - first);
    const int own = lane < count ? LoadInt(table + first + lane) : 0;
#pragma unroll 1
    for (int at = 0; at < count; at += Shape::kStagePages, ++fills) {
      const int stage = fills % Shape::kStages;
      const int turn = fills / Shape::kStages;
      if (turn > 0) BarrierAwait(&block.emptied[stage], turn - 1);
      const int here = min(Shape::kStagePages, count - at);
      uint64_t* filled = &block.filled[stage];
      if (lane == 0) BarrierAnnounce(filled, here * Shape::kPageBytes);
      for (int i = 0; i < here; ++i) {
        const int64_t id = __shfl_sync(kAllLanes, own, at + i);
        if (lane != 0) continue;
        const char* keys = pool + id * work.pages.page_bytes;
        char* to = block.ring[stage][i];
        CopyBulk(to, keys, Shape::kBlockBytes, filled);
        CopyBulk(to + Shape::kBlockBytes, keys + values_at, Shape::kBlockBytes,
                 filled);
      }
    }
  }
}

// ---- Visiting --------------------------------------------------------------

// A visitor: waits for its next fill, number `fill`; returns the stage.
//
// The stage's fill before is another warp's, and may land after later ones, so
// it is awaited as well: over when its warp has emptied the stage. The one
// before that has been emptied: this warp visited a fill since the last barrier
// of the block that was started after it, or has visited none.
template <int kHeadDim>
__device__ __forceinline__ const char* AwaitFill(DecodeShared<kHeadDim>& block,
                                                 int fill) {
  using Shape = DecodeShape<kHeadDim>;
  static_assert(Shape::kStages >= kVisitorWarps);
  const int stage = fill % Shape::kStages;
  const int turn = fill / Shape::kStages;
  if (turn > 0) BarrierAwait(&block.emptied[stage], turn - 1);
  BarrierAwait(&block.filled[stage], turn);
  return block.ring[stage][0];
}

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
  float largest[2] = {-kInfinity, -kInfinity};
  float sum[2] = {};
  float out[kHeadDim / 16][4] = {};  // C of 16 dims: heads 2q, 2q + 1
};

// Token (0 to 15) that row g of the scores stands for; row g + 8 is two more.
// So the four weights of a lane belong to tokens [4 q, 4 q + 4) of the values.
__device__ __forceinline__ int RowToken(int g) { return g / 2 * 4 + g % 2; }

// Scores of a page, times log2(e); -infinity from token `visible` on.
template <int kHeadDim>
__device__ __forceinline__ void Scores(const char* keys,
                                       const uint4 (&q)[kHeadDim / 32],
                                       float scale_log2, int visible,
                                       float (&score)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int token = RowToken(lane / 4);
  const char* low = keys + token * (2 * kHeadDim) + lane % 4 * 16;
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
  for (int i = 0; i < 4; ++i) {
    const bool sees = token + i / 2 * 2 < visible;
    score[i] = sees ? (even[i] + odd[i]) * scale_log2 : -kInfinity;
  }
}

// Scores become weights relative to the largest score so far; what the state
// holds is rescaled. Multiplying by one is left out, which changes no bit.
template <int kHeadDim, int kPages>
__device__ __forceinline__ void Weigh(float (&score)[kPages][4],
                                      DecodeState<kHeadDim>& state) {
  float factor[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float best = fmaxf(score[0][i], score[0][i + 2]);
#pragma unroll
    for (int p = 1; p < kPages; ++p) {
      best = fmaxf(best, fmaxf(score[p][i], score[p][i + 2]));
    }
#pragma unroll
    for (int width = 4; width < kWarp; width *= 2) {
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, width));
    }
    best = fmaxf(best, state.largest[i]);
    factor[i] = Exp2(state.largest[i] - best);
    state.largest[i] = best;
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kPages; ++p) {
      score[p][i] = Exp2(score[p][i] - best);
      score[p][i + 2] = Exp2(score[p][i + 2] - best);
      sum += score[p][i] + score[p][i + 2];
    }
    state.sum[i] = state.sum[i] * factor[i] + sum;
  }
  if (__all_sync(kAllLanes, factor[0] == 1.0f && factor[1] == 1.0f)) return;
#pragma unroll
  for (int t = 0; t < kHeadDim / 16; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state.out[t][i] *= factor[i % 2];
  }
}

// Adds the values of a page.
template <int kHeadDim>
__device__ __forceinline__ void AddValues(const char* values,
                                          const float (&weight)[4], int visible,
                                          DecodeState<kHeadDim>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t b0 = Transpose(PackBf16(weight[0], weight[1]));
  const uint32_t b1 = Transpose(PackBf16(weight[2], weight[3]));
  // What was never written must not meet a weight of zero: it may be NaN.
  const int left = visible - lane % 4 * 4;
  const uint32_t keep_low = left >= 2 ? ~0u : left == 1 ? 0xffffu : 0u;
  const uint32_t keep_high = left >= 4 ? ~0u : left == 3 ? 0xffffu : 0u;
  const char* from = values + lane / 4 * 32 + lane % 4 * 8;
#pragma unroll
  for (int t = 0; t < kHeadDim / 16; ++t) {
    const uint2 v = *reinterpret_cast<const uint2*>(from + t * 512);
    const uint2 w = *reinterpret_cast<const uint2*>(from + t * 512 + 256);
    Mma(state.out[t],
        {v.x & keep_low, w.x & keep_low, v.y & keep_high, w.y & keep_high}, b0,
        b1);
  }
}

// One stage, of which the first `visible` tokens (at least 1) count.
template <int kHeadDim>
__device__ __forceinline__ void VisitStage(const DecodeWork& work,
                                           const char* stage, int visible,
                                           const uint4 (&q)[kHeadDim / 32],
                                           DecodeState<kHeadDim>& state) {
  using Shape = DecodeShape<kHeadDim>;
  float score[Shape::kStagePages][4];
#pragma unroll
  for (int p = 0; p < Shape::kStagePages; ++p) {
    Scores<kHeadDim>(stage + p * Shape::kPageBytes, q, work.scale_log2,
                     visible - p * kPage, score[p]);
  }
  Weigh<kHeadDim, Shape::kStagePages>(score, state);
#pragma unroll
  for (int p = 0; p < Shape::kStagePages; ++p) {
    AddValues<kHeadDim>(stage + p * Shape::kPageBytes + Shape::kBlockBytes,
                        score[p], visible - p * kPage, state);
  }
}

// The warp's result to shared memory.
template <int kHeadDim>
__device__ __forceinline__ void PutState(const DecodeState<kHeadDim>& state,
                                         DecodeMerge<kHeadDim>& merge) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = warp * kUnitHeads + lane % 4 * 2 + i;
    float sum = state.sum[i];
#pragma unroll
    for (int width = 4; width < kWarp; width *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, width);
    }
    if (lane / 4 == 0) merge.softmax[at] = {state.largest[i], sum};
    float* to = merge.out + at * DecodeMerge<kHeadDim>::kStride + lane / 4;
#pragma unroll
    for (int t = 0; t < kHeadDim / 16; ++t) {
      to[t * 16] = state.out[t][i];
      to[t * 16 + 8] = state.out[t][i + 2];
    }
  }
}

// All visitors: the items of this block.
template <int kHeadDim>
__device__ __forceinline__ void VisitItems(const DecodeWork& work, int items,
                                           DecodeShared<kHeadDim>& block) {
  using Shape = DecodeShape<kHeadDim>;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int step = static_cast<int>(gridDim.x);
  uint4 q[kHeadDim / 32];
  DecodeItem item = FindItem(work, block.rows, static_cast<int>(blockIdx.x));
  LoadQueries<kHeadDim>(work, item, q);
  DecodeTally tally;
  int begun = 0;  // stages of items before
  // Once more than there are items: what the last one left to combine.
  for (int i = static_cast<int>(blockIdx.x); i < items + step; i += step) {
    const bool is_item = i < items;
    const int stages = is_item ? StagesOf<kHeadDim>(item) : 0;
    DecodeState<kHeadDim> state;
    for (int n = warp; n < stages; n += kVisitorWarps) {
      const char* stage = AwaitFill(block, begun + n);
      VisitStage<kHeadDim>(
          work, stage,
          min(item.tokens - n * Shape::kStageTokens, Shape::kStageTokens), q,
          state);
      __syncwarp();
      if (lane == 0) {
        BarrierArrive(&block.emptied[(begun + n) % Shape::kStages]);
      }
    }
    begun += stages;
    const DecodeItem done = item;
    if (i + step < items) {
      item = FindItem(work, block.rows, i + step);
      LoadQueries<kHeadDim>(work, item, q);
    }
    if (warp < stages) PutState(state, block.merge);
    tally.Tell(work, block.merge.is_last);
    SyncVisitors();
    const bool is_last = block.merge.is_last != 0;
    if (is_item) {
      MergeWarps<kHeadDim>(work, done, min(stages, kVisitorWarps), block.merge);
    }
    if (is_last) tally.Combine<kHeadDim>(work, block.merge);
    if (!is_item) return;
    SyncVisitors();
    tally.Count(work, done);
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(DecodeShape<kHeadDim>::kThreads,
                                  DecodeShape<kHeadDim>::kBlocks)
    DecodeKernel(DecodeWork work) {
  using Shape = DecodeShape<kHeadDim>;
  extern __shared__ __align__(128) char shared[];
  auto& block = *reinterpret_cast<DecodeShared<kHeadDim>*>(shared);
  const int thread = static_cast<int>(threadIdx.x);
  AllowNextGrid();
  if (thread < Shape::kStages) {
    BarrierInit(&block.filled[thread]);
    BarrierInit(&block.emptied[thread]);
  }
  BarrierInitFence();
  AwaitPreviousGrids();
  ReadRows(work, block.rows);
  const int items = block.rows.spans_before[work.rows] * work.units;
  if (static_cast<int>(blockIdx.x) >= items) return;
  if (thread < kVisitors) {
    VisitItems(work, items, block);
    return;
  }
  int fills = 0;
  for (int i = static_cast<int>(blockIdx.x); i < items;
       i += static_cast<int>(gridDim.x)) {
    FetchItem(work, FindItem(work, block.rows, i), fills, block);
  }
}

}  // namespace baton::cuda
