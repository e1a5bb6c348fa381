// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/rotate_and_store.h"
#include "kernels/cuda/rotate_head.cuh"

namespace baton::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileRows = 16;  // of a block where there are many rows
// Up to this many rows, a row is shared out among blocks.
constexpr int64_t kFewRows = 128;
constexpr int64_t kTileBlocks = 1024;  // to share tiles out among, about

template <bool kVectors>
__device__ __forceinline__ void StoreKey(const KvPages& pages, const Task& task,
                                         const Place& place,
                                         const Rotated& rotated) {
  uint16_t* key =
      place.page + (task.kv_head * static_cast<int>(kPageTokens) + place.slot) *
                       static_cast<int>(pages.head_dim);
  StoreChunks<kVectors>(key, task.chunks, rotated);
}

__device__ __forceinline__ void StoreValues(const KvPages& pages,
                                            const Task& task,
                                            const Place& place) {
  const auto head_dim = static_cast<int>(pages.head_dim);
  const int64_t head = pages.kv_heads + task.kv_head;
  uint16_t* to = place.page + head * kPageTokens * head_dim + place.slot;
  const uint32_t words[4] = {task.a.x, task.a.y, task.a.z, task.a.w};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const int dim = task.chunks.a + i;
    if (dim >= task.chunks.a_end) break;
    to[dim * kPageTokens] = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
  }
}

// All lanes of a warp, whose tasks are of rotated heads of one row.
template <bool kVectors>
__device__ __forceinline__ void RotateTask(const RotateAndStoreArgs& args,
                                           const HeadShape& shape,
                                           const Task& task, const Place& place,
                                           const float2* angles) {
  const Rotated rotated = RotateHead(args, shape, task, angles);
  StoreChunks<kVectors>(task.x, task.chunks, rotated);
  if (task.kv_head >= 0) {
    StoreKey<kVectors>(args.pages, task, place, rotated);
  }
}

// ---- Few rows: a block takes part of a row, a task per thread --------------

// Positions, page numbers and with them angles and places are known ahead of
// the grids before, and so are weights.
template <bool kVectors>
__global__ void __launch_bounds__(kThreads)
    RowKernel(RotateAndStoreArgs args, HeadShape shape) {
  __shared__ float2 angles[kMaxHeadDim / 2];  // (cos, sin)
  AllowNextGrid();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  const int number = static_cast<int>(blockIdx.y) * kThreads + thread;
  const int sequence = LoadInt(args.row_sequence + row);
  const int position = LoadInt(args.positions + row);
  Task task = TaskOf<kVectors>(args, shape, row, number);
  Place place = {};
  if (sequence >= 0) place = PlaceOf(args.pages, sequence, position);
  if (thread < shape.half) angles[thread] = AngleOf(args, position, thread);
  __syncthreads();
  AwaitPreviousGrids();
  if (sequence < 0) return;
  LoadTask<kVectors>(task);
  if (number < shape.rotate) {
    RotateTask<kVectors>(args, shape, task, place, angles);
  } else {
    StoreValues(args.pages, task, place);
  }
}

// ---- Many rows: a block takes part of a tile -------------------------------

// Rows [first - 16, first + 32), first being the tile's.
struct TileRows {
  int sequence[3 * kTileRows];  // below zero: skipped, or no row
  int position[3 * kTileRows];
};

// All threads: the rows around the tile, and the angles of its own.
__device__ __forceinline__ void ReadTile(
    const RotateAndStoreArgs& args, const HeadShape& shape, int64_t first,
    TileRows& rows, float2 (&angles)[kTileRows][kMaxHeadDim / 2]) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 3 * kTileRows) {
    const int64_t row = first - kTileRows + thread;
    const bool is_row = row >= 0 && row < args.rows;
    rows.sequence[thread] = is_row ? LoadInt(args.row_sequence + row) : -1;
    rows.position[thread] = is_row ? LoadInt(args.positions + row) : 0;
  }
  __syncthreads();
  for (int i = thread; i < kTileRows * shape.half; i += kThreads) {
    const int row = i / shape.half;
    if (rows.sequence[kTileRows + row] < 0) continue;
    angles[row][i % shape.half] =
        AngleOf(args, rows.position[kTileRows + row], i % shape.half);
  }
  __syncthreads();
}

// Bit i: from row first - 16 + i on, sixteen rows of a sequence fill a page.
__device__ __forceinline__ uint64_t FullPages(const TileRows& rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint64_t begins = 0;
  uint64_t follows = 0;  // its row continues the one before
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int i = part * kWarp + lane;
    bool begin = false;
    bool follow = false;
    if (i < 3 * kTileRows) {
      begin = rows.sequence[i] >= 0 &&
              rows.position[i] % static_cast<int>(kPageTokens) == 0;
      follow = i > 0 && rows.sequence[i] >= 0 &&
               rows.sequence[i] == rows.sequence[i - 1] &&
               rows.position[i] == rows.position[i - 1] + 1;
    }
    begins |= uint64_t{__ballot_sync(kAllLanes, begin)} << (part * kWarp);
    follows |= uint64_t{__ballot_sync(kAllLanes, follow)} << (part * kWarp);
  }
#pragma unroll
  for (int i = 1; i < kTileRows; ++i) begins &= follows >> i;
  return begins;
}

// Whether pairs of values are whole words.
__device__ __forceinline__ bool SuitsPairs(const RotateAndStoreArgs& args) {
  return args.row_stride % 2 == 0 &&
         reinterpret_cast<uintptr_t>(args.v) % 4 == 0;
}

// Values of the sixteen tokens of a page, two dims of all: the loads of a warp
// are whole rows, and what it stores is contiguous.
__device__ __forceinline__ void StoreFullPage(const RotateAndStoreArgs& args,
                                              int64_t first_row,
                                              const Place& place, int pair) {
  const auto* from = static_cast<const uint16_t*>(args.v) +
                     first_row * args.row_stride + 2 * pair;
  uint32_t x[kPageTokens];
#pragma unroll
  for (int t = 0; t < static_cast<int>(kPageTokens); ++t) {
    x[t] = Load4(from + t * args.row_stride);
  }
  auto* to = reinterpret_cast<uint4*>(
      place.page +
      (args.pages.kv_heads * args.pages.head_dim + 2 * pair) * kPageTokens);
#pragma unroll
  for (int n = 0; n < 4; ++n) {  // tokens [8 (n % 2), + 8) of dim n / 2
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = n % 2 * 8 + 2 * i;
      words[i] = __byte_perm(x[t], x[t + 1], n < 2 ? 0x5410 : 0x7632);
    }
    to[n] = {words[0], words[1], words[2], words[3]};
  }
}

template <bool kVectors>
__global__ void __launch_bounds__(kThreads)
    TileKernel(RotateAndStoreArgs args, HeadShape shape) {
  __shared__ TileRows rows;
  __shared__ float2 angles[kTileRows][kMaxHeadDim / 2];  // (cos, sin)
  EnterKernel();
  const int64_t first = int64_t{blockIdx.x} * kTileRows;
  ReadTile(args, shape, first, rows, angles);
  const uint64_t full = SuitsPairs(args) ? FullPages(rows) : 0;
  const int step = static_cast<int>(gridDim.y) * kThreads;
  const int begin = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  const auto place_of = [&](int row) {
    return PlaceOf(args.pages, rows.sequence[kTileRows + row],
                   rows.position[kTileRows + row]);
  };
  for (int i = begin; i < kTileRows * shape.rotate; i += step) {
    const int row = i / shape.rotate;
    if (rows.sequence[kTileRows + row] < 0) continue;
    Task task = TaskOf<kVectors>(args, shape, first + row, i % shape.rotate);
    LoadTask<kVectors>(task);
    const Place place = task.kv_head < 0 ? Place{} : place_of(row);
    RotateTask<kVectors>(args, shape, task, place, angles[row]);
  }
  const auto started = static_cast<uint32_t>(full >> kTileRows) & 0xffffu;
  if (started != 0) {
    const int row = __ffs(static_cast<int>(started)) - 1;
    const Place place = place_of(row);
    const auto pairs =
        static_cast<int>(args.pages.kv_heads * args.pages.head_dim / 2);
    for (int i = begin; i < pairs; i += step) {
      StoreFullPage(args, first + row, place, i);
    }
  }
  const int chunks = shape.tasks - shape.rotate;
  for (int i = begin; i < kTileRows * chunks; i += step) {
    const int row = i / chunks;
    // Bits of the rows where a page would begin that this one is in.
    const bool is_full = (full >> (row + 1) & 0xffffu) != 0;
    if (is_full || rows.sequence[kTileRows + row] < 0) continue;
    Task task =
        TaskOf<kVectors>(args, shape, first + row, shape.rotate + i % chunks);
    LoadTask<kVectors>(task);
    StoreValues(args.pages, task, place_of(row));
  }
}

}  // namespace

cudaError_t RotateAndStore(const RotateAndStoreArgs& args,
                           cudaStream_t stream) {
  const int64_t head_dim = args.pages.head_dim;
  if (head_dim % 2 != 0 || head_dim > kMaxHeadDim ||
      2 * args.num_freqs > head_dim) {
    return cudaErrorInvalidValue;
  }
  const HeadShape shape = ShapeOf(args);
  if (shape.used > kWarp) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const bool vectors = SuitsVectors(args);
  if (args.rows <= kFewRows) {
    const dim3 grid(Blocks(args.rows), Blocks(CeilDiv(shape.tasks, kThreads)));
    return Launch(vectors ? &RowKernel<true> : &RowKernel<false>, grid,
                  kThreads, 0, stream, args, shape);
  }
  const int64_t tiles = CeilDiv(args.rows, kTileRows);
  const int64_t parts = std::clamp<int64_t>(kTileBlocks / tiles, 1, 8);
  return Launch(vectors ? &TileKernel<true> : &TileKernel<false>,
                dim3(Blocks(tiles), Blocks(parts)), kThreads, 0, stream, args,
                shape);
}

}  // namespace baton::cuda
