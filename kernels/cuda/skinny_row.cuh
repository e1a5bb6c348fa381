// SPDX-License-Identifier: Apache-2.0
// The Hopper kernel of skinny_matmul.h for one row of x, where what counts is
// the time from x to its product. Its bits are those of skinny_kernel.cuh.
//
// A team is a warp and multiplies one or two tiles of 16 rows of W with its
// leaves of K, which it streams through a ring of its own; what it needs of x
// it has as a whole. On the N side of the tensor cores every token is the same
// one. Sums meet in the first block of a cluster.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/skinny_row_work.cuh"

namespace baton::cuda {

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
        first_stage_(Kept(stages)),
        first_barrier_(Kept(barriers)),
        barrier_of_x_(Kept(barriers + 8 * slots)),
        slots_(slots),
        is_paired_(is_paired),
        row_(row),
        next_(group),
        left_(end - group),
        stage_(first_stage_),
        barrier_(first_barrier_),
        policy_(EvictFirstPolicy()) {}

  // All lanes; the first copies. The barrier of x awaits `x_bytes`.
  __device__ __forceinline__ void Fill(int x_bytes) {
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
      BarrierExpect(barrier_of_x_, x_bytes);
    }
    next_ += filled;
    left_ -= filled;
    __syncwarp();
  }
  // The barrier behind those of the stages.
  __device__ __forceinline__ uint32_t BarrierOfX() const {
    return barrier_of_x_;
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
    if (barrier_ == barrier_of_x_) {
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
  uint32_t first_stage_, first_barrier_, barrier_of_x_;
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
  // Loads ahead of products.
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

// What a team needs of x, and where it has it.
struct RowX {
  const uint16_t* from;
  uint32_t to;
  int bytes;

  // All lanes; waits for earlier grids. The ring's barrier of x awaits it.
  template <typename Ring>
  __device__ __forceinline__ void Fetch(const RowTeam& team,
                                        const Ring& ring) const {
    AwaitPreviousGrids();
    if (team.lane == 0 && bytes > 0) {
      CopyBytes(to, from, static_cast<uint32_t>(bytes), ring.BarrierOfX());
    }
  }
};

// What the team's loop begins with.
struct RowOperands {
  uint32_t w;      // where a lane reads in a stage
  uint32_t by[4];  // what leads to the next 16 k (MultiplyRow)
  uint32_t x;      // where a lane reads x
  int end;         // of the first leaf

  __device__ __forceinline__ RowOperands(const SkinnyWork& work,
                                         const RowTeam& team, uint32_t x_at)
      : w(Kept(SwizzledOffset(team.lane % 16, team.lane / 16))),
        x(Kept(x_at + 16 * (team.lane / 8))),
        end(Kept(LeafBegin(work, team.first_leaf + 1))) {
#pragma unroll
    for (int i = 0; i < 4; ++i) by[i] = Kept((w ^ (32 * i)) - w);
  }
};

// The sums over the team's leaves, each added to what was before, from zero on.
// x is on its way.
template <int kTiles, typename Ring>
__device__ __forceinline__ void MultiplyLeaves(const SkinnyWork& work,
                                               const RowTeam& team,
                                               const RowOperands& operands,
                                               Ring& ring,
                                               float (&sum)[kTiles][4]) {
  if (team.begin == team.end) return;
  uint32_t x = operands.x;
  int group = team.begin;
  int end = operands.end;
  BarrierWait(ring.BarrierOfX(), 0);
#pragma unroll 1
  for (int leaf = 1;; ++leaf) {
    float acc[kTiles][4] = {};
#pragma unroll 1
    for (int left = end - group; left > 0; --left, x += kGroup * 2) {
      MultiplyRow(acc, ring.Wait() + operands.w, operands.by, x);
      ring.Release();
    }
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) sum[i / 4][i % 4] += acc[i / 4][i % 4];
    if (leaf == team.leaves) return;
    group = end;
    end = LeafBegin(work, team.first_leaf + leaf + 1);
  }
}

// A lane's token is the same in all columns: the first one's sums of all rows.
// `to`: where the lane's first row goes.
template <int kTiles>
__device__ __forceinline__ void StoreTeam(uint32_t to, int lane,
                                          const float (&sum)[kTiles][4]) {
  if (lane % 4 != 0) return;
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    StoreShared(to + 32 * i, sum[i / 2][i % 2 * 2]);
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

// Where the lane's sum of a row, or of a pair, ends up.
struct RowOut {
  void* at;
  bool exists;

  template <RowTile kTile>
  __device__ __forceinline__ static RowOut Of(const SkinnyWork& work,
                                              const RowTeam& team,
                                              int out_row) {
    const int shift = team.is_paired ? 1 : 0;  // two rows make one of out
    const int row = team.first_row + team.lane;
    return {.at = Kept(PlaceIn(work.sink, out_row, row)),
            .exists = Kept(team.lane < kTile.rows() >> shift &&
                           row < work.n >> shift)};
  }
};

// A warp: what becomes of its rows' sums, or pairs'.
template <int kRows>
__device__ __forceinline__ void StoreTotal(const SkinnySink& sink,
                                           bool is_paired, const RowOut& out,
                                           float total) {
  if (is_paired) {
    const float scaled = __shfl_down_sync(kAllLanes, total, kRows / 2);
    if (out.exists) StoreGated(sink, out.at, total, scaled);
  } else if (out.exists) {
    StoreSum(sink, out.at, total);
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
  const RowX x_part = {
      Kept(static_cast<const uint16_t*>(x) + team.begin * kGroup),
      base + places.x + team.team * places.x_bytes,
      (team.end - team.begin) * kGroup * 2};
  ring.Fill(x_part.bytes);
  const uint32_t received = Kept(barriers + 8 * kTeams * (work.slots + 1));
  if (team.blocks > 1) {
    if (team.rank == 0 && threadIdx.x == 0) {
      BarrierInitFor(received, (team.blocks - 1) * RowPlaces::kSumBytes);
    }
    ClusterMeet();  // the barrier is there
  }
  x_part.Fetch(team, ring);
  const RowOperands operands(work, team, x_part.to);
  const uint32_t sums = Kept(base + places.sums);
  const uint32_t team_sums =
      Kept(sums + team.team * RowPlaces::kSumBytes + team.lane / 4 * 4);
  const uint32_t others = Kept(base + places.received + 4 * team.lane);
  const auto out = RowOut::Of<kTile>(work, team, out_row);
  float sum[kTile.tiles][4] = {};
  MultiplyLeaves(work, team, operands, ring, sum);
  StoreTeam(team_sums, team.lane, sum);
  if (team.team != 0) {
    BarrierArrive(kRowSums, kTile.threads());
    return;
  }
  BarrierSync(kRowSums, kTile.threads());
  float total = TreeOfTeams<kTeams>(sums + 4 * team.lane, RowPlaces::kSumBytes,
                                    LoadShared);
  if (team.blocks > 1) {
    if (team.rank > 0) {
      SendTo(AddressIn(0, others + (team.rank - 1) * RowPlaces::kSumBytes),
             total, AddressIn(0, received));
      return;
    }
    total = TotalOf(team.blocks, total, others, received);
  }
  StoreTotal<kTile.rows()>(work.sink, team.is_paired, out, total);
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
