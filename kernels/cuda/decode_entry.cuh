// SPDX-License-Identifier: Apache-2.0
// What precedes attention of a generated row that is alone of its sequence in
// the visit: a block rotates the queries and the key of its unit for itself,
// as rotate_head.cuh does it, and puts the new token into its copy of the page.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/decode_combine.cuh"
#include "kernels/cuda/rotate_head.cuh"

namespace baton::cuda {

// In shared memory: what a unit has of its row.
template <int kHeadDim>
struct alignas(16) DecodeEntry {
  uint16_t q[kUnitHeads * kHeadDim];
  uint16_t k[kHeadDim];
  uint16_t v[kHeadDim];
  float2 angles[kHeadDim / 2];  // (cos, sin)
};

// The unit of a row.
struct EntryUnit {
  int row, position;
  int first_head, heads;  // of q
  int kv_head;
};

// The task of lane i of a unit: its queries' heads, then its key's.
__device__ __forceinline__ Task TaskOfUnit(const RotateAndStoreArgs& args,
                                           const HeadShape& shape,
                                           const EntryUnit& unit, int i) {
  const int local = i >> shape.lanes_shift;
  const int lane = i & (shape.lanes() - 1);
  const int head = local < unit.heads
                       ? unit.first_head + local
                       : static_cast<int>(args.q_heads) + unit.kv_head;
  const bool is_task = local <= unit.heads;
  return TaskOf<true>(
      args, shape, unit.row,
      is_task ? (head << shape.lanes_shift) + lane : shape.tasks);
}

// All lanes of a warp: rotates what its tasks have loaded.
template <int kHeadDim>
__device__ __forceinline__ void EnterTask(const RotateAndStoreArgs& args,
                                          const HeadShape& shape,
                                          const EntryUnit& unit, int i,
                                          const Task& task,
                                          DecodeEntry<kHeadDim>& entry) {
  const Rotated rotated = RotateHead(args, shape, task, entry.angles);
  const int local = i >> shape.lanes_shift;
  if (local > unit.heads) return;
  StoreChunks<true>(local < unit.heads ? entry.q + local * kHeadDim : entry.k,
                    task.chunks, rotated);
}

// All kThreads threads of a block; waits for the grids before. What it makes is
// there behind the next barrier of the block.
template <int kHeadDim, int kThreads>
__device__ __forceinline__ void EnterUnit(const RotateAndStoreArgs& args,
                                          const HeadShape& shape,
                                          const EntryUnit& unit,
                                          DecodeEntry<kHeadDim>& entry) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lanes =
      (((unit.heads + 1) << shape.lanes_shift) + kWarp - 1) / kWarp * kWarp;
  if (thread < shape.half) {
    entry.angles[thread] = AngleOf(args, unit.position, thread);
  }
  Task task = TaskOfUnit(args, shape, unit, thread);
  const int value = kThreads - 1 - thread;  // chunk of the value
  Task value_task = TaskOf<true>(
      args, shape, unit.row,
      value < shape.value_chunks
          ? shape.rotate + unit.kv_head * shape.value_chunks + value
          : shape.tasks);
  __syncthreads();  // angles
  AwaitPreviousGrids();
  LoadTask<true>(task);
  LoadTask<true>(value_task);
#pragma unroll 1
  for (int i = thread; i < lanes; i += kThreads) {
    if (i != thread) [[unlikely]] {
      task = TaskOfUnit(args, shape, unit, i);
      LoadTask<true>(task);
    }
    EnterTask<kHeadDim>(args, shape, unit, i, task, entry);
  }
  if (value < shape.value_chunks) {
    StoreEight<true>(entry.v, value_task.chunks.a, kHeadDim, value_task.a);
  }
}

// All kThreads threads of a block: the key and the value that EnterUnit made go
// to their page, for visits to come.
template <int kHeadDim, int kThreads>
__device__ __forceinline__ void StoreToken(const KvPages& pages,
                                           const Place& place, int kv_head,
                                           const DecodeEntry<kHeadDim>& entry) {
  static_assert(kHeadDim <= kThreads);
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kHeadDim) return;
  const int64_t value_head = pages.kv_heads + kv_head;
  uint16_t* key = place.page + (kv_head * kPage + place.slot) * kHeadDim;
  uint16_t* value = place.page + value_head * kPage * kHeadDim + place.slot;
  key[i] = entry.k[i];
  value[i * kPage] = entry.v[i];
}

// The token that a page in shared memory lacks.
template <int kHeadDim>
struct NewToken {
  const DecodeEntry<kHeadDim>* entry = nullptr;
  int page = -1;  // of the unit's pages; below zero: none
  int slot = 0;

  // All lanes of a warp; nobody else may be at the page. A StageFence belongs
  // between this and a fill of it.
  __device__ __forceinline__ void PutInto(char* keys) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    auto* const k = reinterpret_cast<uint16_t*>(keys) + slot * kHeadDim;
    auto* const v = reinterpret_cast<uint16_t*>(keys) + kPage * kHeadDim + slot;
    for (int i = lane; i < kHeadDim; i += kWarp) {
      k[i] = entry->k[i];
      v[i * kPage] = entry->v[i];
    }
    __syncwarp();
  }
};

}  // namespace baton::cuda
