// SPDX-License-Identifier: Apache-2.0
// What the kernel of GroupedPromptMatmul works on: sizes of a tile, the shared
// memory of a block, and where it parks sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/grouped_sort.h"

namespace baton::cuda {

struct GroupedPromptWork {
  const CUtensorMap* maps;  // [experts], EncodeGroups of kBoxRows
  GroupedPlan plan;
  const uint16_t* x;
  int row_chunks;  // 16-byte chunks from a row of x to the next
  int row_slots;   // slots of a row of x
  void* out;
  int64_t ldo;
  SkinnyOut out_type;
  int n, depth;    // depth: k of a part
  bool apart;      // maps are of halves
  float4* parked;  // of two halves: [blocks][GroupedParked::kBlockBytes]
};

struct GroupedPromptTile {
  static constexpr int kRows = 128;     // of x
  static constexpr int kColumns = 256;  // of out: rows of W
  static constexpr int kDepth = 64;     // k of a stage
  static constexpr int kGroupRows = 64;
  static constexpr int kGroups = kRows / kGroupRows;  // that multiply
  static constexpr int kGroupThreads = 128;
  static constexpr int kThreads = (1 + kGroups) * kGroupThreads;
  static constexpr int kBoxRows = 32;
  static constexpr int kXBytes = kRows * kDepth * 2;
  static constexpr int kWBytes = kColumns * kDepth * 2;
  static constexpr int kStageBytes = kXBytes + kWBytes;
  static constexpr int kStages = 4;
  // Copies of x are announced this many stages after they were started.
  static constexpr int kLag = 2;
  static_assert(kLag < kStages);
  // Registers of a thread: 64K in all.
  static constexpr int kFillRegisters = 72;
  static constexpr int kMultiplyRegisters = 216;
};

// Sorted slots [first, first + count) by W's rows [column, column + kColumns).
struct GroupedBlock {
  int expert, first, count, column;
};

struct GroupedPromptShared {
  using Tile = GroupedPromptTile;
  std::byte stages[Tile::kStages][Tile::kStageBytes];  // rows of x, of W
  uint64_t filled[Tile::kStages];
  uint64_t empty[Tile::kStages];
  GroupedBlock block[Tile::kStages];  // where a stage is a tile's first
};

// Where a thread's sums of the first half of K are while it adds up the second:
// as many as there is room for in registers and in shared memory, the others in
// memory, of which L2 keeps them. A tile so reads and writes 48 KB more; its
// stages are 768 bytes for each k.
struct GroupedParked {
  using Tile = GroupedPromptTile;
  static constexpr int kHeld = 72;
  static constexpr int kShared = 32;
  static constexpr int kFar = 24;
  static constexpr int kThreads = Tile::kGroups * Tile::kGroupThreads;
  static constexpr int64_t kBlockBytes = int64_t{kFar} * 4 * kThreads;

  float held[kHeld];
  float4* near;  // fours of all threads follow each other, in both
  float4* far;

  __device__ __forceinline__ static float4 Four(const float* of) {
    return {of[0], of[1], of[2], of[3]};
  }
  __device__ __forceinline__ static void AddFour(float* to, float4 four) {
    to[0] = four.x + to[0];
    to[1] = four.y + to[1];
    to[2] = four.z + to[2];
    to[3] = four.w + to[3];
  }
  template <int kSums>
  __device__ __forceinline__ void Take(const float (&sums)[kSums]) {
    static_assert(kSums == kHeld + kShared + kFar);
#pragma unroll
    for (int i = 0; i < kFar / 4; ++i) {
      __stcg(far + i * kThreads, Four(sums + kHeld + kShared + 4 * i));
    }
#pragma unroll
    for (int i = 0; i < kShared / 4; ++i) {
      near[i * kThreads] = Four(sums + kHeld + 4 * i);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      // Seen through, it would become one value with what the tensor cores are
      // given next, and all sums be spilled (CUDA 13.0).
      asm volatile("mov.f32 %0, %1;" : "=f"(held[i]) : "f"(sums[i]));
    }
  }
  // The same thread.
  template <int kSums>
  __device__ __forceinline__ void AddTo(float (&sums)[kSums]) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) sums[i] = held[i] + sums[i];
#pragma unroll
    for (int i = 0; i < kFar / 4; ++i) {
      AddFour(sums + kHeld + kShared + 4 * i, __ldcg(far + i * kThreads));
    }
#pragma unroll
    for (int i = 0; i < kShared / 4; ++i) {
      AddFour(sums + kHeld + 4 * i, near[i * kThreads]);
    }
  }
};

struct GroupedHalvesShared {
  GroupedPromptShared stages;
  float4 parked[GroupedParked::kShared / 4][GroupedParked::kThreads];
};
static_assert(sizeof(GroupedHalvesShared) <= 227 * 1024);

}  // namespace baton::cuda
