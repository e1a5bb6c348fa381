// SPDX-License-Identifier: Apache-2.0
// The tensor-core kernel of few generated tokens. Its bits are those of
// decode_kernel.cuh.
//
// What a warp takes of a span there is a share here, and a cluster of blocks
// has all shares of a unit of a row: share s is of warp s % kWarps of span
// s / kWarps, and block r takes shares r, r + blocks, ... So a multiprocessor
// brings in little, and the states of all shares are combined where they are,
// in the shared memory of the cluster, by one barrier. Pages that the visit
// does not write are fetched while earlier grids run.
#pragma once

#include "kernels/cuda/decode_shares.cuh"
#include "kernels/cuda/tma.cuh"

namespace baton::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Where a thread finds the states of all shares at its head and pair of dims.
template <int kHeadDim>
struct StatesOfCluster {
  uint32_t base;  // of the first state, the same in every block
  int block_shift;
  int head, dim;

  // Of a span, of which so many warps had pages.
  __device__ __forceinline__ CombinedPair Span(int span, int warps) const {
    using Shape = DecodeShape<kHeadDim>;
    float2 softmax[Shape::kWarps];
    float2 parts[Shape::kWarps];
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) {
      softmax[w] = {-kInfinity, 0};
      parts[w] = {};
      if (w >= warps) continue;
      const int share = span * Shape::kWarps + w;
      const uint32_t state =
          AddressIn(share & ((1 << block_shift) - 1),
                    base + (share >> block_shift) *
                               static_cast<int>(sizeof(ShareState<kHeadDim>)));
      parts[w] = LoadPairIn(state + 4 * (head * Shape::kStateStride + dim));
      softmax[w] = LoadPairIn(state + offsetof(ShareState<kHeadDim>, softmax) +
                              8 * head);
    }
    CombinedPair total;
    total.Add(softmax, parts);
    return total;
  }
};

// A block's share of the output: warps of pairs of dims are dealt to blocks.
template <int kHeadDim>
__device__ __forceinline__ void CombineShares(const DecodeWork& work,
                                              const FewUnit& unit,
                                              uint32_t states, int block_shift,
                                              int rank) {
  using Shape = DecodeShape<kHeadDim>;
  const int thread = static_cast<int>(threadIdx.x);
  const int pairs = UnitHeads(work, unit.unit) * (kHeadDim / 2);
  for (int i = thread / kWarp;; i += kFewThreads / kWarp) {
    const int pair = ((i << block_shift) + rank) * kWarp + thread % kWarp;
    if (pair >= pairs) break;
    const StatesOfCluster<kHeadDim> at = {.base = states,
                                          .block_shift = block_shift,
                                          .head = pair / (kHeadDim / 2),
                                          .dim = pair % (kHeadDim / 2) * 2};
    float2 softmax[kMaxFewSpans];
    float2 parts[kMaxFewSpans];
#pragma unroll
    for (int span = 0; span < kMaxFewSpans; ++span) {
      softmax[span] = {-kInfinity, 0};
      parts[span] = {};
      if (span >= unit.spans) continue;
      const int pages = (unit.SpanTokens(span) + kPage - 1) / kPage;
      const CombinedPair total = at.Span(span, min(pages, Shape::kWarps));
      softmax[span] = {total.largest, total.sum};
      parts[span] = total.out;
    }
    CombinedPair all = {
        .largest = softmax[0].x, .out = parts[0], .sum = softmax[0].y};
    if (unit.spans > 1) {
      all = {};
      all.Add(softmax, parts);
    }
    StoreOut(work, unit.row, UnitHead(work, unit.unit) + at.head, kHeadDim,
             at.dim, all.out, all.sum);
  }
}

// A unit's queries out of shared memory, as LoadQueries has them.
template <int kHeadDim>
__device__ __forceinline__ void TakeQueries(const DecodeEntry<kHeadDim>& entry,
                                            int heads,
                                            uint4 (&q)[kHeadDim / 32]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint16_t* from = entry.q + lane / 4 * kHeadDim + lane % 4 * 8;
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    q[j] = lane / 4 < heads ? *reinterpret_cast<const uint4*>(from + j * 32)
                            : uint4{0, 0, 0, 0};
  }
}

#endif

// Where keys and values come from.
enum class FewKeys {
  kStored,  // all of them out of pages
  kEnters,  // but the row's own: this kernel stores them, and rotates
};

// Blocks: of a cluster, then units, then rows.
template <int kHeadDim, FewKeys kKeys>
__global__ void __launch_bounds__(kFewThreads, 1)
    DecodeFewKernel(DecodeWork work, FewLayout layout, RotateAndStoreArgs args,
                    HeadShape shape) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Few = FewShape<kHeadDim>;
  extern __shared__ __align__(128) char shared[];
  auto* const arrived =
      reinterpret_cast<uint64_t*>(shared + layout.visitors * Few::kRingBytes);
  auto& entry = *reinterpret_cast<DecodeEntry<kHeadDim>*>(
      arrived + layout.visitors * Few::kStages);
  auto* const states = reinterpret_cast<ShareState<kHeadDim>*>(&entry + 1);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int rank =
      static_cast<int>(blockIdx.x) & ((1 << layout.block_shift) - 1);
  const int number = static_cast<int>(blockIdx.x) >> layout.block_shift;
  const int row = number / work.units;
  AllowNextGrid();
  const int sequence = LoadInt(work.row_sequence + row);
  if (sequence < 0) {  // all blocks of the cluster
    AwaitPreviousGrids();
    return;
  }
  const FewUnit unit = FindUnit(work, row, number % work.units, sequence);
  const bool visits = warp < layout.visitors;
  char* const ring = shared + (visits ? warp : 0) * Few::kRingBytes;
  uint64_t* const own = arrived + (visits ? warp : 0) * Few::kStages;
  if (visits && lane == 0) StagesInit(own, Few::kStages);
  __syncwarp();
  const int first = visits ? rank + (warp << layout.block_shift) : kNoShare;
  const int step = layout.visitors << layout.block_shift;
  ShareFeed<kHeadDim> feed(work, unit, ring, own, first, step);
  NewToken<kHeadDim> token;
  uint4 q[kHeadDim / 32];
  if constexpr (kKeys == FewKeys::kEnters) {
    if (visits) feed.Fill(0, kAllPages);  // nobody else writes to them
    token = {&entry, (unit.tokens - 1) / kPage, unit.position % kPage};
    EnterUnit<kHeadDim, kFewThreads>(
        args, shape,
        {.row = row,
         .position = unit.position,
         .first_head = UnitHead(work, unit.unit),
         .heads = UnitHeads(work, unit.unit),
         .kv_head = unit.kv_head,
         .place = PlaceOf(work.pages, sequence, unit.position),
         .stores = rank == 0 && unit.unit % work.unit_tiles == 0},
        entry);
    __syncthreads();
    TakeQueries(entry, UnitHeads(work, unit.unit), q);
  } else {
    if (visits) feed.Fill(0, unit.old_pages);
    AwaitPreviousGrids();
    if (visits) feed.Fill(0, kAllPages);
    LoadQueries<kHeadDim>(work, row, unit.unit, q);
  }
  ShareVisitor<kHeadDim>{work, unit, feed, ring, own}.VisitAll(
      first, step, token, q, states + warp, layout.visitors);
  ClusterSync();
  CombineShares<kHeadDim>(work, unit, SharedOffset(states), layout.block_shift,
                          rank);
  ClusterMeet();  // others may still read states of this block
#endif
}

}  // namespace baton::cuda
