// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory that the copy engine completes (sm_90 and later).
#pragma once

#include <cstdint>

#include "kernels/cuda/common.cuh"

namespace baton::cuda {

// A barrier of one arrival; with announced bytes, these complete it too.
__device__ __forceinline__ void BarrierInit(uint64_t* barrier) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(SharedOffset(barrier))
      : "memory");
}
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(uint64_t* barrier) {
  asm volatile(
      "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedOffset(barrier))
      : "memory");
}
// Arrives, and announces `bytes` of copies.
__device__ __forceinline__ void BarrierAnnounce(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   SharedOffset(barrier)),
               "r"(bytes)
               : "memory");
}
// Waits for completion number `completion` (0, 1, ...). Only its parity is
// looked at, so that the one before must be over, and no later one may be.
__device__ __forceinline__ void BarrierAwait(uint64_t* barrier,
                                             int completion) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(SharedOffset(barrier)),
      "r"(completion & 1)
      : "memory");
}
// One thread: starts the copy of `bytes` (a multiple of 16), announced to the
// barrier, to shared memory.
__device__ __forceinline__ void CopyBulk(char* to, const char* from, int bytes,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(SharedOffset(to)),
      "l"(from), "r"(bytes), "r"(SharedOffset(barrier))
      : "memory");
}

}  // namespace baton::cuda
