// SPDX-License-Identifier: Apache-2.0
// Shares of a unit of a row, as decode_few.cuh deals them to warps: their
// pages, and what is known of each.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/decode_entry.cuh"
#include "kernels/cuda/decode_page.cuh"

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
// their barriers, the unit's DecodeEntry, the states of its shares.
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
         shares * static_cast<int64_t>(sizeof(ShareState<kHeadDim>)) +
         static_cast<int64_t>(sizeof(DecodeEntry<kHeadDim>));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

inline constexpr int kAllPages = 1 << 30;
inline constexpr int kNoShare = 1 << 30;  // of a warp that visits none

// The unit of a row that a cluster has.
struct FewUnit {
  int row, unit, kv_head, position;
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
  found.position = position;
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

// Pages [first, first + kPages) of the shares of a warp, the oldest of the
// ring.
template <int kHeadDim, int kPages>
struct PageGroup {
  using Shape = DecodeShape<kHeadDim>;
  const char* keys[kPages];
  SeenTokens seen[kPages];

  __device__ __forceinline__ void Await(char* ring, uint64_t* arrived,
                                        int used) {
    constexpr int kStages = FewShape<kHeadDim>::kStages;
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      const int stage = (used + i) % kStages;
      StageAwait(arrived + stage, (used + i) / kStages);
      keys[i] = ring + stage * Shape::kStageBytes;
    }
  }
  // Scores first, which do not wait for each other.
  __device__ __forceinline__ void AddTo(const DecodeWork& work,
                                        const uint4 (&q)[kHeadDim / 32],
                                        DecodeState<kHeadDim>& state) const {
    PageScores scores[kPages];
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
};

// A visiting warp.
template <int kHeadDim>
struct ShareVisitor {
  using Shape = DecodeShape<kHeadDim>;
  using Few = FewShape<kHeadDim>;

  const DecodeWork& work;
  const FewUnit& unit;
  ShareFeed<kHeadDim>& feed;
  char* ring;
  uint64_t* arrived;
  int used = 0;  // pages

  // Pages n to n + kPages of a share.
  template <int kPages>
  __device__ __forceinline__ void Visit(int share, int n,
                                        const NewToken<kHeadDim>& token,
                                        const uint4 (&q)[kHeadDim / 32],
                                        DecodeState<kHeadDim>& state) {
    const int span = share / Shape::kWarps;
    const int tokens = unit.SpanTokens(span);
    PageGroup<kHeadDim, kPages> group;
    group.Await(ring, arrived, used);
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      const int page = share % Shape::kWarps + (n + i) * Shape::kWarps;
      group.seen[i] = {share == 0 && page == 0 ? unit.hidden : 0,
                       min(tokens - page * kPage, kPage)};
      if (span * (kSpanTokens / kPage) + page == token.page) {
        token.PutInto(ring + (used + i) % Few::kStages * Shape::kStageBytes);
      }
    }
    group.AddTo(work, q, state);
    used += kPages;
    feed.Fill(used, kAllPages);
  }

  // Shares first, first + step, ..., whose states are in every
  // place_step-th place from `place` on.
  __device__ __forceinline__ void VisitAll(int first, int step,
                                           const NewToken<kHeadDim>& token,
                                           const uint4 (&q)[kHeadDim / 32],
                                           ShareState<kHeadDim>* place,
                                           int place_step) {
    for (int share = first; share < unit.spans * Shape::kWarps;
         share += step, place += place_step) {
      const int count = PagesOf<Shape::kWarps>(
          unit.SpanTokens(share / Shape::kWarps), share % Shape::kWarps);
      if (count == 0) continue;
      DecodeState<kHeadDim> state;
      int n = 0;
      for (; count - n >= Few::kGroup; n += Few::kGroup) {
        Visit<Few::kGroup>(share, n, token, q, state);
      }
      for (; n < count; ++n) Visit<1>(share, n, token, q, state);
      PutState(state, place->out, place->softmax);
    }
  }
};

#endif

}  // namespace baton::cuda
