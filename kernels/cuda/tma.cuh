// SPDX-License-Identifier: Apache-2.0
// PTX of the tensor copy engine and of clusters. Nothing here exists before
// sm_90.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/barrier.cuh"

namespace baton::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// An L2 policy for bytes that are read once.
__device__ inline uint64_t EvictFirstPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;"
               : "=l"(policy));
  return policy;
}

// Starts the copy of the box at (column, row) of a matrix to shared memory.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, int column,
                               int row, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::"
      "bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, int column,
                               int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::"
      "bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
// The same of a map of three dimensions (tensor_map.h): of halves, of one of
// them; of pairs, from pair `row` and 0 on.
__device__ inline void CopyBoxOf(int third, uint32_t to, const CUtensorMap& map,
                                 int column, int row, uint32_t barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::"
      "bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(third), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ inline void CopyBoxOf(int third, uint32_t to, const CUtensorMap& map,
                                 int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::"
      "bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(third), "r"(barrier)
      : "memory");
}
__device__ inline void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Where 16-byte chunk `chunk` of a row of 128 bytes lies in a swizzled box, as
// an offset from it.
__device__ __forceinline__ uint32_t SwizzledOffset(int row, int chunk) {
  return row * 128 + ((chunk ^ (row % 8)) << 4);
}

// Waits for all threads of the cluster, and before that for whatever this one
// has under way: copies to shared memory, too.
__device__ inline void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Waits for all threads of the cluster alone. Orders no memory but barriers
// behind a BarrierInitFence: these are there.
__device__ inline void ClusterMeet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
// Where the block of this rank of the cluster has what is at `address` here.
__device__ inline uint32_t AddressIn(uint32_t rank, uint32_t address) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(mapped)
      : "r"(address), "r"(rank));
  return mapped;
}
__device__ inline void StoreShared(uint32_t address, float v) {
  asm volatile("st.shared::cta.f32 [%0], %1;" ::"r"(address), "f"(v)
               : "memory");
}
__device__ inline float LoadShared(uint32_t address) {
  float v;
  asm volatile("ld.shared::cta.f32 %0, [%1];" : "=f"(v) : "r"(address));
  return v;
}
// Loads from a block of the cluster; plain shared addresses are this block's.
__device__ inline float LoadIn(uint32_t address) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address));
  return v;
}

// Stores to a block of the cluster and counts the bytes in a barrier of it,
// whose initialisation has to have been seen. Both addresses: AddressIn.
__device__ inline void SendTo(uint32_t address, float v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], "
      "%1, [%2];" ::"r"(address),
      "r"(__float_as_uint(v)), "r"(barrier)
      : "memory");
}
__device__ inline void SendPairTo(uint32_t address, float2 v,
                                  uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 "
      "[%0], {%1, %2}, [%3];" ::"r"(address),
      "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(barrier)
      : "memory");
}

#endif

}  // namespace baton::cuda
