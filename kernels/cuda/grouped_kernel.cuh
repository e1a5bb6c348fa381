// SPDX-License-Identifier: Apache-2.0
// The kernels of GroupedMatmul: the rows of x of sorted slots side by side,
// then the skinny kernel for each part of up to Tile::kTokens of them; of one
// token its kernel of one row for each slot.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/grouped_matmul.h"
#include "kernels/cuda/grouped_sort.h"
#include "kernels/cuda/skinny_kernel.cuh"
#include "kernels/cuda/skinny_row.cuh"

namespace baton::cuda {

inline constexpr int kGatherThreads = 128;
inline constexpr int kGroupedPlainWarps = 8;  // rows of W of a block

// sorted[i] = x[row of slot i], in 16-byte pieces; `per_row`: slots of a row.
__global__ void __launch_bounds__(kGatherThreads)
    GatherRowsKernel(GroupedArgs args, GroupedPlan plan, uint16_t* sorted,
                     int64_t k, int64_t ld, int per_row) {
  EnterKernel();
  const int64_t i = blockIdx.x;
  const int64_t row = LoadInt(plan.slots + i) / per_row;
  const uint16_t* from = static_cast<const uint16_t*>(args.x) + row * args.ldx;
  for (int64_t at = 8 * static_cast<int64_t>(threadIdx.x); at < k;
       at += 8 * kGatherThreads) {
    *reinterpret_cast<uint4*>(sorted + i * ld + at) = Load16(from + at);
  }
}

// Blocks: parts, then rows of W.
template <int kTokenTiles>
__global__ void __launch_bounds__(SkinnyTile<1, 1, kTokenTiles, 8>::kThreads,
                                  SkinnyTile<1, 1, kTokenTiles, 8>::kMinBlocks)
    GroupedKernel(const CUtensorMap* maps, const GroupedPlan plan,
                  const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ SkinnyWork work) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Tile = SkinnyTile<1, 1, kTokenTiles, 8>;
  extern __shared__ __align__(1024) std::byte shared[];
  EnterKernel();
  const int part = static_cast<int>(blockIdx.x);
  if (part >= LoadInt(plan.part_count)) return;
  const GroupedPart* of = plan.parts + part;
  SkinnyBlock<Tile, kTokenTiles, 8>(maps[LoadInt(&of->expert)], x_map, work,
                                    static_cast<int>(blockIdx.y),
                                    {.first = LoadInt(&of->first),
                                     .count = LoadInt(&of->count),
                                     .out_rows = plan.slots},
                                    shared);
#endif
}

// Blocks of one token, of which two fit on a multiprocessor.
inline constexpr RowTile kTokenTile = {.teams = 8, .tiles = 2};
inline constexpr int kTokenSlots = 3;
inline constexpr int kTokenRoom = kMaxSharedBytes / 2 - 1024;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Of one token, whose experts are all different ones: each slot is a row of its
// own, and x is where it was. Behind the wait for earlier grids.
__device__ __forceinline__ void GroupedTokenBlock(const CUtensorMap* maps,
                                                  const GroupedArgs& args,
                                                  int experts,
                                                  const RowWork& work, int slot,
                                                  std::byte* shared) {
  const int expert = LoadInt(args.experts + slot);
  if (expert < 0 || expert >= experts) return;
  const auto* x = static_cast<const uint16_t*>(args.x);
  if (args.rows > 1) x += slot * args.ldx;
  RowBlock<kTokenTile>(maps[expert], work, static_cast<int>(blockIdx.y), x,
                       slot, shared);
}

#endif

// Blocks: slots, then rows of W.
__global__ void __launch_bounds__(kTokenTile.threads(), kTokenTile.min_blocks())
    GroupedTokenKernel(const CUtensorMap* maps,
                       const __grid_constant__ GroupedArgs args, int experts,
                       const __grid_constant__ RowWork work) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) std::byte shared[];
  EnterKernel();
  GroupedTokenBlock(maps, args, experts, work, static_cast<int>(blockIdx.x),
                    shared);
#endif
}

// What of a matrix beside the experts' the blocks of a launch need.
struct SharedProduct {
  CUtensorMap map;
  const void* x;
  RowWork work;
  int blocks;  // that share out its rows of W
};

// Blocks: the shared matrix, of which everything but x is known ahead of the
// wait, then slots; then rows of W.
__global__ void __launch_bounds__(kTokenTile.threads(), kTokenTile.min_blocks())
    GroupedAndSharedKernel(const CUtensorMap* maps,
                           const __grid_constant__ GroupedArgs args,
                           int experts, int expert_blocks,
                           const __grid_constant__ RowWork work,
                           const __grid_constant__ SharedProduct beside) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) std::byte shared[];
  AllowNextGrid();
  const auto index = static_cast<int>(blockIdx.y);
  if (blockIdx.x == 0 && index < beside.blocks) {
    RowBlock<kTokenTile>(beside.map, beside.work, index, beside.x, 0, shared);
    return;
  }
  AwaitPreviousGrids();
  if (blockIdx.x == 0 || index >= expert_blocks) return;
  GroupedTokenBlock(maps, args, experts, work, static_cast<int>(blockIdx.x) - 1,
                    shared);
#endif
}

// A warp: w x of k, as SkinnyPlainKernel adds it up.
__device__ __forceinline__ float PlainSum(const uint16_t* w, const uint16_t* x,
                                          int64_t size) {
  float sum = 0;
  for (int64_t k = threadIdx.x % kWarp; k < size; k += kWarp) {
    sum = __fmaf_rn(FromBf16(w[k]), FromBf16(Load2(x + k)), sum);
  }
  for (int mask = 1; mask < kWarp; mask *= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, mask);
  }
  return sum;
}

// A warp an output. Blocks: rows of W, slots.
__global__ void __launch_bounds__(32 * kGroupedPlainWarps)
    GroupedPlainKernel(GroupedWeights weights, GroupedArgs args) {
  EnterKernel();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kGroupedPlainWarps +
                      static_cast<int>(threadIdx.x) / 32;
  if (row >= weights.n) return;
  const int64_t slots = args.tokens * args.top;
  for (int64_t slot = blockIdx.y; slot < slots; slot += gridDim.y) {
    const int expert = LoadInt(
        args.experts + slot / args.top * args.ld_experts + slot % args.top);
    if (expert < 0 || expert >= weights.experts) continue;
    const auto* w = static_cast<const uint16_t*>(weights.pointers[expert]) +
                    row * weights.ldw;
    const auto* x = static_cast<const uint16_t*>(args.x) +
                    slot / (slots / args.rows) * args.ldx;
    const int64_t parts = weights.halves == 2 ? 2 : 1;
    float sum = PlainSum(w, x, weights.k / parts);
    if (parts == 2) {
      sum += PlainSum(w + weights.k / 2, x + weights.k / 2, weights.k / 2);
    }
    if (lane != 0) continue;
    if (args.out_type == SkinnyOut::kF32) {
      static_cast<float*>(args.out)[slot * args.ldo + row] = sum;
    } else {
      static_cast<uint16_t*>(args.out)[slot * args.ldo + row] = ToBf16(sum);
    }
  }
}

}  // namespace baton::cuda
