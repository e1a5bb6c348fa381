// SPDX-License-Identifier: Apache-2.0
// What the kernel of skinny_matmul.h works on, and the stages of W and x that
// its teams have in flight.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/skinny_epilogue.cuh"
#include "kernels/cuda/skinny_matmul.h"
#include "kernels/cuda/tma.cuh"

namespace baton::cuda {

inline constexpr int kGroup = static_cast<int>(kSkinnyGroup);
inline constexpr int kBoxRows = 32;
inline constexpr int kBoxBytes = kBoxRows * 128;

// What a launch is told besides the maps of W and x.
struct SkinnyWork {
  int m, n;
  int groups;       // of k
  int half_groups;  // of a half of k where these are apart, else 0
  int leaf_shift;   // log2 of SkinnyLeaves()
  int block_shift;  // log2 of the blocks of a cluster
  int slots;        // stages in flight per team
  SkinnySink sink;
};

// The blocking of one instantiation: a block of kTeams teams of
// kRowParts * kTokenParts warps, each of 32 rows and kTokenTiles * 8 tokens.
template <int kRowParts_, int kTokenParts_, int kTokenTiles, int kTeams>
struct SkinnyTile {
  static constexpr int kRowParts = kRowParts_;
  static constexpr int kTokenParts = kTokenParts_;
  static constexpr int kTeamThreads = 32 * kRowParts * kTokenParts;
  static constexpr int kThreads = kTeams * kTeamThreads;
  static constexpr int kMinBlocks = 512 / kThreads;  // 128 registers
  static constexpr int kRows = kBoxRows * kRowParts;
  static constexpr int kPairs = kRows / 2;  // of gates and what they scale
  static constexpr int kTokens = 8 * kTokenTiles * kTokenParts;
  // A stage is boxes of W, then the box of x.
  static constexpr int kWBytes = kRowParts * kBoxBytes;
  static constexpr int kStageBytes = kWBytes + kTokens * 128;
  // Sums of a team: f32 [kTokens][kStride], in place of its stages. The padding
  // spreads the stores of a fragment over all banks.
  static constexpr int kStride = kRows + 4;
  static constexpr int kMinStages =
      (kTokens * kStride * 4 + kStageBytes - 1) / kStageBytes;
};

// Shared memory of a block: stages of all teams, then their barriers.
[[nodiscard]] constexpr int SkinnySharedBytes(int teams, int stages,
                                              int stage_bytes) {
  return teams * stages * (stage_bytes + 8);
}

// What a box of W holds: 32 rows, of all k or of one half of it, or 16 gates,
// then the 16 rows that they scale (SkinnyWeight).
enum class SkinnyBoxes { kRows, kHalves, kPairs };

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Of a team; where there are fewer leaves than teams the last ones have none.
template <int kTeams>
__device__ __forceinline__ int LeavesOfTeam(const SkinnyWork& work) {
  constexpr int kTeamShift = std::countr_zero(static_cast<unsigned>(kTeams));
  static_assert(kTeams == 1 << kTeamShift);
  return 1 << max(0, work.leaf_shift - kTeamShift - work.block_shift);
}
// The first group of a leaf.
__device__ __forceinline__ int LeafBegin(const SkinnyWork& work, int leaf) {
  return (min(leaf, 1 << work.leaf_shift) * work.groups) >> work.leaf_shift;
}

// The tree over what teams of a block have, `stride` bytes apart.
template <int kTeams, typename Loader>
__device__ __forceinline__ float TreeOfTeams(uint32_t at, int stride,
                                             const Loader& load) {
  if constexpr (kTeams == 1) {
    return load(at);
  } else {
    return TreeOfTeams<kTeams / 2>(at, stride, load) +
           TreeOfTeams<kTeams / 2>(at + kTeams / 2 * stride, stride, load);
  }
}
// The tree over what 2, 4 or 8 blocks of a cluster have.
template <typename Getter>
__device__ __forceinline__ float TreeOfBlocks(int blocks, const Getter& of) {
  float sum = of(0) + of(1);
  if (blocks >= 4) sum += of(2) + of(3);
  if (blocks >= 8) sum += (of(4) + of(5)) + (of(6) + of(7));
  return sum;
}

// The stages that one team has in flight. Its first thread starts the copies.
template <typename Tile>
class SkinnyStages {
 public:
  // The groups [group, end) of K; rows of W, or pairs of them, and rows of x
  // from these on.
  __device__ SkinnyStages(uint32_t stages, uint32_t barriers,
                          const SkinnyWork& work, SkinnyBoxes boxes,
                          int first_row, int first_token, int group, int end)
      : stages_(stages),
        barriers_(barriers),
        slots_(work.slots),
        half_groups_(work.half_groups),
        boxes_(boxes),
        first_row_(first_row),
        first_token_(first_token),
        next_(group),
        end_(end),
        team_(static_cast<int>(threadIdx.x) / Tile::kTeamThreads),
        leads_(static_cast<int>(threadIdx.x) % Tile::kTeamThreads == 0) {}

  // Starts the first copies of W.
  __device__ void FillW(const CUtensorMap& map) {
    const int filled = min(slots_, end_ - next_);
    if (leads_) {
#pragma unroll 1
      for (int i = 0; i < slots_; ++i) BarrierInit(barriers_ + 8 * i);
      BarrierInitFence();
#pragma unroll 1
      for (int i = 0; i < filled; ++i) StartW(map, i, next_ + i);
    }
    next_ += filled;
    TeamSync();
  }
  // Starts the copies of x that go with them.
  __device__ void FillX(const CUtensorMap& x_map, int group) const {
    if (!leads_) return;
#pragma unroll 1
    for (int i = 0; group + i < next_; ++i) StartX(x_map, i, group + i);
  }

  // The shared address of the oldest stage, once it is there.
  __device__ uint32_t Wait() const {
    BarrierWait(barriers_ + 8 * slot_, phase_);
    return stages_ + Tile::kStageBytes * slot_;
  }
  // Hands the oldest stage back, which this warp reads no more. The next copy
  // starts in its place when the whole team has.
  __device__ void Release(const CUtensorMap& map, const CUtensorMap& x_map) {
    TeamSync();
    if (next_ < end_) {
      if (leads_) {
        StartW(map, slot_, next_);
        StartX(x_map, slot_, next_);
      }
      ++next_;
    }
    if (++slot_ == slots_) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  __device__ void TeamSync() const {
    if constexpr (Tile::kTeamThreads == 32) {
      __syncwarp();
    } else {
      BarrierSync(1 + team_, Tile::kTeamThreads);
    }
  }
  // Announces both copies of a stage.
  __device__ void StartW(const CUtensorMap& map, int slot, int group) const {
    const uint32_t barrier = barriers_ + 8 * slot;
    const uint64_t policy = EvictFirstPolicy();
    BarrierExpect(barrier, Tile::kStageBytes);
#pragma unroll
    for (int part = 0; part < Tile::kRowParts; ++part) {
      const uint32_t to = stages_ + Tile::kStageBytes * slot + kBoxBytes * part;
      if (boxes_ == SkinnyBoxes::kPairs) {
        CopyBoxOf(0, to, map, group * kGroup, first_row_ + kBoxRows / 2 * part,
                  barrier, policy);
      } else if (boxes_ == SkinnyBoxes::kHalves) {
        CopyBoxOf(HalfOf(group), to, map, ColumnOf(group),
                  first_row_ + kBoxRows * part, barrier, policy);
      } else {
        CopyBox(to, map, group * kGroup, first_row_ + kBoxRows * part, barrier,
                policy);
      }
    }
  }
  __device__ void StartX(const CUtensorMap& x_map, int slot, int group) const {
    const uint32_t barrier = barriers_ + 8 * slot;
    const uint32_t to = stages_ + Tile::kStageBytes * slot + Tile::kWBytes;
    if (boxes_ == SkinnyBoxes::kHalves) {
      CopyBoxOf(HalfOf(group), to, x_map, ColumnOf(group), first_token_,
                barrier);
    } else {
      CopyBox(to, x_map, group * kGroup, first_token_, barrier);
    }
  }
  // Where a group begins in a map of halves.
  __device__ int HalfOf(int group) const {
    return group < half_groups_ ? 0 : 1;
  }
  __device__ int ColumnOf(int group) const {
    return (group - HalfOf(group) * half_groups_) * kGroup;
  }

  uint32_t stages_, barriers_;
  int slots_;
  int half_groups_;
  SkinnyBoxes boxes_;
  int first_row_, first_token_;
  int next_, end_;  // group to copy next
  int team_;
  bool leads_;
  int slot_ = 0;  // of the oldest stage
  uint32_t phase_ = 0;
};

#endif

}  // namespace baton::cuda
