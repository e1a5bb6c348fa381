// SPDX-License-Identifier: Apache-2.0
// PTX of the bulk tensor copy engine, its barriers, and programmatic dependent
// launch. Nothing here exists before sm_90.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace baton::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The address of a shared-memory object inside its window.
__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// A barrier that one arrival and the announced bytes complete.
__device__ inline void BarrierInit(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier)
               : "memory");
}
// Makes initialised barriers visible to the copy engine.
__device__ inline void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The one arrival of a phase that `bytes` of copies complete.
__device__ inline void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}
// Waits for the end of the phase of this parity; what the copies wrote is
// visible after it.
__device__ inline void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

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
__device__ inline void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Waits for `threads` threads of this block, whole warps; 0 is __syncthreads.
__device__ inline void NamedBarrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Waits for all threads of the cluster.
__device__ inline void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same without ordering memory.
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
// Loads from a block of the cluster; plain shared addresses are this block's.
__device__ inline float LoadIn(uint32_t address) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address));
  return v;
}

// Lets the next grid of the stream start once every block of this one has
// started.
__device__ inline void LaunchDependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Waits until the grids before this one have ended and their writes are
// visible (except to lines that this multiprocessor's L1 already holds).
__device__ inline void WaitForPredecessors() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

#endif

}  // namespace baton::cuda
