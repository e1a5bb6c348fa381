// SPDX-License-Identifier: Apache-2.0
// How a team of warps visits its shares (decode_shares.cuh), and how what
// becomes of them gets to the blocks of the cluster.
#pragma once

#include "kernels/cuda/decode_shares.cuh"
#include "kernels/cuda/tma.cuh"

namespace baton::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// What a page's warp tells the others of its team, in place of the keys. Of a
// lane, or of heads 2q and 2q + 1.
struct PageNotes {
  uint2 weights[kWarp];  // PageWeights' low, high
  float2 sum[kWarp];
  float2 factor[4], best[4];
};

// What the blocks of a cluster tell each other about shares: each has a part
// of the dims. It lies at the same places in all blocks.
template <int kHeadDim>
struct ShareResults {
  float2* softmax;     // [shares][heads] largest score, weight
  float* parts;        // [shares][heads][dims of a block]
  uint64_t* received;  // the barrier
  int heads;
  int dims_shift;  // log2 of the dims of a block

  // That a block receives of so many shares.
  __device__ __forceinline__ int Bytes(int shares) const {
    return shares * heads * (8 + (4 << dims_shift));
  }
};

// How a lane of a team's warp sends what became of a share.
template <int kHeadDim>
class ShareSender {
 public:
  static constexpr int kWarpDims = FewShape<kHeadDim>::kWarpDims;

  __device__ __forceinline__ ShareSender(const ShareResults<kHeadDim>& results,
                                         int warp)
      : warp_(warp), heads_(results.heads), dims_shift_(results.dims_shift) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int head = lane % 4 * 2;
    const uint32_t received = SharedOffset(results.received);
#pragma unroll
    for (int t = 0; t < kWarpDims / 8; ++t) {
      const int dim = warp * kWarpDims + t * 8 + lane / 4;
      const int block = dim >> dims_shift_;
      const int local = dim & ((1 << dims_shift_) - 1);
      parts_[t] = AddressIn(
          block, SharedOffset(results.parts + (head << dims_shift_) + local));
      received_[t] = AddressIn(block, received);
    }
    // The first two warps have the weight of one head of a lane each.
    const int block = lane / 4;
    sends_ =
        warp < 2 && head + warp < heads_ && block < kHeadDim >> dims_shift_;
    softmax_ = AddressIn(sends_ ? block : 0,
                         SharedOffset(results.softmax + head + warp));
    softmax_received_ = AddressIn(sends_ ? block : 0, received);
  }

  __device__ __forceinline__ void Send(
      int share, const DecodeState<kWarpDims>& state) const {
    const int head = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (head + i >= heads_) continue;
      const uint32_t at = 4 * ((share * heads_ + i) << dims_shift_);
#pragma unroll
      for (int t = 0; t < kWarpDims / 8; ++t) {
        SendTo(parts_[t] + at, state.out[t / 2][t % 2 * 2 + i], received_[t]);
      }
    }
    if (warp_ >= 2) return;
    const float sum = SumOfLanes(warp_ == 0 ? state.sum[0] : state.sum[1]);
    const float largest = warp_ == 0 ? state.largest[0] : state.largest[1];
    if (sends_) {
      SendPairTo(softmax_ + 8 * share * heads_, {largest, sum},
                 softmax_received_);
    }
  }

 private:
  int warp_, heads_, dims_shift_;
  bool sends_;
  uint32_t parts_[kWarpDims / 8], received_[kWarpDims / 8];
  uint32_t softmax_, softmax_received_;
};

// A warp of a team at its shares.
template <int kHeadDim>
class ShareVisitor {
 public:
  using Shape = DecodeShape<kHeadDim>;
  using Few = FewShape<kHeadDim>;

  // `warp`: of the team.
  __device__ __forceinline__ ShareVisitor(const DecodeWork& work,
                                          const FewUnit& unit, char* ring,
                                          uint64_t* arrived, int slot_shift,
                                          int team, int warp,
                                          const GroupCursor<kHeadDim>& first,
                                          const ShareResults<kHeadDim>& results)
      : work_(work),
        unit_(unit),
        ring_(ring),
        arrived_(arrived),
        slot_shift_(slot_shift),
        team_(team),
        warp_(warp),
        now_(first),
        sender_(results, warp) {}

  // For the first group, if there is any.
  __device__ __forceinline__ void AwaitFirst() const {
    if (now_.Pages() > 0) Await();
  }

  // Behind that. `feed`: of the first warp.
  __device__ __forceinline__ void VisitAll(GroupFeed<kHeadDim>& feed,
                                           const NewToken<kHeadDim>& token,
                                           const uint4 (&q)[kHeadDim / 32]) {
    DecodeState<Few::kWarpDims> state;
    while (now_.Pages() > 0) {
      Visit(token, q, state);
      ++used_;
      if (now_.EndsShare()) {
        sender_.Send(now_.Share(), state);
        state = {};
      }
      now_.Advance();
      if (now_.Pages() == 0) return;
      StageFence();  // of what this warp has changed in a page
      Sync();
      if (warp_ == 0) feed.Fill(used_, kAllPages);
      Await();
    }
  }

 private:
  __device__ __forceinline__ void Sync() const {
    BarrierSync(1 + team_, Few::kTeamThreads);
  }
  __device__ __forceinline__ int Slot() const {
    return used_ & ((1 << slot_shift_) - 1);
  }
  __device__ __forceinline__ void Await() const {
    BarrierWait(SharedOffset(arrived_ + Slot()), (used_ >> slot_shift_) & 1);
  }

  __device__ __forceinline__ PageNotes& Notes(char* group, int i) const {
    static_assert(sizeof(PageNotes) <= Shape::kBlockBytes);
    return *reinterpret_cast<PageNotes*>(group + i * Shape::kStageBytes);
  }

  // The group that is there: each warp scores some pages of it, and weighs them
  // behind those before; then all have all weights.
  __device__ __forceinline__ void Visit(const NewToken<kHeadDim>& token,
                                        const uint4 (&q)[kHeadDim / 32],
                                        DecodeState<Few::kWarpDims>& state) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int pages = now_.Pages();
    char* const group = ring_ + Slot() * Few::kGroupBytes;
    PageScores own[Few::kRounds];
#pragma unroll
    for (int round = 0; round < Few::kRounds; ++round) {
      const int i = warp_ + round * Few::kTeamWarps;
      if (i >= pages) break;
      own[round] =
          Score(group + i * Shape::kStageBytes, now_.Page(i), token, q);
      if (lane < 4) {
        Notes(group, i).best[lane] = {own[round].best[0], own[round].best[1]};
      }
    }
    Sync();
    float2 best[Few::kGroup];
#pragma unroll
    for (int i = 0; i < Few::kGroup; ++i) {
      best[i] = Notes(group, i).best[lane % 4];
      if (i >= pages) best[i] = {-kInfinity, -kInfinity};
    }
#pragma unroll
    for (int round = 0; round < Few::kRounds; ++round) {
      const int i = warp_ + round * Few::kTeamWarps;
      if (i < pages) Weigh(own[round], i, best, state.largest, group);
    }
    Sync();
    AddGroup(group, pages, best, state);
  }

  // Page i of a group, as if pages came one by one.
  __device__ __forceinline__ void Weigh(const PageScores& own, int i,
                                        const float2 (&best)[Few::kGroup],
                                        const float (&largest)[2],
                                        char* group) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    float before[2] = {largest[0], largest[1]};
#pragma unroll
    for (int j = 0; j < Few::kGroup - 1; ++j) {
      before[0] = fmaxf(j < i ? best[j].x : -kInfinity, before[0]);
      before[1] = fmaxf(j < i ? best[j].y : -kInfinity, before[1]);
    }
    const PageWeights weights = WeighPage(own, before);
    PageNotes& notes = Notes(group, i);
    notes.weights[lane] = {weights.low, weights.high};
    notes.sum[lane] = {weights.sum[0], weights.sum[1]};
    if (lane < 4) notes.factor[lane] = {weights.factor[0], weights.factor[1]};
  }

  __device__ __forceinline__ void AddGroup(
      char* group, int pages, const float2 (&best)[Few::kGroup],
      DecodeState<Few::kWarpDims>& state) const {
#pragma unroll
    for (int i = 0; i < Few::kGroup; ++i) {
      state.largest[0] = fmaxf(best[i].x, state.largest[0]);
      state.largest[1] = fmaxf(best[i].y, state.largest[1]);
    }
    constexpr int kAtOnce = 4;
    int i = 0;
    if (pages >= kAtOnce) {
#pragma unroll
      for (; i < kAtOnce; ++i) Add(group, i, state);
    }
#pragma unroll 1
    for (; i < pages; ++i) Add(group, i, state);
  }

  // A page of the unit.
  __device__ __forceinline__ PageScores
  Score(char* keys, int page, const NewToken<kHeadDim>& token,
        const uint4 (&q)[kHeadDim / 32]) const {
    const SeenTokens seen = unit_.Seen(page);
    if (page == token.page) [[unlikely]]
      token.PutInto(keys);
    if (!seen.IsAll()) [[unlikely]] {
      ClearUnseen<kHeadDim>(keys + Shape::kBlockBytes, seen);
    }
    const PageScores scores = ScorePage<kHeadDim>(work_, keys, seen, q);
    __syncwarp();  // notes come in place of the keys
    return scores;
  }

  // Page i of the group to this warp's dims.
  __device__ __forceinline__ void Add(
      char* group, int i, DecodeState<Few::kWarpDims>& state) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const PageNotes& notes = Notes(group, i);
    const uint2 weights = notes.weights[lane];
    const float2 factor = notes.factor[lane % 4];
    const float2 sum = notes.sum[lane];
    AddPage(group + i * Shape::kStageBytes + Shape::kBlockBytes +
                warp_ * Few::kWarpDims * 2 * kPage,
            {.low = weights.x,
             .high = weights.y,
             .factor = {factor.x, factor.y},
             .sum = {sum.x, sum.y}},
            state);
  }

  const DecodeWork& work_;
  const FewUnit& unit_;
  char* ring_;
  uint64_t* arrived_;
  int slot_shift_;
  int team_, warp_;
  GroupCursor<kHeadDim> now_;
  ShareSender<kHeadDim> sender_;
  int used_ = 0;  // groups
};

#endif

}  // namespace baton::cuda
