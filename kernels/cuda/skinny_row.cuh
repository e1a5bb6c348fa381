// SPDX-License-Identifier: Apache-2.0
// The Hopper kernel of skinny_matmul.h for one row of x, where what counts is
// the time from x to its product. Its bits are those of skinny_kernel.cuh.
//
// A team is a warp and multiplies one or two tiles of 16 rows of W with its
// leaves of K, which it streams through a ring of its own; what it needs of x
// it has as a whole. On the N side of the tensor cores every token is the same
// one. Sums meet in the first block of a cluster.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/mma.cuh"
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

inline constexpr int kRowSums = 1;  // the barrier behind teams' sums

// The ring of a team's warp.
template <int kStageBytes>
class RowRing {
 public:
  // Stages for groups [group, end) of K, rows of W, or pairs, from `row` on.
  __device__ __forceinline__ RowRing(const CUtensorMap& map, uint32_t stages,
                                     uint32_t barriers, int slots,
                                     bool is_paired, int row, int group,
                                     int end)
      : map_(map),
        first_stage_(stages),
        first_barrier_(barriers),
        slots_(slots),
        is_paired_(is_paired),
        row_(row),
        next_(group),
        left_(end - group),
        stage_(stages),
        barrier_(barriers),
        policy_(EvictFirstPolicy()) {}

  // All lanes; the first copies.
  __device__ __forceinline__ void Fill() {
    const int filled = min(slots_, left_);
    if (threadIdx.x % kWarp == 0) {
#pragma unroll 1
      for (int i = 0; i <= slots_; ++i) BarrierInit(first_barrier_ + 8 * i);
      BarrierInitFence();
#pragma unroll 1
      for (int i = 0; i < filled; ++i) {
        Start(first_stage_ + kStageBytes * i, first_barrier_ + 8 * i,
              next_ + i);
      }
    }
    next_ += filled;
    left_ -= filled;
    __syncwarp();
  }
  // The barrier behind those of the stages.
  __device__ __forceinline__ uint32_t BarrierOfX() const {
    return first_barrier_ + 8 * slots_;
  }

  // The oldest stage, once it is there.
  __device__ __forceinline__ uint32_t Wait() const {
    BarrierWait(barrier_, phase_);
    return stage_;
  }
  // All lanes have read it.
  __device__ __forceinline__ void Release() {
    __syncwarp();
    if (left_ > 0) {
      if (threadIdx.x % kWarp == 0) Start(stage_, barrier_, next_);
      ++next_;
      --left_;
    }
    stage_ += kStageBytes;
    barrier_ += 8;
    if (barrier_ == BarrierOfX()) {
      stage_ = first_stage_;
      barrier_ = first_barrier_;
      phase_ ^= 1;
    }
  }

 private:
  __device__ __forceinline__ void Start(uint32_t to, uint32_t barrier,
                                        int group) const {
    BarrierExpect(barrier, kStageBytes);
    if (is_paired_) {
      CopyBoxOf(0, to, map_, group * kGroup, row_, barrier, policy_);
    } else {
      CopyBox(to, map_, group * kGroup, row_, barrier, policy_);
    }
  }

  const CUtensorMap& map_;
  uint32_t first_stage_, first_barrier_;
  int slots_;
  bool is_paired_;
  int row_;
  int next_, left_;           // group to copy next; so many
  uint32_t stage_, barrier_;  // the oldest
  uint32_t phase_ = 0;
  uint64_t policy_;
};

// acc += w x of a stage. `w` is where this lane reads the first 16 k of the
// first tile, by[i] what leads to the next 16 i; `x`: the first 32 k.
template <int kTiles>
__device__ __forceinline__ void MultiplyRow(float (&acc)[kTiles][4], uint32_t w,
                                            const uint32_t (&by)[4],
                                            uint32_t x) {
  // All of it at once: no load waits for a product.
  uint32_t a[4][kTiles][4];
  uint32_t b[2][4];
  LoadMatrices(b[0], x);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      LoadMatrices(a[step][tile], w + by[step] + 2048 * tile);
    }
    if (step == 1) LoadMatrices(b[1], x + 64);
  }
  __syncwarp();  // keeps compilers from loading late
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Mma(acc[tile], a[step][tile], b[step / 2][step % 2 * 2],
          b[step / 2][step % 2 * 2 + 1]);
    }
  }
}

// What a warp has of the product: some rows of W, and leaves of K.
struct RowTeam {
  int lane, team;
  int rank, blocks;  // of the cluster
  bool is_paired;    // rows are pairs of them
  int first_row;
  int first_leaf, leaves;
  int begin, end;  // groups

  // The first group of a leaf.
  __device__ __forceinline__ static int Begin(const SkinnyWork& work,
                                              int leaf) {
    return (min(leaf, 1 << work.leaf_shift) * work.groups) >> work.leaf_shift;
  }
};
template <RowTile kTile>
__device__ __forceinline__ RowTeam FindTeam(const SkinnyWork& work, int index) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  RowTeam found;
  found.lane = static_cast<int>(threadIdx.x) % kWarp;
  found.team = __shfl_sync(kAllLanes, warp, 0);  // uniform
  found.blocks = 1 << work.block_shift;
  found.rank = index & (found.blocks - 1);
  found.is_paired = IsGated(work.sink.activation);
  found.first_row = (index >> work.block_shift) *
                    (found.is_paired ? kTile.rows() / 2 : kTile.rows());
  found.leaves = max(1, (1 << work.leaf_shift) / (kTile.teams * found.blocks));
  found.first_leaf = (found.rank * kTile.teams + found.team) * found.leaves;
  found.begin = RowTeam::Begin(work, found.first_leaf);
  found.end = RowTeam::Begin(work, found.first_leaf + found.leaves);
  return found;
}

// Waits for earlier grids. The sums over the team's leaves, each added to what
// was before, from zero on. `x_at`: where what the team needs of x, at `from`,
// goes.
template <int kTiles, typename Ring>
__device__ __forceinline__ void MultiplyLeaves(const SkinnyWork& work,
                                               const RowTeam& team,
                                               const void* from, uint32_t x_at,
                                               Ring& ring,
                                               float (&sum)[kTiles][4]) {
  const int lane = team.lane;
  int group = team.begin;
  const uint32_t w_offset = SwizzledOffset(lane % 16, lane / 16);
  uint32_t by[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    by[i] = (w_offset ^ (32 * i)) - w_offset;
    asm volatile("" : "+r"(by[i]));  // or it is computed for each stage
  }
  AwaitPreviousGrids();
  if (group == team.end) return;
  if (lane == 0) {
    const int bytes = (team.end - group) * kGroup * 2;
    BarrierExpect(ring.BarrierOfX(), bytes);
    CopyBytes(x_at, static_cast<const uint16_t*>(from) + group * kGroup, bytes,
              ring.BarrierOfX());
  }
  BarrierWait(ring.BarrierOfX(), 0);
  uint32_t x = x_at + 16 * (lane / 8);
#pragma unroll 1
  for (int leaf = 1; leaf <= team.leaves; ++leaf) {
    float acc[kTiles][4] = {};
    const int end = RowTeam::Begin(work, team.first_leaf + leaf);
#pragma unroll 1
    for (int left = end - group; left > 0; --left, x += kGroup * 2) {
      MultiplyRow(acc, ring.Wait() + w_offset, by, x);
      ring.Release();
    }
    group = end;
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) sum[i / 4][i % 4] += acc[i / 4][i % 4];
  }
}

// A lane's token is the same in all columns: the first one's sums of all rows.
template <int kTiles>
__device__ __forceinline__ void StoreTeam(uint32_t to, int lane,
                                          const float (&sum)[kTiles][4]) {
  if (lane % 4 != 0) return;
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    StoreShared(to + lane / 4 * 4 + 32 * i, sum[i / 2][i % 2 * 2]);
  }
}

// A warp of the first block of a cluster, whose sum of the lane's row is
// `own`: that over all blocks, once the others' are there, at `others`.
__device__ __forceinline__ float TotalOf(int blocks, float own, uint32_t others,
                                         uint32_t received) {
  BarrierWaitCluster(received, 0);
  return TreeOfBlocks(blocks, [&](int block) {
    return block == 0 ? own
                      : LoadShared(others + (block - 1) * RowPlaces::kSumBytes);
  });
}

// A warp: what becomes of its rows' sums, or pairs', in row `out_row` of out.
template <int kRows>
__device__ __forceinline__ void StoreTotal(const SkinnyWork& work,
                                           const RowTeam& team, int out_row,
                                           float total) {
  const int row = team.first_row + team.lane;
  if (team.is_paired) {
    const float scaled = __shfl_down_sync(kAllLanes, total, kRows / 2);
    if (team.lane < kRows / 2 && row < work.n / 2) {
      StoreGated(work.sink, out_row, row, total, scaled);
    }
  } else if (team.lane < kRows && row < work.n) {
    StoreSum(work.sink, out_row, row, total);
  }
}

// Block `index` of those that share out W, the ones of a cluster side by side.
// What is read before the wait for earlier grids is W alone.
template <RowTile kTile>
__device__ __forceinline__ void RowBlock(const CUtensorMap& map,
                                         const RowWork& row_work, int index,
                                         const void* x, int out_row,
                                         std::byte* shared) {
  constexpr int kTeams = kTile.teams;
  const SkinnyWork& work = row_work.skinny;
  const RowTeam team = FindTeam<kTile>(work, index);
  const uint32_t base = SharedOffset(shared);
  if (base % 1024 != 0) __trap();  // the swizzle needs whole patterns
  const RowPlaces places(kTile, work.slots, row_work.team_groups, team.blocks);
  const uint32_t barriers = base + places.barriers;
  RowRing<kTile.stage_bytes()> ring(map, base + team.team * places.ring_bytes,
                                    barriers + 8 * team.team * (work.slots + 1),
                                    work.slots, team.is_paired, team.first_row,
                                    team.begin, team.end);
  ring.Fill();
  const uint32_t received = barriers + 8 * kTeams * (work.slots + 1);
  if (team.blocks > 1) {
    if (team.rank == 0 && threadIdx.x == 0) {
      BarrierInitFor(received, (team.blocks - 1) * RowPlaces::kSumBytes);
    }
    ClusterMeet();  // the barrier is there
  }
  float sum[kTile.tiles][4] = {};
  MultiplyLeaves(work, team, x, base + places.x + team.team * places.x_bytes,
                 ring, sum);
  const uint32_t sums = base + places.sums;
  StoreTeam(sums + team.team * RowPlaces::kSumBytes, team.lane, sum);
  if (team.team != 0) {
    BarrierArrive(kRowSums, kTile.threads());
    return;
  }
  BarrierSync(kRowSums, kTile.threads());
  float total = TreeOfTeams<kTeams>(sums + 4 * team.lane, RowPlaces::kSumBytes,
                                    LoadShared);
  if (team.blocks > 1) {
    const uint32_t others = base + places.received + 4 * team.lane;
    if (team.rank > 0) {
      SendTo(AddressIn(0, others + (team.rank - 1) * RowPlaces::kSumBytes),
             total, AddressIn(0, received));
      return;
    }
    total = TotalOf(team.blocks, total, others, received);
  }
  StoreTotal<kTile.rows()>(work, team, out_row, total);
}

#endif

// A cluster has 4 or 8 teams. `map`: of boxes of the tile's rows.
template <int kTeams, int kTiles>
__global__ void __launch_bounds__(RowTile{kTeams, kTiles}.threads(),
                                  RowTile{kTeams, kTiles}.min_blocks())
    SkinnyRowKernel(const __grid_constant__ CUtensorMap map, const void* x,
                    const __grid_constant__ RowWork work) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) std::byte shared[];
  AllowNextGrid();
  PrefetchMap(map);
  RowBlock<RowTile{kTeams, kTiles}>(map, work, static_cast<int>(blockIdx.x), x,
                                    0, shared);
#endif
}

}  // namespace baton::cuda
