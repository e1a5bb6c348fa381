// SPDX-License-Identifier: Apache-2.0
// Shares of a unit of a row, as decode_few.cuh deals them to teams of warps,
// and how their pages get into shared memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/decode_entry.cuh"
#include "kernels/cuda/decode_page.cuh"

namespace baton::cuda {

inline constexpr int kMaxFewSpans = 8;  // of a row
inline constexpr int kFewWarps = 8;     // of a block
inline constexpr int kFewThreads = kFewWarps * kWarp;

// A team of warps takes a share, a group of pages at a time: each scores a page
// of it, then adds all of them to its dims of the output.
template <int kHeadDim>
struct FewShape {
  static constexpr int kTeamWarps = kHeadDim == 256 ? 8 : 4;
  static constexpr int kTeamThreads = kTeamWarps * kWarp;
  static constexpr int kMaxTeams = kFewWarps / kTeamWarps;
  static constexpr int kWarpDims = kHeadDim / kTeamWarps;
  // Pages of a group, at most: where they are small, all of a share.
  static constexpr int kGroup = kHeadDim == 64 ? 6 : 4;
  static constexpr int kRounds = (kGroup + kTeamWarps - 1) / kTeamWarps;
  static constexpr int kDimsShift = std::countr_zero(unsigned{kHeadDim});
  static constexpr int kGroupBytes =
      kGroup * DecodeShape<kHeadDim>::kStageBytes;
};

// How units are shared out.
struct FewLayout {
  int block_shift;  // log2 of the blocks of a cluster
  int teams;        // of a block
  int slot_shift;   // log2 of the groups in flight per team
};
// What a team has to do where half of the spans are there decides: memory that
// a layout takes, others cannot.
template <int kHeadDim>
[[nodiscard]] constexpr FewLayout FewLayoutOf(int64_t max_spans,
                                              int block_shift) {
  using Few = FewShape<kHeadDim>;
  constexpr int kWarps = DecodeShape<kHeadDim>::kWarps;
  constexpr int kSharePages = kSpanTokens / kPage / kWarps;
  const int64_t shares =
      std::max<int64_t>(1, (max_spans * kWarps) >> block_shift >> 1);
  const auto teams =
      static_cast<int>(std::min<int64_t>(shares, Few::kMaxTeams));
  const bool is_one_group =
      CeilDiv(shares, int64_t{teams}) * kSharePages <= Few::kGroup;
  return {block_shift, teams, is_one_group ? 0 : 1};
}

// Where a block has what, in bytes: the rings of its teams, the unit's
// DecodeEntry, then what all shares send to this block: the largest score and
// the weight of each head, sums of its part of the dims; barriers.
template <int kHeadDim>
struct FewPlaces {
  constexpr FewPlaces(int64_t max_spans, int heads, const FewLayout& layout)
      : ring_bytes(FewShape<kHeadDim>::kGroupBytes << layout.slot_shift) {
    const auto shares =
        static_cast<int>(max_spans) * DecodeShape<kHeadDim>::kWarps;
    entry = layout.teams * ring_bytes;
    softmax = entry + static_cast<int>(sizeof(DecodeEntry<kHeadDim>));
    parts = softmax + shares * heads * 8;
    arrived = parts + shares * heads * ((kHeadDim >> layout.block_shift) * 4);
    received = arrived + (layout.teams << layout.slot_shift) * 8;
    bytes = received + 8;
  }
  int ring_bytes;  // of a team
  int entry, softmax, parts, arrived, received, bytes;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

inline constexpr int kAllPages = 1 << 30;
inline constexpr int kNoShare = 1 << 16;  // of a warp that visits none

// The unit of a row that a cluster has.
struct FewUnit {
  int unit, kv_head, position;
  int first_head, heads;  // of q
  int hidden;             // tokens of the first page before those that it sees
  int tokens, spans;      // hidden ones too
  const int32_t* pages;   // numbers, from the first page on
  int old_pages;          // of them, which the visit does not write

  // Shares that have pages, of spans that have so many each.
  __device__ __forceinline__ int Shares(int of_span) const {
    const int last_tokens = tokens - (spans - 1) * kSpanTokens;
    const int last_pages = (last_tokens + kPage - 1) / kPage;
    return (spans - 1) * of_span + min(last_pages, of_span);
  }
  __device__ __forceinline__ SeenTokens Seen(int page) const {
    return {page == 0 ? hidden : 0, min(tokens - page * kPage, kPage)};
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
  found.unit = unit;
  found.kv_head = unit / work.unit_tiles;
  found.first_head = UnitHead(work, unit);
  found.heads = UnitHeads(work, unit);
  found.position = position;
  found.hidden = work.pages.FirstSeen(position) % kPage;
  found.tokens = TokensOf(work, position);
  found.spans = FullSpans(found.tokens) + 1;
  found.pages =
      work.pages.page_table + sequence * work.pages.page_stride + first_page;
  found.old_pages = written / kPage - first_page;
  return found;
}

// Walks over the groups of pages of shares first, first + step, ...
template <int kHeadDim>
class GroupCursor {
 public:
  static constexpr int kWarps = DecodeShape<kHeadDim>::kWarps;
  static constexpr int kGroup = FewShape<kHeadDim>::kGroup;

  __device__ __forceinline__ GroupCursor(const FewUnit& unit, int first,
                                         int step)
      : tokens_(unit.tokens),
        spans_(unit.spans),
        shares_(unit.Shares(kWarps)),
        share_(first),
        step_(step) {
    Begin();
  }

  __device__ __forceinline__ int Share() const { return share_; }
  __device__ __forceinline__ int Pages() const {  // 0: past the end
    return min(left_, kGroup);
  }
  __device__ __forceinline__ bool EndsShare() const { return left_ <= kGroup; }
  // Of the unit's pages: page i of the group.
  __device__ __forceinline__ int Page(int i) const {
    return first_ + i * kWarps;
  }
  __device__ __forceinline__ void Advance() {
    left_ -= kGroup;
    first_ += kGroup * kWarps;
    if (left_ > 0) return;
    share_ += step_;
    Begin();
  }

 private:
  __device__ __forceinline__ void Begin() {
    const int span = share_ / kWarps;
    const int tokens =
        span < spans_ - 1 ? kSpanTokens : tokens_ - span * kSpanTokens;
    left_ = share_ < shares_ ? PagesOf<kWarps>(tokens, share_ % kWarps) : 0;
    first_ = span * (kSpanTokens / kPage) + share_ % kWarps;
  }

  int tokens_, spans_, shares_;
  int share_, step_;
  int left_;   // pages of the share
  int first_;  // of the unit's pages
};

// Fills a team's ring with groups of pages, in order. The page numbers of a
// group are asked for while the one before is on its way.
template <int kHeadDim>
class GroupFeed {
 public:
  using Shape = DecodeShape<kHeadDim>;

  // Of one warp.
  __device__ __forceinline__ GroupFeed(const DecodeWork& work,
                                       const FewUnit& unit, char* ring,
                                       uint64_t* arrived, int slot_shift,
                                       const GroupCursor<kHeadDim>& first)
      : work_(work),
        unit_(unit),
        ring_(ring),
        arrived_(arrived),
        slots_(1 << slot_shift),
        next_(first) {
    Ask();
  }

  // Starts copies of groups of pages below `end` of the unit into the slots
  // that are free when `used` groups have been.
  __device__ __forceinline__ void Fill(int used, int end) {
    while (filled_ - used < slots_) {
      const int pages = next_.Pages();
      if (pages == 0 || next_.Page(pages - 1) >= end) return;
      const int slot = filled_ & (slots_ - 1);
      const int ids = ids_;
      next_.Advance();
      Ask();
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
      if (lane == 0) {
        BarrierExpect(SharedOffset(arrived_ + slot),
                      pages * Shape::kStageBytes);
      }
#pragma unroll 1
      for (int i = 0; i < pages; ++i) {
        const int64_t id = __shfl_sync(kAllLanes, ids, i);
        const char* keys =
            static_cast<const char*>(work_.pages.pool) +
            id * work_.pages.page_bytes +
            static_cast<int64_t>(unit_.kv_head) * Shape::kBlockBytes;
        StageCopy(arrived_ + slot,
                  ring_ + slot * FewShape<kHeadDim>::kGroupBytes +
                      i * Shape::kStageBytes,
                  keys, keys + work_.pages.kv_heads * Shape::kBlockBytes,
                  Shape::kBlockBytes);
      }
      ++filled_;
    }
  }

 private:
  __device__ __forceinline__ void Ask() {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (lane < next_.Pages()) ids_ = LoadInt(unit_.pages + next_.Page(lane));
  }

  const DecodeWork& work_;
  const FewUnit& unit_;
  char* ring_;
  uint64_t* arrived_;
  int slots_;
  GroupCursor<kHeadDim> next_;
  int ids_ = 0;  // lane i: number of page i of the next group
  int filled_ = 0;
};

#endif

}  // namespace baton::cuda
