// SPDX-License-Identifier: Apache-2.0
// What the blocks of skinny_row.cuh are told, where they have what, and which
// part of the product a warp has.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cuda/skinny_stages.cuh"

namespace baton::cuda {

inline constexpr int kRowTile = 16;  // rows of W on the M side

// The blocking of one instantiation.
struct RowTile {
  int teams, tiles;

  [[nodiscard]] constexpr int rows() const { return tiles * kRowTile; }
  [[nodiscard]] constexpr int stage_bytes() const { return rows() * 128; }
  [[nodiscard]] constexpr int threads() const { return teams * kWarp; }
  // With 128 registers: two blocks of 8 teams.
  [[nodiscard]] constexpr int min_blocks() const { return 512 / threads(); }
};

// Where a block has what, in bytes: the rings of its teams, x of all of them,
// the sums of teams, those of the other blocks of the cluster; barriers: of
// stages, of each team's x, of other blocks' sums.
struct RowPlaces {
  static constexpr int kSumBytes = kWarp * 4;  // a lane has a row

  constexpr RowPlaces(RowTile tile, int slots, int team_groups, int blocks)
      : ring_bytes(slots * tile.stage_bytes()),
        x_bytes(team_groups * kGroup * 2) {
    x = tile.teams * ring_bytes;
    sums = x + tile.teams * x_bytes;
    received = sums + tile.teams * kSumBytes;
    barriers = received + (blocks - 1) * kSumBytes;
    bytes = barriers + 8 * (tile.teams * (slots + 1) + 1);
  }

  int ring_bytes, x_bytes;  // of a team
  int x, sums, received, barriers, bytes;
};

// What a launch is told besides x and the map of W.
struct RowWork {
  SkinnyWork skinny;
  int team_groups;  // at most

  [[nodiscard]] constexpr int SharedBytes(RowTile tile) const {
    return RowPlaces(tile, skinny.slots, team_groups, 1 << skinny.block_shift)
        .bytes;
  }
};

// Of a matrix [n, k], or of one of several alike; `slots` or as many as fit in
// `room` bytes of a block.
template <typename Weight>
[[nodiscard]] RowWork RowWorkOf(const Weight& weight, RowTile tile, int blocks,
                                int slots, int room, const SkinnySink& sink) {
  const int64_t groups = SkinnyGroups(weight.k, weight.halves);
  const auto team_groups = static_cast<int>(
      CeilDiv(groups, std::min(weight.leaves, tile.teams * blocks)));
  RowWork work = {
      .skinny = {.m = 1,
                 .n = static_cast<int>(weight.n),
                 .groups = static_cast<int>(groups),
                 .half_groups = 0,
                 .leaf_shift =
                     std::countr_zero(static_cast<unsigned>(weight.leaves)),
                 .block_shift = std::countr_zero(static_cast<unsigned>(blocks)),
                 .slots = std::clamp(slots, 1, team_groups),
                 .sink = sink},
      .team_groups = team_groups};
  while (work.skinny.slots > 1 && work.SharedBytes(tile) > room) {
    --work.skinny.slots;
  }
  return work;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// What a warp has of the product: some rows of W, and leaves of K.
struct RowTeam {
  int lane, team;
  int rank, blocks;  // of the cluster
  bool is_paired;    // rows are pairs of them
  int first_row;
  int first_leaf, leaves;
  int begin, end;  // groups
};
template <RowTile kTile>
__device__ __forceinline__ RowTeam FindTeam(const SkinnyWork& work, int index) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  RowTeam found;
  found.lane = Kept(static_cast<int>(threadIdx.x) % kWarp);
  found.team = __shfl_sync(kAllLanes, warp, 0);  // uniform
  found.blocks = Kept(1 << work.block_shift);
  found.rank = Kept(index & (found.blocks - 1));
  found.is_paired = IsGated(work.sink.activation);
  found.first_row = (index >> work.block_shift) *
                    (found.is_paired ? kTile.rows() / 2 : kTile.rows());
  found.leaves = LeavesOfTeam<kTile.teams>(work);
  found.first_leaf = (found.rank * kTile.teams + found.team) * found.leaves;
  found.begin = LeafBegin(work, found.first_leaf);
  found.end = LeafBegin(work, found.first_leaf + found.leaves);
  return found;
}

#endif

}  // namespace baton::cuda
