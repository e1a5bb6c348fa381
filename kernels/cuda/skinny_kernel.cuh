// SPDX-License-Identifier: Apache-2.0
// The Hopper kernel of skinny_matmul.h.
//
// A team of warps streams its leaves of K through a ring of stages. A stage is
// a group of 64 k: the rows of W of the block, in boxes of 32 rows, and all
// tokens of x; the copy engine fills both, so that neither waits in registers.
// A warp of the team multiplies one box of rows with one part of the tokens.
// Teams wait for each other only when the leaves are combined. A cluster of
// blocks shares the leaves of the same rows where one block has too few teams;
// its blocks meet only at the end as well.
//
// W is on the M side of the tensor cores and tokens are on the N side.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/skinny_epilogue.cuh"
#include "kernels/cuda/skinny_matmul.h"
#include "kernels/cuda/tma.cuh"

namespace baton::cuda {

inline constexpr int kGroup = static_cast<int>(kSkinnyGroup);
inline constexpr int kBoxRows = 32;
inline constexpr int kBoxBytes = kBoxRows * 128;

// What a launch is told besides the maps of W and x.
struct SkinnyWork {
  int m, n, k;
  int leaf_shift;   // log2 of SkinnyLeaves(k)
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

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The stages that one team has in flight. Its first thread starts the copies.
template <typename Tile>
class SkinnyStages {
 public:
  // The groups [group, end) of K; rows of W and of x from these on.
  __device__ SkinnyStages(uint32_t stages, uint32_t barriers, int slots,
                          int first_row, int first_token, int group, int end)
      : stages_(stages),
        barriers_(barriers),
        slots_(slots),
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
    for (int rows = 0; rows < Tile::kRows; rows += kBoxRows) {
      CopyBox(stages_ + Tile::kStageBytes * slot + 128 * rows, map,
              group * kGroup, first_row_ + rows, barrier, policy);
    }
  }
  __device__ void StartX(const CUtensorMap& x_map, int slot, int group) const {
    CopyBox(stages_ + Tile::kStageBytes * slot + Tile::kWBytes, x_map,
            group * kGroup, first_token_, barriers_ + 8 * slot);
  }

  uint32_t stages_, barriers_;
  int slots_;
  int first_row_, first_token_;
  int next_, end_;  // group to copy next
  int team_;
  bool leads_;
  int slot_ = 0;  // of the oldest stage
  uint32_t phase_ = 0;
};

// acc += w x of one stage: two tiles of 16 rows. `w` and `x` are where this
// lane reads the first 16 and 32 k of the first tile.
template <int kTokenTiles>
__device__ __forceinline__ void MultiplyStage(float (&acc)[2][kTokenTiles][4],
                                              uint32_t w, uint32_t x) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t b[kTokenTiles][4];  // of 32 k
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      LoadMatrices(b[j], (x ^ (64 * half)) + 1024 * j);
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a[2][4];
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        LoadMatrices(a[tile], (w ^ (64 * half + 32 * step)) + 2048 * tile);
      }
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          Mma(acc[tile][j], a[tile], b[j][2 * step], b[j][2 * step + 1]);
        }
      }
    }
  }
}

// Stores a warp's fragments at its first token and row.
template <typename Tile, int kTokenTiles>
__device__ __forceinline__ void StoreSums(
    float* to, const float (&sum)[2][kTokenTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      float* at =
          to + (8 * j + 2 * (lane % 4)) * Tile::kStride + 16 * tile + lane / 4;
      at[0] = sum[tile][j][0];
      at[Tile::kStride] = sum[tile][j][1];
      at[8] = sum[tile][j][2];
      at[Tile::kStride + 8] = sum[tile][j][3];
    }
  }
}

// The tree over the teams of a block, whose sums are `stride` bytes apart. `at`
// is an address of this block or one mapped from another block of the cluster.
template <int kTeams>
__device__ __forceinline__ float SumOfTeams(uint32_t at, int stride) {
  if constexpr (kTeams == 1) {
    return LoadIn(at);
  } else {
    return SumOfTeams<kTeams / 2>(at, stride) +
           SumOfTeams<kTeams / 2>(at + kTeams / 2 * stride, stride);
  }
}
// The tree over the blocks of a cluster: 1, 2, 4 or 8.
template <int kTeams>
__device__ __forceinline__ float SumOfBlocks(uint32_t at, int stride,
                                             int blocks) {
  if (blocks == 1) return SumOfTeams<kTeams>(at, stride);
  const auto of = [&](int block) {
    return SumOfTeams<kTeams>(AddressIn(block, at), stride);
  };
  float sum = of(0) + of(1);
  if (blocks >= 4) sum += of(2) + of(3);
  if (blocks >= 8) sum += (of(4) + of(5)) + (of(6) + of(7));
  return sum;
}

// The rows of x that a block multiplies, and where the products go.
struct SkinnyTokens {
  int first = 0;
  int count = 0;
  const int32_t* out_rows = nullptr;  // of all rows of x; null: as they are

  __device__ __forceinline__ int64_t OutRow(int token) const {
    return out_rows == nullptr ? token : __ldcg(out_rows + first + token);
  }
};

// One block of the product: block `index` of those that share out W. What is
// read before the wait for previous grids is W alone.
template <typename Tile, int kTokenTiles, int kTeams>
__device__ __forceinline__ void SkinnyBlock(const CUtensorMap& map,
                                            const CUtensorMap& x_map,
                                            const SkinnyWork& work, int index,
                                            const SkinnyTokens& tokens,
                                            std::byte* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int team = __shfl_sync(~0u, thread / Tile::kTeamThreads, 0);  // uniform
  const int blocks = 1 << work.block_shift;
  const int rank = index & (blocks - 1);
  const int first_row = (index >> work.block_shift) * Tile::kRows;
  const int groups = (work.k + kGroup - 1) / kGroup;
  const auto leaf_begin = [&](int leaf) {
    return (min(leaf, 1 << work.leaf_shift) * groups) >> work.leaf_shift;
  };
  const int leaves =
      (kSkinnyMaxLeaves / kTeams) >> work.block_shift;  // of a team
  const int first_leaf = (rank * kTeams + team) * leaves;
  int group = leaf_begin(first_leaf);

  const uint32_t base = SharedOffset(shared);
  if (base % 1024 != 0) __trap();  // the swizzle needs whole patterns
  const int team_bytes = work.slots * Tile::kStageBytes;
  SkinnyStages<Tile> ring(base + team * team_bytes,
                          base + kTeams * team_bytes + team * work.slots * 8,
                          work.slots, first_row, tokens.first, group,
                          leaf_begin(first_leaf + leaves));
  ring.FillW(map);

  const int lane = thread % 32;
  const int part =
      __shfl_sync(~0u, thread / 32, 0) % (Tile::kRowParts * Tile::kTokenParts);
  const int row_part = part % Tile::kRowParts;
  const int token_part = part / Tile::kRowParts;
  const uint32_t w_offset =
      row_part * kBoxBytes + SwizzledOffset(lane % 16, lane / 16);
  const uint32_t x_offset = Tile::kWBytes + token_part * kTokenTiles * 1024 +
                            SwizzledOffset(lane % 8, lane / 8);

  AwaitPreviousGrids();
  ring.FillX(x_map, group);
  float sum[2][kTokenTiles][4] = {};
#pragma unroll 1
  for (int leaf = 1; leaf <= leaves; ++leaf) {
    float acc[2][kTokenTiles][4] = {};
    const int end = leaf_begin(first_leaf + leaf);
#pragma unroll 1
    for (; group < end; ++group) {
      const uint32_t stage = ring.Wait();
      MultiplyStage(acc, stage + w_offset, stage + x_offset);
      ring.Release(map, x_map);
    }
#pragma unroll
    for (int i = 0; i < 8 * kTokenTiles; ++i) {
      sum[i / 4 % 2][i / 8][i % 4] += acc[i / 4 % 2][i / 8][i % 4];
    }
  }

  StoreSums<Tile>(reinterpret_cast<float*>(shared) + team * team_bytes / 4 +
                      token_part * kTokenTiles * 8 * Tile::kStride +
                      row_part * kBoxRows,
                  sum);
  if (blocks > 1) {
    ClusterSync();
  } else {
    __syncthreads();
  }
  for (int i = rank * Tile::kThreads + thread; i < tokens.count * Tile::kRows;
       i += blocks * Tile::kThreads) {
    const int to_token = i / Tile::kRows, to_row = i % Tile::kRows;
    if (first_row + to_row >= work.n) continue;
    StoreSum(work.sink, tokens.OutRow(to_token), first_row + to_row,
             SumOfBlocks<kTeams>(base + 4 * (to_token * Tile::kStride + to_row),
                                 team_bytes, blocks));
  }
  if (blocks > 1) ClusterMeet();  // others may still read sums of this block
}

#endif

// The blocks of a cluster have 4 or 8 teams, so that a team has 2 leaves or 1.
template <int kRowParts, int kTokenParts, int kTokenTiles, int kTeams>
__global__ void __launch_bounds__(
    SkinnyTile<kRowParts, kTokenParts, kTokenTiles, kTeams>::kThreads,
    SkinnyTile<kRowParts, kTokenParts, kTokenTiles, kTeams>::kMinBlocks)
    SkinnyKernel(const __grid_constant__ CUtensorMap map,
                 const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ SkinnyWork work) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Tile = SkinnyTile<kRowParts, kTokenParts, kTokenTiles, kTeams>;
  extern __shared__ __align__(1024) std::byte shared[];
  AllowNextGrid();
  PrefetchMap(map);
  PrefetchMap(x_map);
  SkinnyBlock<Tile, kTokenTiles, kTeams>(
      map, x_map, work, static_cast<int>(blockIdx.x),
      {.first = 0, .count = work.m, .out_rows = nullptr}, shared);
#endif
}

}  // namespace baton::cuda
