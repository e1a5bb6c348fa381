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

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/decode_combine.cuh"
#include "kernels/cuda/decode_page.cuh"
#include "kernels/cuda/tma.cuh"

namespace baton::cuda {

inline constexpr int kMaxFewSpans = 8;   // of a row
inline constexpr int kFewThreads = 256;  // of a block; all combine

template <int kHeadDim>
struct FewShape {
  static constexpr int kMaxVisitors = 512 / kHeadDim;  // warps: 128 KB of pages
  static constexpr int kStages = 4;                    // of each
  static constexpr int kGroup = 4;                     // pages scored together
  static constexpr int kRingBytes =
      kStages * DecodeShape<kHeadDim>::kStageBytes;
};

// What is known of a share.
template <int kHeadDim>
struct ShareState {
  float out[kUnitHeads * DecodeShape<kHeadDim>::kStateStride];
  float2 softmax[kUnitHeads];
};

// How units are shared out. Memory of a block: the rings of its visiting warps,
// their barriers, the states of its shares.
struct FewLayout {
  int block_shift;  // log2 of the blocks of a cluster
  int visitors;     // warps of a block that visit pages
};
// As many warps as have a share each where half of the spans are there: what a
// layout takes, others cannot.
template <int kHeadDim>
[[nodiscard]] constexpr FewLayout FewLayoutOf(int64_t max_spans,
                                              int block_shift) {
  const int64_t shares =
      (max_spans * DecodeShape<kHeadDim>::kWarps) >> block_shift;
  return {block_shift, static_cast<int>(std::clamp<int64_t>(
                           shares / 2, 1, FewShape<kHeadDim>::kMaxVisitors))};
}
template <int kHeadDim>
[[nodiscard]] constexpr int64_t FewSharedBytes(int64_t max_spans,
                                               const FewLayout& layout) {
  using Few = FewShape<kHeadDim>;
  const int64_t shares = CeilDiv(max_spans * DecodeShape<kHeadDim>::kWarps,
                                 int64_t{1} << layout.block_shift);
  return layout.visitors * int64_t{Few::kRingBytes + Few::kStages * 8} +
         shares * static_cast<int64_t>(sizeof(ShareState<kHeadDim>));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The unit of a row that a cluster has.
struct FewUnit {
  int row, unit, kv_head;
  int hidden;            // tokens of the first page before those that it sees
  int tokens, spans;     // hidden ones too
  const int32_t* pages;  // numbers, from the first page on
  int old_pages;         // of them, which the visit does not write

  __device__ __forceinline__ int SpanTokens(int span) const {
    return span < spans - 1 ? kSpanTokens : tokens - (spans - 1) * kSpanTokens;
  }
};

__device__ __forceinline__ FewUnit FindUnit(const DecodeWork& work, int row,
                                            int unit, int sequence) {
  const int position = LoadInt(work.positions + row);
  const int first_page = FirstPage(work, position);
  const int written = work.sequences == nullptr
                          ? 0
                          : LoadInt(&work.sequences[sequence].first_position);
  FewUnit found;
  found.row = row;
  found.unit = unit;
  found.kv_head = unit / work.unit_tiles;
  found.hidden = work.pages.FirstSeen(position) % kPage;
  found.tokens = TokensOf(work, position);
  found.spans = FullSpans(found.tokens) + 1;
  found.pages =
      work.pages.page_table + sequence * work.pages.page_stride + first_page;
  found.old_pages = written / kPage - first_page;
  return found;
}

// Fills a warp's ring with the pages of its shares, in order. The page numbers
// of a share are asked for while pages of the one before are on their way.
template <int kHeadDim>
class ShareFeed {
 public:
  using Shape = DecodeShape<kHeadDim>;
  using Few = FewShape<kHeadDim>;

  // Shares first, first + step, ...
  __device__ __forceinline__ ShareFeed(const DecodeWork& work,
                                       const FewUnit& unit, char* ring,
                                       uint64_t* arrived, int first, int step)
      : work_(work),
        unit_(unit),
        ring_(ring),
        arrived_(arrived),
        share_(first),
        step_(step) {
    Ask();
  }

  // Starts copies of pages below `end` of the unit into the stages that are
  // free when `used` pages have been.
  __device__ __forceinline__ void Fill(int used, int end) {
    while (filled_ - used < Few::kStages) {
      if (next_ == now_.count) {
        if (ahead_.count == 0) return;
        now_ = ahead_;
        next_ = 0;
        Ask();
      }
      if (now_.first + next_ * Shape::kWarps >= end) return;
      const int64_t id = __shfl_sync(kAllLanes, now_.id, next_);
      const char* keys =
          static_cast<const char*>(work_.pages.pool) +
          id * work_.pages.page_bytes +
          static_cast<int64_t>(unit_.kv_head) * Shape::kBlockBytes;
      const int stage = filled_ % Few::kStages;
      StageFill(arrived_ + stage, ring_ + stage * Shape::kStageBytes, keys,
                keys + work_.pages.kv_heads * Shape::kBlockBytes,
                Shape::kBlockBytes);
      ++next_;
      ++filled_;
    }
  }

 private:
  struct Share {
    int count = 0;  // pages
    int first = 0;  // of the unit's pages
    int id = 0;     // lane i: number of its page i
  };

  __device__ __forceinline__ void Ask() {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    ahead_.count = 0;
    while (share_ < unit_.spans * Shape::kWarps && ahead_.count == 0) {
      const int span = share_ / Shape::kWarps;
      const int warp = share_ % Shape::kWarps;
      share_ += step_;
      ahead_.count = PagesOf<Shape::kWarps>(unit_.SpanTokens(span), warp);
      ahead_.first = span * (kSpanTokens / kPage) + warp;
      if (lane < ahead_.count) {
        ahead_.id = LoadInt(unit_.pages + ahead_.first + lane * Shape::kWarps);
      }
    }
  }

  const DecodeWork& work_;
  const FewUnit& unit_;
  char* ring_;
  uint64_t* arrived_;
  int share_, step_;  // the next share to look at
  Share now_, ahead_;
  int next_ = 0;  // page of now_
  int filled_ = 0;
};

// Adds kPages pages of a share, which are the oldest of the ring: scores first,
// which do not wait for each other.
template <int kHeadDim, int kPages>
__device__ __forceinline__ void VisitPages(const DecodeWork& work,
                                           const char* ring, uint64_t* arrived,
                                           int used,
                                           const uint4 (&q)[kHeadDim / 32],
                                           const SeenTokens (&seen)[kPages],
                                           DecodeState<kHeadDim>& state) {
  using Shape = DecodeShape<kHeadDim>;
  constexpr int kStages = FewShape<kHeadDim>::kStages;
  const char* keys[kPages];
  PageScores scores[kPages];
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    const int stage = (used + i) % kStages;
    StageAwait(arrived + stage, (used + i) / kStages);
    keys[i] = ring + stage * Shape::kStageBytes;
  }
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    scores[i] = ScorePage<kHeadDim>(work, keys[i], seen[i], q);
  }
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    AddPage(keys[i] + Shape::kBlockBytes, seen[i], scores[i], state);
  }
  __syncwarp();
}

// A visiting warp: every visitors-th share of the block, from its own on.
template <int kHeadDim>
__device__ __forceinline__ void VisitShares(const DecodeWork& work,
                                            const FewUnit& unit, char* ring,
                                            uint64_t* arrived,
                                            ShareState<kHeadDim>* states,
                                            const FewLayout& layout, int rank) {
  using Shape = DecodeShape<kHeadDim>;
  using Few = FewShape<kHeadDim>;
  constexpr int kAllPages = 1 << 30;
  int place = static_cast<int>(threadIdx.x) / kWarp;  // of the share's state
  const int first = rank + (place << layout.block_shift);
  const int step = layout.visitors << layout.block_shift;
  ShareFeed<kHeadDim> feed(work, unit, ring, arrived, first, step);
  feed.Fill(0, unit.old_pages);
  AwaitPreviousGrids();
  feed.Fill(0, kAllPages);
  uint4 q[kHeadDim / 32];
  LoadQueries<kHeadDim>(work, unit.row, unit.unit, q);
  int used = 0;
  for (int share = first; share < unit.spans * Shape::kWarps;
       share += step, place += layout.visitors) {
    const int tokens = unit.SpanTokens(share / Shape::kWarps);
    const int count = PagesOf<Shape::kWarps>(tokens, share % Shape::kWarps);
    if (count == 0) continue;
    DecodeState<kHeadDim> state;
    int n = 0;
    const auto visit = [&](auto pages) {
      constexpr int kPages = decltype(pages)::value;
      SeenTokens seen[kPages];
#pragma unroll
      for (int i = 0; i < kPages; ++i) {
        const int page = share % Shape::kWarps + (n + i) * Shape::kWarps;
        seen[i] = {share == 0 && page == 0 ? unit.hidden : 0,
                   min(tokens - page * kPage, kPage)};
      }
      VisitPages<kHeadDim, kPages>(work, ring, arrived, used, q, seen, state);
      n += kPages;
      used += kPages;
      feed.Fill(used, kAllPages);
    };
    while (count - n >= Few::kGroup) {
      visit(std::integral_constant<int, Few::kGroup>());
    }
    while (n < count) visit(std::integral_constant<int, 1>());
    PutState(state, states[place].out, states[place].softmax);
  }
}

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

#endif

// Blocks: of a cluster, then units, then rows.
template <int kHeadDim>
__global__ void __launch_bounds__(kFewThreads, 1)
    DecodeFewKernel(DecodeWork work, FewLayout layout) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Few = FewShape<kHeadDim>;
  extern __shared__ __align__(128) char shared[];
  auto* const arrived =
      reinterpret_cast<uint64_t*>(shared + layout.visitors * Few::kRingBytes);
  auto* const states = reinterpret_cast<ShareState<kHeadDim>*>(
      arrived + layout.visitors * Few::kStages);
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
  if (warp < layout.visitors) {
    uint64_t* const own = arrived + warp * Few::kStages;
    if (lane < Few::kStages) StageInit(own + lane);
    StageInitFence();
    __syncwarp();
    VisitShares(work, unit, shared + warp * Few::kRingBytes, own, states,
                layout, rank);
  } else {
    AwaitPreviousGrids();
  }
  ClusterSync();
  CombineShares<kHeadDim>(work, unit, SharedOffset(states), layout.block_shift,
                          rank);
  ClusterMeet();  // others may still read states of this block
#endif
}

}  // namespace baton::cuda
