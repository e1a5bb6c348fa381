// SPDX-License-Identifier: Apache-2.0
// The tensor-core kernel of head_matmul.h: a block has a tile of one head's
// output; tiles of x and W arrive in shared memory, 64 of k at a time.
#pragma once

#include "kernels/cuda/head_matmul.h"
#include "kernels/cuda/mma.cuh"

namespace baton::cuda {

// Warps that share a block's rows and its columns; 16-row tiles and 16-column
// tiles of each. kStages are in flight but one.
template <int kRowWarps, int kColumnWarps_, int kRowTiles_, int kColumnTiles_,
          int kStages_>
struct HeadTile {
  static constexpr int kColumnWarps = kColumnWarps_;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kColumnTiles = kColumnTiles_;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kWarpColumns = 16 * kColumnTiles;
  static constexpr int kRows = kRowWarps * kWarpRows;
  static constexpr int kColumns = kColumnWarps * kWarpColumns;
  static constexpr int kThreads = kRowWarps * kColumnWarps * kWarp;
  static constexpr int kDepth = 64;
  static constexpr int kChunks = kDepth / 8;  // of 16 bytes, of a row
  static constexpr int kStages = kStages_;
};

// Chunk c of row r lies at c ^ (r % 8): eight rows of one chunk are in
// different banks.
template <typename Tile>
struct HeadStage {
  uint4 x[Tile::kRows][Tile::kChunks];
  uint4 w[Tile::kColumns][Tile::kChunks];
};

// Rows of a matrix from `first` on, as one block sees them.
struct HeadOperand {
  const uint16_t* data;  // of the first row
  int64_t stride;
  int64_t rows;  // that there are; others are zeros
};

// Starts the copy of k [64 step, + 64). What lies behind k is zeros.
template <int kRows, int kThreads>
__device__ __forceinline__ void CopyOperand(const HeadOperand& from, int step,
                                            int64_t k, uint4 (*to)[8]) {
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kRows * 8; i += kThreads) {
    const int row = i / 8;
    const int chunk = i % 8;
    const int64_t at = static_cast<int64_t>(step) * 64 + chunk * 8;
    const bool is_there = row < from.rows && at < k;
    CopyAsync(SharedOffset(&to[row][chunk ^ (row % 8)]),
              is_there ? from.data + row * from.stride + at : from.data,
              is_there ? 16 : 0);
  }
}

// One stage of a warp's tiles; kHalves tiles of 8 columns.
template <int kRowTiles, int kHalves>
__device__ __forceinline__ void MultiplyStage(
    const uint4 (*x)[8], const uint4 (*w)[8],
    float (&sums)[kRowTiles][kHalves][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int turn = lane % 8;  // row % 8 of every row this lane points at
#pragma unroll
  for (int s = 0; s < 4; ++s) {  // 16 of k
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      LoadMatrices(
          a[t],
          SharedOffset(&x[16 * t + lane % 16][(2 * s + lane / 16) ^ turn]));
    }
#pragma unroll
    for (int n = 0; n < kHalves / 2; ++n) {
      uint32_t b[4];
      LoadMatrices(b, SharedOffset(&w[16 * n + lane / 16 * 8 + turn]
                                     [(2 * s + lane / 8 % 2) ^ turn]));
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        Mma(sums[t][2 * n], a[t], b[0], b[1]);
        Mma(sums[t][2 * n + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// Those of a warp, whose tiles begin at (row, column) of the head's output.
template <int kRowTiles, int kHalves>
__device__ __forceinline__ void StoreProducts(
    const HeadWeights& weights, const HeadMatmulArgs& args, int64_t head,
    int64_t row, int64_t column, const float (&sums)[kRowTiles][kHalves][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int64_t to_row = row + i / 2 * 16 + i % 2 * 8 + lane / 4;
    if (to_row >= args.rows) continue;
    auto* out =
        static_cast<uint16_t*>(args.out) + to_row * args.ldo + head * weights.n;
#pragma unroll
    for (int u = 0; u < kHalves; ++u) {
      const int64_t to_column = column + u * 8 + lane % 4 * 2;
      if (to_column >= weights.n) continue;
      const float(&sum)[4] = sums[i / 2][u];
      *reinterpret_cast<uint32_t*>(out + to_column) =
          PackBf16(sum[i % 2 * 2], sum[i % 2 * 2 + 1]);
    }
  }
}

// Tile `column` of the columns of a head, `row` of the rows.
struct HeadPlace {
  int column, head, row;
};

// There is memory for Tile::kStages stages, or for all steps along k where
// these are fewer.
template <typename Tile>
__device__ __forceinline__ void HeadBlock(const HeadWeights& weights,
                                          const HeadMatmulArgs& args,
                                          const HeadPlace& place,
                                          char* shared) {
  constexpr int kThreads = Tile::kThreads;
  constexpr int kStages = Tile::kStages;
  auto* stages = reinterpret_cast<HeadStage<Tile>*>(shared);
  const int64_t head = place.head;
  const int64_t column = static_cast<int64_t>(place.column) * Tile::kColumns;
  const int64_t row = static_cast<int64_t>(place.row) * Tile::kRows;
  const HeadOperand w = {static_cast<const uint16_t*>(weights.pointers[head]) +
                             column * weights.ldw,
                         weights.ldw, weights.n - column};
  const HeadOperand x = {static_cast<const uint16_t*>(args.x) + row * args.ldx +
                             head * args.head_stride,
                         args.ldx, args.rows - row};
  const auto steps =
      static_cast<int>((weights.k + Tile::kDepth - 1) / Tile::kDepth);
  for (int s = 0; s < min(kStages - 1, steps); ++s) {
    CopyOperand<Tile::kColumns, kThreads>(w, s, weights.k, stages[s].w);
  }
  AwaitPreviousGrids();
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) {
      CopyOperand<Tile::kRows, kThreads>(x, s, weights.k, stages[s].x);
    }
    CommitCopies();
  }

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warp_row = warp / Tile::kColumnWarps * Tile::kWarpRows;
  const int warp_column = warp % Tile::kColumnWarps * Tile::kWarpColumns;
  float sums[Tile::kRowTiles][2 * Tile::kColumnTiles][4] = {};
  for (int s = 0; s < steps; ++s) {
    AwaitGroups<kStages - 2>();
    __syncthreads();
    const int next = s + kStages - 1;
    if (next < steps) {
      HeadStage<Tile>& to = stages[next % kStages];
      CopyOperand<Tile::kColumns, kThreads>(w, next, weights.k, to.w);
      CopyOperand<Tile::kRows, kThreads>(x, next, weights.k, to.x);
    }
    CommitCopies();
    const HeadStage<Tile>& stage = stages[s % kStages];
    MultiplyStage(&stage.x[warp_row], &stage.w[warp_column], sums);
  }

  StoreProducts(weights, args, head, row + warp_row, column + warp_column,
                sums);
}

[[nodiscard]] inline bool SuitsTensorCores(const HeadWeights& weights,
                                           const HeadMatmulArgs& args) {
  return weights.k % 8 == 0 && weights.ldw % 8 == 0 && weights.n % 2 == 0 &&
         IsAligned(args.x, 16) && args.ldx % 8 == 0 &&
         args.head_stride % 8 == 0 && IsAligned(args.out, 4) &&
         args.ldo % 2 == 0;
}
// Bytes of shared memory of a block.
template <typename Tile>
[[nodiscard]] size_t HeadSharedBytes(const HeadWeights& weights) {
  const int64_t steps = CeilDiv(weights.k, Tile::kDepth);
  const int64_t stages = steps < 1               ? 1
                         : steps < Tile::kStages ? steps
                                                 : Tile::kStages;
  return static_cast<size_t>(stages) * sizeof(HeadStage<Tile>);
}

// Of up to 16 rows: what is read is W, so that small blocks share it out, and
// have all of a k of 512 under way before they wait for x.
using FewHeadRows = HeadTile<1, 2, 1, 1, 9>;
using SomeHeadRows = HeadTile<2, 2, 2, 1, 4>;  // of up to 64

}  // namespace baton::cuda
