// SPDX-License-Identifier: Apache-2.0
// Barriers of a block: those in shared memory that copies complete (mbarrier),
// and numbered ones.
#pragma once

#include <cstdint>

#include "kernels/cuda/common.cuh"

namespace baton::cuda {

#ifdef __CUDACC__

// ---- In shared memory, at an address inside its window; from sm_90 on -------

#if __CUDA_ARCH__ >= 900
// A barrier whose phases so many arrivals and the announced bytes complete.
__device__ __forceinline__ void BarrierInit(uint32_t barrier,
                                            uint32_t arrivals = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier),
               "r"(arrivals)
               : "memory");
}
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// An arrival at a phase that awaits `bytes` of copies, too.
__device__ __forceinline__ void BarrierExpect(uint32_t barrier,
                                              uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}
// One thread: an initialised barrier whose first phase awaits `bytes`.
__device__ __forceinline__ void BarrierInitFor(uint32_t barrier,
                                               uint32_t bytes) {
  BarrierInit(barrier);
  BarrierInitFence();
  BarrierExpect(barrier, bytes);
}
// An arrival without copies. Those that wait see what this thread has written.
__device__ __forceinline__ void BarrierArriveAt(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
// Waits for the end of the phase of this parity; what the copies wrote is
// visible after it.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// The same where blocks of the cluster have stored (SendTo).
__device__ __forceinline__ void BarrierWaitCluster(uint32_t barrier,
                                                   uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], "
      "%1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
#endif

// ---- Numbered, of `threads` threads in whole warps; 0 is __syncthreads -----

__device__ __forceinline__ void BarrierSync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Counts as one that syncs, and does not wait.
__device__ __forceinline__ void BarrierArrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#endif  // __CUDACC__

}  // namespace baton::cuda
