// SPDX-License-Identifier: Apache-2.0
// The kernels of grouped_matmul.h: slots sorted by expert, their rows of x side
// by side, then the skinny kernel for each part of up to Tile::kTokens of them.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/grouped_matmul.h"
#include "kernels/cuda/skinny_kernel.cuh"

namespace baton::cuda {

// Rows [first, first + count) of the sorted ones, all of one expert.
struct GroupedPart {
  int32_t expert, first, count;
};

// What the sort gives, in device memory.
struct GroupedPlan {
  int32_t* part_count;
  GroupedPart* parts;  // [max_parts]
  int32_t* slots;      // [slots]: of each sorted row
};

inline constexpr int kSortThreads = 1024;
inline constexpr int kGatherThreads = 128;
inline constexpr int kGroupedPlainWarps = 8;  // rows of W of a block

// One block. The order of the slots of an expert does not matter: it is not
// the same from run to run.
__global__ void __launch_bounds__(kSortThreads)
    SortSlotsKernel(GroupedArgs args, GroupedPlan plan, int experts,
                    int part_rows) {
  __shared__ int32_t rows_before[kMaxExperts + 1];
  __shared__ int32_t parts_before[kMaxExperts + 1];
  __shared__ int32_t next[kMaxExperts];
  EnterKernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int slots = static_cast<int>(args.tokens * args.top);
  const auto expert_of = [&](int slot) {
    const int expert = LoadInt(
        args.experts + slot / args.top * args.ld_experts + slot % args.top);
    return expert < experts ? expert : -1;
  };
  for (int e = thread; e < experts; e += kSortThreads) rows_before[e + 1] = 0;
  __syncthreads();
  for (int slot = thread; slot < slots; slot += kSortThreads) {
    const int expert = expert_of(slot);
    if (expert >= 0) atomicAdd(&rows_before[expert + 1], 1);
  }
  __syncthreads();
  for (int e = thread; e < experts; e += kSortThreads) {
    parts_before[e + 1] = (rows_before[e + 1] + part_rows - 1) / part_rows;
  }
  __syncthreads();
  if (thread / kWarp == 0) AddUp(experts, rows_before);
  if (thread / kWarp == 1) AddUp(experts, parts_before);
  __syncthreads();
  for (int e = thread; e < experts; e += kSortThreads) {
    next[e] = rows_before[e];
    for (int p = parts_before[e]; p < parts_before[e + 1]; ++p) {
      const int first = rows_before[e] + (p - parts_before[e]) * part_rows;
      plan.parts[p] = {e, first, min(part_rows, rows_before[e + 1] - first)};
    }
  }
  if (thread == 0) *plan.part_count = parts_before[experts];
  __syncthreads();
  for (int slot = thread; slot < slots; slot += kSortThreads) {
    const int expert = expert_of(slot);
    if (expert >= 0) plan.slots[atomicAdd(&next[expert], 1)] = slot;
  }
  // Rows of nobody, behind all others, are multiplied by nothing.
  for (int i = rows_before[experts] + thread; i < slots; i += kSortThreads) {
    plan.slots[i] = 0;
  }
}

// sorted[i] = x[row of slot i], in 16-byte pieces.
__global__ void __launch_bounds__(kGatherThreads)
    GatherRowsKernel(GroupedArgs args, GroupedPlan plan, uint16_t* sorted,
                     int64_t k, int64_t ld) {
  EnterKernel();
  const int64_t i = blockIdx.x;
  const int64_t per_row = args.tokens * args.top / args.rows;
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

// A warp an output, as SkinnyPlainKernel adds it up. Blocks: rows of W, slots.
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
    float sum = 0;
    for (int64_t k = lane; k < weights.k; k += 32) {
      sum = __fmaf_rn(FromBf16(w[k]), FromBf16(Load2(x + k)), sum);
    }
    for (int mask = 1; mask < 32; mask *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, mask);
    }
    if (lane == 0) {
      static_cast<uint16_t*>(args.out)[slot * args.ldo + row] = ToBf16(sum);
    }
  }
}

}  // namespace baton::cuda
