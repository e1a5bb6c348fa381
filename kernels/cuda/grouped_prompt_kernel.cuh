// SPDX-License-Identifier: Apache-2.0
// The kernel of GroupedPromptMatmul: one block per multiprocessor walks over
// tiles of up to 128 rows of one expert by 256 rows of its W.
//
// A block is three warpgroups. The first fills a ring of stages of 64 k: one
// thread asks the copy engine for W, a warp for each 64 rows gathers x by
// slots. The other two multiply, 64 rows of x each, and store; one that has no
// row in a tile only lets its stages pass.
//
// K is one part, or two halves that are summed one after the other
// (GroupedParked). A stage has k of one part.
#pragma once

#include <cstdint>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/group_mma.cuh"
#include "kernels/cuda/grouped_prompt_tile.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tma.cuh"

namespace baton::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Tile number `tile`. The parts of a band take turns over the columns, so that
// blocks at work at one time share rows of x and of W.
__device__ __forceinline__ GroupedBlock BlockOf(const GroupedPlan& plan,
                                                int tile, int columns) {
  const GroupedPart* any = plan.parts + tile / columns;  // of its band
  const int band = LoadInt(&any->band_first);
  const int parts = LoadInt(&any->band_parts);
  const int at = tile - band * columns;
  const GroupedPart* part = plan.parts + band + at % parts;
  return {LoadInt(&part->expert), LoadInt(&part->first), LoadInt(&part->count),
          at / parts * GroupedPromptTile::kColumns};
}

// The stages, as each thread walks through them.
struct GroupedRing {
  using Tile = GroupedPromptTile;
  GroupedPromptShared& shared;
  int stage = 0;
  uint32_t phase = 0;

  // One thread, before all others see the barriers. A stage is filled when the
  // copies of W have been announced and both warps of x are done; it is empty
  // when no warp multiplies it any more.
  __device__ __forceinline__ void Init() const {
    for (int i = 0; i < Tile::kStages; ++i) {
      BarrierInit(SharedOffset(&shared.filled[i]), 1 + Tile::kGroups);
      BarrierInit(SharedOffset(&shared.empty[i]),
                  Tile::kGroups * Tile::kGroupThreads / kWarp);
    }
    BarrierInitFence();
  }
  __device__ __forceinline__ void Next() {
    if (++stage == Tile::kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  __device__ __forceinline__ uint32_t X() const {
    return SharedOffset(shared.stages[stage]);
  }
  __device__ __forceinline__ uint32_t W() const { return X() + Tile::kXBytes; }
  __device__ __forceinline__ uint32_t Filled() const {
    return SharedOffset(&shared.filled[stage]);
  }
  __device__ __forceinline__ void AwaitFilled() const {
    BarrierWait(Filled(), phase);
  }
  __device__ __forceinline__ void AwaitEmpty() const {
    BarrierWait(SharedOffset(&shared.empty[stage]), phase ^ 1);
  }
  // All lanes of a warp that multiplies. The first speaks for it.
  __device__ __forceinline__ void Release(int of_stage) const {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) {
      BarrierArriveAt(SharedOffset(&shared.empty[of_stage]));
    }
  }
};

// One thread: W of all tiles of this block.
template <int kParts>
__device__ __forceinline__ void FillW(const GroupedPromptWork& work, int tiles,
                                      int columns, GroupedRing ring) {
  using Tile = GroupedPromptTile;
#pragma unroll 1
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles;
       tile += static_cast<int>(gridDim.x)) {
    const GroupedBlock block = BlockOf(work.plan, tile, columns);
    const CUtensorMap& map = work.maps[block.expert];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll 1
      for (int k = 0; k < work.depth; k += Tile::kDepth) {
        ring.AwaitEmpty();
        if (part + k == 0) ring.shared.block[ring.stage] = block;
        BarrierExpect(ring.Filled(), Tile::kWBytes);
#pragma unroll
        for (int row = 0; row < Tile::kColumns; row += Tile::kBoxRows) {
          if (kParts == 2 && work.apart) {
            CopyBoxOf(part, ring.W() + row * 128, map, k, block.column + row,
                      ring.Filled());
          } else {
            CopyBox(ring.W() + row * 128, map, part * work.depth + k,
                    block.column + row, ring.Filled());
          }
        }
        ring.Next();
      }
    }
  }
}

// A lane's rows of x of a part: of every fourth one of the warp's 64 a 16-byte
// chunk of a stage.
struct GroupedRows {
  static constexpr int kHeld = GroupedPromptTile::kGroupRows / 4;
  int at[kHeld];  // 16-byte chunks from x; -1: no such row
};

__device__ __forceinline__ GroupedRows RowsOf(const GroupedPromptWork& work,
                                              const GroupedBlock& block,
                                              int group) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int mine[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = group * GroupedPromptTile::kGroupRows + half * kWarp + lane;
    mine[half] = -1;
    if (row < block.count) {
      mine[half] = LoadInt(work.plan.slots + block.first + row) /
                   work.row_slots * work.row_chunks;
    }
  }
  GroupedRows rows;
#pragma unroll
  for (int i = 0; i < GroupedRows::kHeld; ++i) {
    rows.at[i] = __shfl_sync(kAllLanes, mine[i / 8], i % 8 * 4 + lane / 8);
  }
  return rows;
}

// Starts the copies of a part of K, from its `k` on, to a warp's rows of a
// stage. Rows that a part of slots has not are left as they are: of what the
// tensor cores make of them nothing is stored.
__device__ __forceinline__ void CopyRows(const GroupedPromptWork& work,
                                         const GroupedRows& rows, int part,
                                         int k, uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int chunk = lane % 8;
  const uint32_t even = to + SwizzledOffset(lane / 8, chunk);
  const uint32_t odd = to + SwizzledOffset(4 + lane / 8, chunk);
  const int bytes = k + 8 * chunk < work.depth ? 16 : 0;
  const char* from =
      reinterpret_cast<const char*>(work.x + part * work.depth + k + 8 * chunk);
#pragma unroll
  for (int i = 0; i < GroupedRows::kHeld; ++i) {
    if (rows.at[i] < 0) continue;
    CopyAsync((i % 2 == 0 ? even : odd) + i / 2 * 1024,
              from + int64_t{16} * rows.at[i], bytes);
  }
}

// A warp: its 64 rows of x of all tiles of this block.
template <int kParts>
__device__ __forceinline__ void FillX(const GroupedPromptWork& work, int tiles,
                                      int columns, int group,
                                      GroupedRing ring) {
  using Tile = GroupedPromptTile;
  GroupedRing started = ring;  // the oldest stage not announced
  const auto announce = [&] {
    FenceForEngines();
    __syncwarp();
    if (threadIdx.x % kWarp == 0) BarrierArriveAt(started.Filled());
    started.Next();
  };
#pragma unroll 1
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles;
       tile += static_cast<int>(gridDim.x)) {
    const GroupedRows rows =
        RowsOf(work, BlockOf(work.plan, tile, columns), group);
    int waiting = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll 1
      for (int k = 0; k < work.depth; k += Tile::kDepth) {
        ring.AwaitEmpty();
        CopyRows(work, rows, part, k,
                 ring.X() + group * Tile::kGroupRows * 128);
        CommitCopies();
        ring.Next();
        if (++waiting > Tile::kLag) {
          AwaitCopiesBut<Tile::kLag>();
          announce();
          --waiting;
        }
      }
    }
    AwaitCopies();
#pragma unroll 1
    for (; waiting > 0; --waiting) announce();
  }
}

// Words a and b of the lanes of a pair `apart` lanes from each other: the lower
// one gets both words a, the upper one both words b.
__device__ __forceinline__ void Exchange(uint32_t& a, uint32_t& b, int apart) {
  const bool upper = (threadIdx.x & apart) != 0;
  const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? a : b, apart);
  if (upper) {
    a = got;
  } else {
    b = got;
  }
}

// A lane's two rows of the sums: 64 rows of one warpgroup.
struct GroupedOutRows {
  int64_t slot[2];
  bool exists[2];
};

// Stores columns [column, n) of sums as bf16. The four lanes of a quad, which
// have two columns each of four groups of eight, first trade them for a group
// each.
__device__ __forceinline__ void StoreBf16(const GroupedPromptWork& work,
                                          const float (&sums)[kGroupSums],
                                          const GroupedOutRows& rows,
                                          int column) {
  const int quad_lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint16_t* out = static_cast<uint16_t*>(work.out) +
                    rows.slot[half] * work.ldo + column + 8 * quad_lane;
#pragma unroll
    for (int j = 0; j < kGroupSums / 4; j += 4) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (j + i) + 2 * half;
        w[i] = PackBf16(sums[at], sums[at + 1]);
      }
      Exchange(w[0], w[1], 1);
      Exchange(w[2], w[3], 1);
      Exchange(w[0], w[2], 2);
      Exchange(w[1], w[3], 2);
      if (rows.exists[half] && column + 8 * (j + quad_lane) < work.n) {
        *reinterpret_cast<uint4*>(out + 8 * j) = {w[0], w[1], w[2], w[3]};
      }
    }
  }
}

__device__ __forceinline__ void StoreF32(const GroupedPromptWork& work,
                                         const float (&sums)[kGroupSums],
                                         const GroupedOutRows& rows,
                                         int column) {
  const int first = column + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!rows.exists[half]) continue;
    float* out = static_cast<float*>(work.out) + rows.slot[half] * work.ldo;
#pragma unroll
    for (int j = 0; j < kGroupSums / 4; ++j) {
      if (first + 8 * j >= work.n) break;
      const int at = 4 * j + 2 * half;
      *reinterpret_cast<float2*>(out + first + 8 * j) = {sums[at],
                                                         sums[at + 1]};
    }
  }
}

// A warpgroup, from the first stage of a part of K on: its sums over the part.
// Batches of products overlap; a stage is released one batch later.
__device__ __forceinline__ void MultiplyPart(const GroupedPromptWork& work,
                                             int group, GroupedRing& ring,
                                             float (&sums)[kGroupSums]) {
  using Tile = GroupedPromptTile;
  int before = -1;  // stage of the batch before
#pragma unroll 1
  for (int k = 0; k < work.depth; k += Tile::kDepth) {
    ring.AwaitFilled();
    const uint64_t x = OperandAt(ring.X() + group * Tile::kGroupRows * 128);
    const uint64_t w = OperandAt(ring.W());
    GroupMmaFence();
#pragma unroll
    for (int step = 0; step < Tile::kDepth / 16; ++step) {
      GroupMma(sums, x + 2 * step, w + 2 * step, k + step);
    }
    GroupMmaCommit();
    GroupMmaAwait<1>();
    if (before >= 0) ring.Release(before);
    before = ring.stage;
    ring.Next();
  }
  GroupMmaAwait<0>();
  HoldSums(sums);
  ring.Release(before);
}

// A thread of a warpgroup: where it may park.
__device__ __forceinline__ GroupedParked ParkedOf(const GroupedPromptWork& work,
                                                  const GroupedRing& ring) {
  constexpr int64_t kBlock = GroupedParked::kBlockBytes / sizeof(float4);
  const unsigned thread = threadIdx.x - GroupedPromptTile::kGroupThreads;
  auto& shared = reinterpret_cast<GroupedHalvesShared&>(ring.shared);
  GroupedParked parked;
  parked.near = shared.parked[0] + thread;
  parked.far = work.parked + blockIdx.x * kBlock + thread;
  return parked;
}

// A warpgroup: its rows of all tiles of this block.
template <int kParts>
__device__ __forceinline__ void Multiply(const GroupedPromptWork& work,
                                         int tiles, int group,
                                         GroupedRing ring) {
  using Tile = GroupedPromptTile;
  const int thread = static_cast<int>(threadIdx.x) % Tile::kGroupThreads;
  const int first_row =
      group * Tile::kGroupRows + thread / kWarp * 16 + thread % kWarp / 4;
#pragma unroll 1
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles;
       tile += static_cast<int>(gridDim.x)) {
    ring.AwaitFilled();
    const GroupedBlock block = ring.shared.block[ring.stage];
    if (group * Tile::kGroupRows >= block.count) {
      const int stages = (work.depth + Tile::kDepth - 1) / Tile::kDepth;
#pragma unroll 1
      for (int i = 0; i < kParts * stages; ++i) {
        ring.AwaitFilled();
        ring.Release(ring.stage);
        ring.Next();
      }
      continue;
    }
    GroupedOutRows rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 8 * half;
      rows.exists[half] = row < block.count;
      rows.slot[half] =
          rows.exists[half] ? LoadInt(work.plan.slots + block.first + row) : 0;
    }
    float sums[kGroupSums];
    MultiplyPart(work, group, ring, sums);
    if constexpr (kParts == 2) {
      GroupedParked parked = ParkedOf(work, ring);
      parked.Take(sums);
      MultiplyPart(work, group, ring, sums);
      parked.AddTo(sums);
    }
    if (work.out_type == SkinnyOut::kF32) {
      StoreF32(work, sums, rows, block.column);
    } else {
      StoreBf16(work, sums, rows, block.column);
    }
  }
}

#endif

// kParts: 2 halves of K, or 1.
template <int kParts>
__global__ void __launch_bounds__(GroupedPromptTile::kThreads, 1)
    GroupedPromptKernel(const __grid_constant__ GroupedPromptWork work) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Tile = GroupedPromptTile;
  extern __shared__ __align__(1024) std::byte shared[];
  AllowNextGrid();
  const GroupedRing ring = {*reinterpret_cast<GroupedPromptShared*>(shared)};
  if (SharedOffset(shared) % 1024 != 0) __trap();  // the swizzle needs it
  if (threadIdx.x == 0) ring.Init();
  AwaitPreviousGrids();
  __syncthreads();
  const int columns = (work.n + Tile::kColumns - 1) / Tile::kColumns;
  const int tiles = LoadInt(work.plan.part_count) * columns;
  const int warp =
      __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int warpgroup = warp / (Tile::kGroupThreads / kWarp);
  if (warpgroup == 0) {
    KeepRegisters<Tile::kFillRegisters>();
    if (warp < Tile::kGroups) {
      FillX<kParts>(work, tiles, columns, warp, ring);
    } else if (threadIdx.x % kWarp == 0 && warp == Tile::kGroups) {
      FillW<kParts>(work, tiles, columns, ring);
    }
  } else {
    TakeRegisters<Tile::kMultiplyRegisters>();
    Multiply<kParts>(work, tiles, warpgroup - 1, ring);
  }
#endif
}

}  // namespace baton::cuda
