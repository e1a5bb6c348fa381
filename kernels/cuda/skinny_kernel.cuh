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

#include <cstdint>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/skinny_stages.cuh"

namespace baton::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

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

// The tree over the blocks of a cluster, 1, 2, 4 or 8, whose teams' sums are
// `stride` bytes apart. `at` is an address of this block.
template <int kTeams>
__device__ __forceinline__ float SumOfBlocks(uint32_t at, int stride,
                                             int blocks) {
  if (blocks == 1) return TreeOfTeams<kTeams>(at, stride, LoadShared);
  return TreeOfBlocks(blocks, [&](int block) {
    return TreeOfTeams<kTeams>(AddressIn(block, at), stride, LoadIn);
  });
}

// The rows of x that a block multiplies, and where the products go.
struct SkinnyTokens {
  int first = 0;
  int count = 0;
  const int32_t* out_rows = nullptr;  // of all rows of x; null: in order
  int first_out = 0;                  // then

  __device__ __forceinline__ int64_t OutRow(int token) const {
    return out_rows == nullptr ? first_out + token
                               : __ldcg(out_rows + first + token);
  }
};

// Where a block of a cluster finds the sums of its teams.
struct SkinnySums {
  uint32_t base;   // of the first team's
  int team_bytes;  // from team to team
  int rank, blocks;
};

// The sum over all leaves.
template <typename Tile, int kTeams>
__device__ __forceinline__ float SumAt(const SkinnySums& sums, int token,
                                       int row) {
  return SumOfBlocks<kTeams>(sums.base + 4 * (token * Tile::kStride + row),
                             sums.team_bytes, sums.blocks);
}

// Stores this block's share of the products of the cluster.
template <typename Tile, int kTeams>
__device__ __forceinline__ void StoreProducts(const SkinnyWork& work,
                                              const SkinnyTokens& tokens,
                                              const SkinnySums& sums,
                                              int first_row) {
  const int first = sums.rank * Tile::kThreads + static_cast<int>(threadIdx.x);
  const int step = sums.blocks * Tile::kThreads;
  for (int i = first; i < tokens.count * Tile::kRows; i += step) {
    const int token = i / Tile::kRows;
    const int row = i % Tile::kRows;
    if (first_row + row >= work.n) continue;
    StoreSum(work.sink,
             PlaceIn(work.sink, tokens.OutRow(token), first_row + row),
             SumAt<Tile, kTeams>(sums, token, row));
  }
}
// The same of pairs of rows.
template <typename Tile, int kTeams>
__device__ __forceinline__ void StorePairs(const SkinnyWork& work,
                                           const SkinnyTokens& tokens,
                                           const SkinnySums& sums,
                                           int first_pair) {
  constexpr int kBoxPairs = kBoxRows / 2;
  const int first = sums.rank * Tile::kThreads + static_cast<int>(threadIdx.x);
  const int step = sums.blocks * Tile::kThreads;
  for (int i = first; i < tokens.count * Tile::kPairs; i += step) {
    const int token = i / Tile::kPairs;
    const int pair = i % Tile::kPairs;
    if (first_pair + pair >= work.n / 2) continue;
    const int gate = pair / kBoxPairs * kBoxRows + pair % kBoxPairs;
    StoreGated(work.sink,
               PlaceIn(work.sink, tokens.OutRow(token), first_pair + pair),
               SumAt<Tile, kTeams>(sums, token, gate),
               SumAt<Tile, kTeams>(sums, token, gate + kBoxPairs));
  }
}

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
  const auto boxes = IsGated(work.sink.activation) ? SkinnyBoxes::kPairs
                     : work.half_groups > 0        ? SkinnyBoxes::kHalves
                                                   : SkinnyBoxes::kRows;
  const int first_row =
      (index >> work.block_shift) *
      (boxes == SkinnyBoxes::kPairs ? Tile::kPairs : Tile::kRows);
  const int leaves = LeavesOfTeam<kTeams>(work);
  const int first_leaf = (rank * kTeams + team) * leaves;
  int group = LeafBegin(work, first_leaf);

  const uint32_t base = SharedOffset(shared);
  if (base % 1024 != 0) __trap();  // the swizzle needs whole patterns
  const int team_bytes = work.slots * Tile::kStageBytes;
  SkinnyStages<Tile> ring(base + team * team_bytes,
                          base + kTeams * team_bytes + team * work.slots * 8,
                          work, boxes, first_row, tokens.first, group,
                          LeafBegin(work, first_leaf + leaves));
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
    const int end = LeafBegin(work, first_leaf + leaf);
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
  const SkinnySums sums = {
      .base = base, .team_bytes = team_bytes, .rank = rank, .blocks = blocks};
  if (boxes == SkinnyBoxes::kPairs) {
    StorePairs<Tile, kTeams>(work, tokens, sums, first_row);
  } else {
    StoreProducts<Tile, kTeams>(work, tokens, sums, first_row);
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
