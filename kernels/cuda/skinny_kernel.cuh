// SPDX-License-Identifier: Apache-2.0
// The Hopper kernel of skinny_matmul.h.
//
// A block owns 32 or 64 rows of W; each of its 8 warps owns one leaf of K. A
// warp streams its piece of W through a ring of 4 KB boxes (32 rows x 64 k, a
// row 128 bytes) that the copy engine fills, and multiplies with tensor cores:
// W on the M side, tokens on the N side. No warp waits for another one before
// the leaves are combined.
//
// Inside a group of 64 k, the fragments of thread t = lane % 4 are the 16-byte
// chunks t and t + 4, the same for W and x, so that both load 16 bytes at once.
// Row lane / 4 of a fragment is row ((lane / 4) >> 1) + 4 * ((lane / 4) & 1) of
// the box: eight neighbouring lanes then read eight different chunk columns of
// the swizzled box, which is free of bank conflicts.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/skinny_epilogue.cuh"
#include "kernels/cuda/skinny_matmul.h"
#include "kernels/cuda/tma.cuh"

namespace baton::cuda {

inline constexpr int kSkinnyWarps = kSkinnyMaxLeaves;
inline constexpr int kSkinnyThreads = 32 * kSkinnyWarps;
inline constexpr int kGroup = static_cast<int>(kSkinnyGroup);
inline constexpr int kBoxRows = 32;
inline constexpr int kBoxBytes = kBoxRows * 128;

// What a launch is told besides the map of W.
struct SkinnyWork {
  const __nv_bfloat16* x;  // [m, k], row stride ldx
  int64_t ldx;
  int m, n, k;
  int leaf_shift;  // log2 of SkinnyLeaves(k)
  int slots;       // boxes in flight per warp
  SkinnySink sink;
};

// Shared memory of a block: per warp `slots` boxes, then per warp `slots`
// barriers. Partial sums take the place of the warp's own boxes at the end.
[[nodiscard]] constexpr int SkinnySharedBytes(int slots) {
  return kSkinnyWarps * slots * (kBoxBytes + 8);
}

// The blocking of one instantiation.
template <int kRowTiles, int kTokenTiles>
struct SkinnyTile {
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kBoxes = kRows / kBoxRows;  // of one group
  // Groups of x held in registers ahead of their use.
  static constexpr int kAhead = kTokenTiles == 1 ? 3 : kTokenTiles == 2 ? 2 : 1;
  // Partial sums of a warp: f32 [kTokens][kStride]; the padding spreads the
  // stores of a fragment over all banks.
  static constexpr int kStride = kRows + 4;
  static constexpr int kMinSlots =
      (kTokens * kStride * 4 + kBoxBytes - 1) / kBoxBytes;
  static constexpr int kMinBlocks =  // resident
      kTokenTiles == 8 || kRowTiles * kTokenTiles == 16 ? 1 : 2;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The boxes of W that one warp has in flight. Lane 0 starts the copies.
class SkinnyRing {
 public:
  // Box i of the leaf is rows first_row + 32 * (i % boxes_per_group), group
  // first_group + i / boxes_per_group.
  __device__ SkinnyRing(uint32_t boxes, uint32_t barriers, int slots,
                        int first_row, int first_group)
      : boxes_(boxes),
        barriers_(barriers),
        slots_(slots),
        first_row_(first_row),
        first_group_(first_group) {}

  // Starts the first copies. `count`: boxes of the leaf.
  template <int kBoxes>
  __device__ void Fill(const CUtensorMap& map, int lane, int count) {
    count_ = count;
    policy_ = EvictFirstPolicy();
    if (lane == 0) {
#pragma unroll 1
      for (int i = 0; i < slots_; ++i) BarrierInit(barriers_ + 8 * i);
      BarrierInitFence();
#pragma unroll 1
      for (; next_ < slots_ && next_ < count_; ++next_) {
        Start<kBoxes>(map, next_);
      }
    }
    next_ = min(slots_, count_);
    __syncwarp();
  }

  // The shared address of the oldest box, once it is there.
  __device__ uint32_t Wait() const {
    BarrierWait(barriers_ + 8 * slot_, phase_);
    return boxes_ + kBoxBytes * slot_;
  }

  // Hands the oldest box back, which no lane reads any more, and starts the
  // next copy in its place.
  template <int kBoxes>
  __device__ void Release(const CUtensorMap& map, int lane) {
    __syncwarp();
    if (next_ < count_) {
      if (lane == 0) Start<kBoxes>(map, slot_);
      ++next_;
    }
    if (++slot_ == slots_) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  // Starts the copy of box next_.
  template <int kBoxes>
  __device__ void Start(const CUtensorMap& map, int slot) {
    const uint32_t barrier = barriers_ + 8 * slot;
    BarrierExpect(barrier, kBoxBytes);
    CopyBox(boxes_ + kBoxBytes * slot, map,
            (first_group_ + next_ / kBoxes) * kGroup,
            first_row_ + next_ % kBoxes * kBoxRows, barrier, policy_);
  }

  uint32_t boxes_, barriers_;
  int slots_;
  int first_row_, first_group_;
  uint64_t policy_ = 0;
  int count_ = 0;
  int next_ = 0;  // box to copy next
  int slot_ = 0;  // of the oldest box
  uint32_t phase_ = 0;
};

__device__ inline void LoadShared(uint32_t (&v)[4], uint32_t at) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(at));
}
// 16 bytes, or zeros where `valid` is 0. Past L1: x may have been written while
// this grid was already resident.
__device__ inline void LoadThrough(uint32_t (&v)[4], const void* at,
                                   int valid) {
  asm volatile(
      "{\n"
      ".reg .pred valid;\n"
      "setp.ne.s32 valid, %5, 0;\n"
      "mov.u32 %0, 0;\n"
      "mov.u32 %1, 0;\n"
      "mov.u32 %2, 0;\n"
      "mov.u32 %3, 0;\n"
      "@valid ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}\n"
      : "=&r"(v[0]), "=&r"(v[1]), "=&r"(v[2]), "=&r"(v[3])
      : "l"(at), "r"(valid));
}
__device__ inline void MultiplyAdd(float (&c)[4], uint32_t a0, uint32_t a1,
                                   uint32_t a2, uint32_t a3, uint32_t b0,
                                   uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The rows of x as one lane sees them: token lane / 4 of each tile of 8.
struct SkinnyTokens {
  const __nv_bfloat16* x;  // at its first token and chunk
  int64_t ldx;
  int token;     // lane / 4
  int chunk_k;   // first k of its first chunk inside a group
  int m, k_end;  // tokens, and the end of the leaf or of K

  // Chunk `half` of a group of tokens token + 8 * tile.
  __device__ void Load(uint32_t (&v)[4], int tile, int half, int group) const {
    const int k = group * kGroup + half * 32;
    LoadThrough(v, x + 8 * tile * ldx + k,
                token + 8 * tile < m && chunk_k + k < k_end);
  }
};

// One group of the leaf: acc += W[rows, group] x[tokens, group], then b takes
// the next group of x that belongs into these registers.
template <typename Tile, int kRowTiles, int kTokenTiles>
__device__ __forceinline__ void MultiplyGroup(
    float (&acc)[kRowTiles][kTokenTiles][4], uint32_t (&b)[kTokenTiles][2][4],
    SkinnyRing& ring, const CUtensorMap& map, const SkinnyTokens& tokens,
    int lane, uint32_t lane_offset, int next_group) {
  uint32_t box = 0;  // where this lane reads its first chunk of the tile
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    box = tile % 2 == 0 ? ring.Wait() + lane_offset : box + 2048;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t upper[4], lower[4];  // rows of the tile: 0 to 7, 8 to 15
      LoadShared(upper, box ^ (half * 64));
      LoadShared(lower, (box ^ (half * 64)) + 1024);
#pragma unroll
      for (int step = 0; step < 4; step += 2) {
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          MultiplyAdd(acc[tile][j], upper[step], lower[step], upper[step + 1],
                      lower[step + 1], b[j][half][step], b[j][half][step + 1]);
        }
      }
      if (tile + 1 == kRowTiles) {
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          tokens.Load(b[j][half], j, half, next_group);
        }
      }
    }
    if (tile % 2 == 1) ring.template Release<Tile::kBoxes>(map, lane);
  }
}

// Stores a warp's fragments as f32 [kTokens][kStride] at `to`.
template <typename Tile, int kRowTiles, int kTokenTiles>
__device__ __forceinline__ void StorePartial(
    float* to, const float (&acc)[kRowTiles][kTokenTiles][4], int token,
    int row) {
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      float* at = to + (8 * j + token) * Tile::kStride + 16 * tile + row;
      at[0] = acc[tile][j][0];
      at[Tile::kStride] = acc[tile][j][1];
      at[8] = acc[tile][j][2];
      at[Tile::kStride + 8] = acc[tile][j][3];
    }
  }
}

// Combines the partial sums of all leaves, `stride` floats apart; leaves that
// do not exist are zeros.
__device__ inline float SumOfLeaves(const float* p, int stride) {
  static_assert(kSkinnyMaxLeaves == 8);
  const float left = (p[0] + p[stride]) + (p[2 * stride] + p[3 * stride]);
  const float right =
      (p[4 * stride] + p[5 * stride]) + (p[6 * stride] + p[7 * stride]);
  return left + right;
}

#endif

template <int kRowTiles, int kTokenTiles>
__global__ void __launch_bounds__(
    kSkinnyThreads, SkinnyTile<kRowTiles, kTokenTiles>::kMinBlocks)
    SkinnyKernel(const __grid_constant__ CUtensorMap map,
                 const __grid_constant__ SkinnyWork work) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Tile = SkinnyTile<kRowTiles, kTokenTiles>;
  extern __shared__ __align__(1024) std::byte shared[];
  LaunchDependents();
  PrefetchMap(map);

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kRows;
  const int groups = (work.k + kGroup - 1) / kGroup;
  int begin = 0, end = 0;  // groups of this warp's leaf
  if (warp >> work.leaf_shift == 0) {
    begin = (warp * groups) >> work.leaf_shift;
    end = ((warp + 1) * groups) >> work.leaf_shift;
  }

  const int ring_bytes = work.slots * kBoxBytes;
  const uint32_t base = SharedAddress(shared);
  if (base % 1024 != 0) __trap();  // the swizzle needs whole patterns
  SkinnyRing ring(base + warp * ring_bytes,
                  base + kSkinnyWarps * ring_bytes + warp * work.slots * 8,
                  work.slots, first_row, begin);
  ring.Fill<Tile::kBoxes>(map, lane, (end - begin) * Tile::kBoxes);

  const int token = lane / 4, chunk = lane % 4;
  const SkinnyTokens tokens = {.x = work.x + token * work.ldx + 8 * chunk,
                               .ldx = work.ldx,
                               .token = token,
                               .chunk_k = 8 * chunk,
                               .m = work.m,
                               .k_end = min(work.k, end * kGroup)};
  const int row = (token >> 1) + 4 * (token & 1);
  const uint32_t lane_offset = row * 128 + ((chunk ^ row) << 4);
  float acc[kRowTiles][kTokenTiles][4] = {};
  uint32_t b[Tile::kAhead][kTokenTiles][2][4];

  WaitForPredecessors();
#pragma unroll
  for (int ahead = 0; ahead < Tile::kAhead; ++ahead) {
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      tokens.Load(b[ahead][j][0], j, 0, begin + ahead);
      tokens.Load(b[ahead][j][1], j, 1, begin + ahead);
    }
  }
  for (int group = begin; group < end; group += Tile::kAhead) {
#pragma unroll
    for (int ahead = 0; ahead < Tile::kAhead; ++ahead) {
      if (group + ahead >= end) break;
      MultiplyGroup<Tile>(acc, b[ahead], ring, map, tokens, lane, lane_offset,
                          group + ahead + Tile::kAhead);
    }
  }

  float* partial = reinterpret_cast<float*>(shared);
  const int leaf_stride = ring_bytes / static_cast<int>(sizeof(float));
  StorePartial<Tile>(partial + warp * leaf_stride, acc, 2 * chunk, row);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < work.m * Tile::kRows;
       i += kSkinnyThreads) {
    const int to_token = i / Tile::kRows, to_row = i % Tile::kRows;
    if (first_row + to_row >= work.n) continue;
    StoreSum(
        work.sink, to_token, first_row + to_row,
        SumOfLeaves(partial + to_token * Tile::kStride + to_row, leaf_stride));
  }
#endif
}

}  // namespace baton::cuda
