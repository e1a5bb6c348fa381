// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/rotate_and_store.h"

namespace baton::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 8;      // elements
constexpr int kTileRows = 16;  // of a block where there are many rows
// Up to this many rows, a row is shared out among blocks.
constexpr int64_t kFewRows = 128;
constexpr int64_t kTileBlocks = 1024;  // to share tiles out among, about

// A group of lanes takes a head, a lane two chunks of it that rotation
// combines, or one that it leaves alone.
struct HeadShape {
  int half;    // num_freqs
  int pairs;   // lanes with two chunks
  int used;    // lanes with any, at most a warp
  int lanes;   // of a head: a power of two
  int rotate;  // lanes of the rotated heads of a row, a multiple of a warp
  int value_chunks;  // of a head
  int tasks;         // lanes of a row
};

HeadShape ShapeOf(const RotateAndStoreArgs& args) {
  const auto head_dim = static_cast<int>(args.pages.head_dim);
  const auto kv_heads = static_cast<int>(args.pages.kv_heads);
  const auto heads = static_cast<int>(args.q_heads) + kv_heads;
  const auto chunks = [](int n) { return (n + kChunk - 1) / kChunk; };
  HeadShape shape = {};
  shape.half = static_cast<int>(args.num_freqs);
  shape.pairs = chunks(shape.half);
  shape.used = shape.pairs + chunks(head_dim - 2 * shape.half);
  shape.lanes = 1;
  while (shape.lanes < shape.used) shape.lanes *= 2;
  shape.rotate = (heads * shape.lanes + kWarp - 1) / kWarp * kWarp;
  shape.value_chunks = chunks(head_dim);
  shape.tasks = shape.rotate + kv_heads * shape.value_chunks;
  return shape;
}

// Elements [a, a_end) and [b, b_end) of a head, up to kChunk each.
struct Chunks {
  int a, a_end, b, b_end;
};
__device__ __forceinline__ Chunks ChunksOf(const HeadShape& shape, int lane,
                                           int head_dim) {
  if (lane >= shape.used) return {0, 0, 0, 0};
  if (lane >= shape.pairs) {
    return {2 * shape.half + (lane - shape.pairs) * kChunk, head_dim, 0, 0};
  }
  const int a = lane * kChunk;
  return {a, shape.half, a + shape.half, 2 * shape.half};
}

// What a lane does for a row.
struct Task {
  uint16_t* x;  // a head of q or k; of v it is not written
  Chunks chunks;
  int kv_head;  // below zero: of q
  bool is_normed;
  uint4 norm_a, norm_b;  // the head's weight
  uint4 a, b;            // the head's elements: LoadTask
};

// Lane `number` of a row; none past shape.tasks. Reads weights only.
template <bool kVectors>
__device__ __forceinline__ Task TaskOf(const RotateAndStoreArgs& args,
                                       const HeadShape& shape, int64_t row,
                                       int number) {
  const auto head_dim = static_cast<int>(args.pages.head_dim);
  const auto q_heads = static_cast<int>(args.q_heads);
  const auto kv_heads = static_cast<int>(args.pages.kv_heads);
  const int64_t at = row * args.row_stride;
  Task task = {};
  if (number < shape.rotate) {
    const int head = number / shape.lanes;
    const bool is_query = head < q_heads;
    task.kv_head = is_query ? -1 : head - q_heads;
    if (head < q_heads + kv_heads) {
      task.chunks = ChunksOf(shape, number % shape.lanes, head_dim);
    }
    task.x = static_cast<uint16_t*>(is_query ? args.q : args.k) + at +
             (is_query ? head : task.kv_head) * head_dim;
    const auto* norm =
        static_cast<const uint16_t*>(is_query ? args.q_norm : args.k_norm);
    task.is_normed = norm != nullptr;
    if (task.is_normed) {
      task.norm_a = LoadEight<kVectors>(norm, task.chunks.a, task.chunks.a_end);
      task.norm_b = LoadEight<kVectors>(norm, task.chunks.b, task.chunks.b_end);
    }
  } else if (number < shape.tasks) {
    const int chunk = number - shape.rotate;
    task.kv_head = chunk / shape.value_chunks;
    const int a = chunk % shape.value_chunks * kChunk;
    task.chunks = {a, head_dim, 0, 0};
    task.x = const_cast<uint16_t*>(static_cast<const uint16_t*>(args.v)) + at +
             task.kv_head * head_dim;
  }
  return task;
}
template <bool kVectors>
__device__ __forceinline__ void LoadTask(Task& task) {
  const Chunks& chunks = task.chunks;
  task.a = LoadEight<kVectors>(task.x, chunks.a, chunks.a_end);
  task.b = LoadEight<kVectors>(task.x, chunks.b, chunks.b_end);
}

// Squares are added per lane, then over the lanes of the head as a tree.
__device__ __forceinline__ void Normalize(const Task& task, int lanes,
                                          int head_dim, float eps,
                                          float (&a)[kChunk],
                                          float (&b)[kChunk]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    sum = fmaf(a[i], a[i], sum);
    sum = fmaf(b[i], b[i], sum);
  }
  for (int width = lanes / 2; width > 0; width /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, width);
  }
  const float mean = sum / static_cast<float>(head_dim);
  const float factor = 1.0f / sqrtf(mean + eps);
  if (!task.is_normed) return;
  float w[kChunk];
  Unpack(task.norm_a, w);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) a[i] = RoundBf16(w[i] * (a[i] * factor));
  Unpack(task.norm_b, w);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) b[i] = RoundBf16(w[i] * (b[i] * factor));
}

// Where the token of a row lies in its page.
struct Place {
  uint16_t* page;  // [2][kv_heads][16 * head_dim]
  int slot;
};
__device__ __forceinline__ Place PlaceOf(const KvPages& pages, int sequence,
                                         int position) {
  const int64_t id = LoadInt(pages.page_table + sequence * pages.page_stride +
                             position / static_cast<int>(kPageTokens));
  return {reinterpret_cast<uint16_t*>(static_cast<char*>(pages.pool) +
                                      id * pages.page_bytes),
          position % static_cast<int>(kPageTokens)};
}

// All lanes of a warp, whose tasks are of rotated heads of one row.
template <bool kVectors>
__device__ __forceinline__ void RotateTask(const RotateAndStoreArgs& args,
                                           const HeadShape& shape,
                                           const Task& task, const Place& place,
                                           const float2* angles) {
  const auto head_dim = static_cast<int>(args.pages.head_dim);
  const Chunks& chunks = task.chunks;
  float a[kChunk];
  float b[kChunk];
  Unpack(task.a, a);
  Unpack(task.b, b);
  if (args.q_norm != nullptr || args.k_norm != nullptr) {
    Normalize(task, shape.lanes, head_dim, args.eps, a, b);
  }
  if (chunks.b < chunks.b_end) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float2 cos_sin = angles[chunks.a + i];
      const float low = a[i];
      const float high = b[i];
      a[i] = fmaf(low, cos_sin.x, -__fmul_rn(high, cos_sin.y));
      b[i] = fmaf(high, cos_sin.x, __fmul_rn(low, cos_sin.y));
    }
  }
  const uint4 packed_a = Pack(a);
  const uint4 packed_b = Pack(b);
  StoreEight<kVectors>(task.x, chunks.a, chunks.a_end, packed_a);
  StoreEight<kVectors>(task.x, chunks.b, chunks.b_end, packed_b);
  if (task.kv_head < 0) return;
  uint16_t* key =
      place.page +
      (task.kv_head * static_cast<int>(kPageTokens) + place.slot) * head_dim;
  StoreEight<kVectors>(key, chunks.a, chunks.a_end, packed_a);
  StoreEight<kVectors>(key, chunks.b, chunks.b_end, packed_b);
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

__device__ __forceinline__ float2 AngleOf(const RotateAndStoreArgs& args,
                                          int position, int i) {
  float sine;
  float cosine;
  sincosf(static_cast<float>(position) * __ldcg(args.inv_freq + i), &sine,
          &cosine);
  return {cosine * args.amplitude, sine * args.amplitude};
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

// Whether whole vectors suit the chunks of every head.
bool SuitsVectors(const RotateAndStoreArgs& args) {
  return args.num_freqs % kChunk == 0 && args.pages.head_dim % kChunk == 0 &&
         args.row_stride % kChunk == 0 && IsAligned(args.q, 16) &&
         IsAligned(args.k, 16) && IsAligned(args.v, 16) &&
         IsAligned(args.q_norm, 16) && IsAligned(args.k_norm, 16);
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
