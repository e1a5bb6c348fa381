// SPDX-License-Identifier: Apache-2.0
// A ring of stages in shared memory that one warp fills with bulk copies and
// reads itself. Before sm_90 the copies are plain loads.
#pragma once

#include <cstdint>

#include "kernels/cuda/barrier.cuh"

namespace baton::cuda {

// One thread, for all stages. A loop, since compilers turn a short condition
// into predicates, and of an init that a predicate turns off racecheck (CUDA
// 13.0) still takes the address, whatever its register holds, as written.
__device__ __forceinline__ void StagesInit(uint64_t* barriers, int stages) {
#if __CUDA_ARCH__ >= 900
#pragma unroll 1
  for (int i = 0; i < stages; ++i) BarrierInit(SharedOffset(barriers + i));
  BarrierInitFence();
#endif
}
// What this thread wrote to a stage comes before a fill of it.
__device__ __forceinline__ void StageFence() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
#if __CUDA_ARCH__ >= 900
// Starts the copy of `bytes` to shared memory; all are multiples of 16.
__device__ __forceinline__ void CopyBytes(uint32_t to, const void* from,
                                          int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
#endif
// All lanes: starts the copy of two blocks of `bytes` (a multiple of 16) to
// `to` and `to + bytes`, which the barrier awaits.
__device__ __forceinline__ void StageCopy(uint64_t* barrier, char* to,
                                          const char* first, const char* second,
                                          int bytes) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#if __CUDA_ARCH__ >= 900
  if (lane != 0) return;
  const char* from[2] = {first, second};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    CopyBytes(SharedOffset(to + i * bytes), from[i], bytes,
              SharedOffset(barrier));
  }
#else
  for (int i = lane * 16; i < bytes; i += kWarp * 16) {
    *reinterpret_cast<uint4*>(to + i) = Load16(first + i);
    *reinterpret_cast<uint4*>(to + bytes + i) = Load16(second + i);
  }
#endif
}
// The same of a stage that is nothing else.
__device__ __forceinline__ void StageFill(uint64_t* barrier, char* to,
                                          const char* first, const char* second,
                                          int bytes) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x % kWarp == 0) BarrierExpect(SharedOffset(barrier), 2 * bytes);
#endif
  StageCopy(barrier, to, first, second, bytes);
}
// All lanes: waits for the fill number `fill` (0, 1, ...) of this stage.
__device__ __forceinline__ void StageAwait(uint64_t* barrier, int fill) {
#if __CUDA_ARCH__ >= 900
  BarrierWait(SharedOffset(barrier), fill & 1);
#endif
  __syncwarp();
}

}  // namespace baton::cuda
