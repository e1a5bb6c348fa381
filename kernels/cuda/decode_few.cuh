// SPDX-License-Identifier: Apache-2.0
// The tensor-core kernel of few generated tokens. Its bits are those of
// decode_kernel.cuh.
//
// What a warp takes of a span there is a share here, and a cluster of blocks
// has all shares of a unit of a row: share s is of warp s % kWarps of span
// s / kWarps, and block r takes shares r, r + blocks, ... So a multiprocessor
// brings in little. What becomes of a share is sent to the shared memory of
// the blocks, which have a part of the dims each, so that none waits but for
// what it combines. Pages that the visit does not write are fetched while
// earlier grids run.
//
// A row waits for nothing but the instructions of one warp here, so they are
// dealt out: warps of a team score a page each, then add all of them to some
// dims each, in order.
#pragma once

#include "kernels/cuda/decode_visit.cuh"
#include "kernels/cuda/tma.cuh"

namespace baton::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// A block's part of the output, once all that it is sent is there. Threads of a
// warp have some elements of all spans each.
template <int kHeadDim>
class ShareCombiner {
 public:
  static constexpr int kWarps = DecodeShape<kHeadDim>::kWarps;

  __device__ __forceinline__
  ShareCombiner(const FewUnit& unit, const ShareResults<kHeadDim>& results)
      : results_(results), spans_(unit.spans) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    int shift = 0;
    while (1 << shift < spans_) ++shift;
    width_ = kWarp >> shift;
    span_ = (lane << shift) / kWarp;
    element_ =
        static_cast<int>(threadIdx.x) / kWarp * width_ + (lane & (width_ - 1));
    elements_ = unit.heads << results.dims_shift;
    // Shares of the last span that have no pages add nothing.
    for (int i =
             unit.Shares(kWarps) * unit.heads + static_cast<int>(threadIdx.x);
         i < spans_ * kWarps * unit.heads; i += kFewThreads) {
      results.softmax[i] = {-kInfinity, 0};
      for (int dim = 0; dim < 1 << results.dims_shift; ++dim) {
        results.parts[(i << results.dims_shift) + dim] = 0;
      }
    }
  }

  // `out`: of this block's dims of the unit's first head.
  __device__ __forceinline__ void Store(uint16_t* out) const {
    for (int element = element_; __any_sync(kAllLanes, element < elements_);
         element += kFewWarps * width_) {
      const int at = min(element, elements_ - 1);
      const int head = at >> results_.dims_shift;
      const int dim = at & ((1 << results_.dims_shift) - 1);
      Part total = OfSpan(head, dim);
      if (spans_ > 1) total = OfAll(total);
      if (element < elements_ && span_ == 0) {
        out[head * kHeadDim + dim] = ToBf16(total.out / total.sum);
      }
    }
  }

 private:
  // The largest score, the weight, the sum of some shares of an element.
  struct Part {
    float largest, sum, out;
  };

  __device__ __forceinline__ Part OfSpan(int head, int dim) const {
    const int step = results_.heads;
    const int at = min(span_, spans_ - 1) * kWarps * step + head;
    const float2* softmax = results_.softmax + at;
    const float* parts = results_.parts + (at << results_.dims_shift) + dim;
    float2 of_share[kWarps];
    float part[kWarps];
    Part total = {.largest = -kInfinity, .sum = 0, .out = 0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      of_share[w] = softmax[w * step];
      part[w] = parts[(w * step) << results_.dims_shift];
      total.largest = fmaxf(total.largest, of_share[w].x);
    }
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = exp2f(of_share[w].x - total.largest);
      total.out = fmaf(part[w], factor, total.out);
      total.sum = fmaf(of_share[w].y, factor, total.sum);
    }
    return total;
  }

  // From those of all spans, in order.
  __device__ __forceinline__ Part OfAll(const Part& own) const {
    float largest = span_ < spans_ ? own.largest : -kInfinity;
    for (int width = width_; width < kWarp; width *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, width));
    }
    const float factor = exp2f(own.largest - largest);
    Part total = {.largest = largest, .sum = 0, .out = 0};
    for (int s = 0; s < spans_; ++s) {
      const int from =
          (static_cast<int>(threadIdx.x) & (width_ - 1)) + s * width_;
      const float of_span = __shfl_sync(kAllLanes, factor, from);
      total.out =
          fmaf(__shfl_sync(kAllLanes, own.out, from), of_span, total.out);
      total.sum =
          fmaf(__shfl_sync(kAllLanes, own.sum, from), of_span, total.sum);
    }
    return total;
  }

  const ShareResults<kHeadDim>& results_;
  int spans_;
  int width_;  // lanes of a span
  int span_;
  int element_, elements_;
};

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

// What a warp is in its block, and a block in its cluster.
struct FewBlock {
  int team, warp;      // warp: of the team
  bool visits, leads;  // is in a team; is its first warp
  int rank, row, unit;
};
template <int kHeadDim>
__device__ __forceinline__ FewBlock FindBlock(const DecodeWork& work,
                                              const FewLayout& layout) {
  using Few = FewShape<kHeadDim>;
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  const int number = block >> layout.block_shift;
  FewBlock found;
  found.team = min(thread / Few::kTeamThreads, layout.teams - 1);
  found.warp = thread / kWarp % Few::kTeamWarps;
  found.visits = thread < layout.teams * Few::kTeamThreads;
  found.leads = found.visits && found.warp == 0;
  found.rank = block & ((1 << layout.block_shift) - 1);
  found.row = number / work.units;
  found.unit = number % work.units;
  return found;
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
  using Shape = DecodeShape<kHeadDim>;
  using Few = FewShape<kHeadDim>;
  extern __shared__ __align__(128) char shared[];
  const FewPlaces<kHeadDim> places(work.max_spans, work.stored_heads, layout);
  const FewBlock block = FindBlock<kHeadDim>(work, layout);
  auto& entry =
      *reinterpret_cast<DecodeEntry<kHeadDim>*>(shared + places.entry);
  char* const ring = shared + block.team * places.ring_bytes;
  auto* const arrived = reinterpret_cast<uint64_t*>(shared + places.arrived) +
                        (block.team << layout.slot_shift);
  AllowNextGrid();
  const int sequence = LoadInt(work.row_sequence + block.row);
  if (sequence < 0) {  // all blocks of the cluster
    AwaitPreviousGrids();
    return;
  }
  const FewUnit unit = FindUnit(work, block.row, block.unit, sequence);
  const ShareResults<kHeadDim> results = {
      .softmax = reinterpret_cast<float2*>(shared + places.softmax),
      .parts = reinterpret_cast<float*>(shared + places.parts),
      .received = reinterpret_cast<uint64_t*>(shared + places.received),
      .heads = unit.heads,
      .dims_shift = Few::kDimsShift - layout.block_shift};
  const uint32_t received = SharedOffset(results.received);
  if (threadIdx.x == 0) {
    BarrierInitFor(received, results.Bytes(unit.Shares(Shape::kWarps)));
  }
  if (block.leads && threadIdx.x % kWarp == 0) {
    StagesInit(arrived, 1 << layout.slot_shift);
  }
  __syncwarp();
  const GroupCursor<kHeadDim> first(
      unit,
      block.visits ? block.rank + (block.team << layout.block_shift) : kNoShare,
      layout.teams << layout.block_shift);
  GroupFeed<kHeadDim> feed(work, unit, ring, arrived, layout.slot_shift, first);
  // Nobody else writes to the pages if this kernel does.
  if (block.leads) {
    feed.Fill(0, kKeys == FewKeys::kEnters ? kAllPages : unit.old_pages);
  }
  ShareVisitor<kHeadDim> visitor(work, unit, ring, arrived, layout.slot_shift,
                                 block.team, block.warp, first, results);
  const ShareCombiner<kHeadDim> combiner(unit, results);
  uint16_t* const out = work.out + block.row * work.out_stride +
                        unit.first_head * kHeadDim +
                        (block.rank << results.dims_shift);
  __syncthreads();
  ClusterMeet();  // barriers are there
  NewToken<kHeadDim> token;
  Place place = {};
  bool stores = false;  // the token, for all blocks that have it
  uint4 q[kHeadDim / 32];
  if constexpr (kKeys == FewKeys::kEnters) {
    visitor.AwaitFirst();
    token = {&entry, (unit.tokens - 1) / kPage, unit.position % kPage};
    place = PlaceOf(work.pages, sequence, unit.position);
    stores = Kept(block.rank == 0 && unit.unit % work.unit_tiles == 0);
    EnterUnit<kHeadDim, kFewThreads>(args, shape,
                                     {.row = block.row,
                                      .position = unit.position,
                                      .first_head = unit.first_head,
                                      .heads = unit.heads,
                                      .kv_head = unit.kv_head},
                                     entry);
    __syncthreads();
    TakeQueries(entry, unit.heads, q);
  } else {
    AwaitPreviousGrids();
    if (block.leads) feed.Fill(0, kAllPages);
    visitor.AwaitFirst();
    LoadQueries<kHeadDim>(work, block.row, unit.unit, q);
  }
  visitor.VisitAll(feed, token, q);
  if (stores) {
    StoreToken<kHeadDim, kFewThreads>(work.pages, place, unit.kv_head, entry);
  }
  BarrierWaitCluster(received, 0);
  combiner.Store(out);
#endif
}

}  // namespace baton::cuda
