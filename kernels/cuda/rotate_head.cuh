// SPDX-License-Identifier: Apache-2.0
// The norm, rotation and store of heads of a row, as lanes share them out.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/rotate_and_store.h"

namespace baton::cuda {

inline constexpr int kChunk = 8;  // elements

// A group of lanes takes a head, a lane two chunks of it that rotation
// combines, or one that it leaves alone.
struct HeadShape {
  int half;         // num_freqs
  int pairs;        // lanes with two chunks
  int used;         // lanes with any, at most a warp
  int lanes_shift;  // log2 of the lanes of a head
  int rotate;       // lanes of the rotated heads of a row, a multiple of a warp
  int value_chunks;  // of a head
  int tasks;         // lanes of a row
  float share;       // of an element in a head's mean

  [[nodiscard]] constexpr int lanes() const { return 1 << lanes_shift; }
};

inline HeadShape ShapeOf(const RotateAndStoreArgs& args) {
  const auto head_dim = static_cast<int>(args.pages.head_dim);
  const auto kv_heads = static_cast<int>(args.pages.kv_heads);
  const auto heads = static_cast<int>(args.q_heads) + kv_heads;
  const auto chunks = [](int n) { return (n + kChunk - 1) / kChunk; };
  HeadShape shape = {};
  shape.half = static_cast<int>(args.num_freqs);
  shape.pairs = chunks(shape.half);
  shape.used = shape.pairs + chunks(head_dim - 2 * shape.half);
  while (shape.lanes() < shape.used) ++shape.lanes_shift;
  shape.rotate = (heads * shape.lanes() + kWarp - 1) / kWarp * kWarp;
  shape.value_chunks = chunks(head_dim);
  shape.tasks = shape.rotate + kv_heads * shape.value_chunks;
  shape.share = ShareOf(head_dim);
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
    const int head = number >> shape.lanes_shift;
    const bool is_query = head < q_heads;
    task.kv_head = is_query ? -1 : head - q_heads;
    if (head < q_heads + kv_heads) {
      task.chunks = ChunksOf(shape, number & (shape.lanes() - 1), head_dim);
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
__device__ __forceinline__ void Normalize(const Task& task,
                                          const HeadShape& shape, float eps,
                                          float (&a)[kChunk],
                                          float (&b)[kChunk]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    sum = fmaf(a[i], a[i], sum);
    sum = fmaf(b[i], b[i], sum);
  }
  for (int width = shape.lanes() / 2; width > 0; width /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, width);
  }
  const float factor = rsqrtf(fmaf(sum, shape.share, eps));
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

// What becomes of a task's elements. All lanes of a warp, whose tasks are of
// rotated heads of one row.
struct Rotated {
  uint4 a, b;
};
__device__ __forceinline__ Rotated RotateHead(const RotateAndStoreArgs& args,
                                              const HeadShape& shape,
                                              const Task& task,
                                              const float2* angles) {
  const Chunks& chunks = task.chunks;
  float a[kChunk];
  float b[kChunk];
  Unpack(task.a, a);
  Unpack(task.b, b);
  if (args.q_norm != nullptr || args.k_norm != nullptr) {
    Normalize(task, shape, args.eps, a, b);
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
  return {Pack(a), Pack(b)};
}

// A task's elements at their places in a head.
template <bool kVectors>
__device__ __forceinline__ void StoreChunks(uint16_t* head,
                                            const Chunks& chunks,
                                            const Rotated& rotated) {
  StoreEight<kVectors>(head, chunks.a, chunks.a_end, rotated.a);
  StoreEight<kVectors>(head, chunks.b, chunks.b_end, rotated.b);
}

__device__ __forceinline__ float2 AngleOf(const RotateAndStoreArgs& args,
                                          int position, int i) {
  float sine;
  float cosine;
  sincosf(static_cast<float>(position) * __ldcg(args.inv_freq + i), &sine,
          &cosine);
  return {cosine * args.amplitude, sine * args.amplitude};
}

// Whether whole vectors suit the chunks of every head.
inline bool SuitsVectors(const RotateAndStoreArgs& args) {
  return args.num_freqs % kChunk == 0 && args.pages.head_dim % kChunk == 0 &&
         args.row_stride % kChunk == 0 && IsAligned(args.q, 16) &&
         IsAligned(args.k, 16) && IsAligned(args.v, 16) &&
         IsAligned(args.q_norm, 16) && IsAligned(args.k_norm, 16);
}

}  // namespace baton::cuda
