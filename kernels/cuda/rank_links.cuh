// SPDX-License-Identifier: Apache-2.0
// A block's side of a call among ranks (rank_links.h).
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/rank_links.h"

namespace baton::cuda {

// Every thread of a block makes one, behind the wait for earlier grids.
class RankCall {
 public:
  __device__ __forceinline__ explicit RankCall(const RankLinks& links)
      : links_(links),
        call_(*static_cast<const volatile uint32_t*>(links.calls + blockIdx.x) +
              1) {}

  // Where this block's part goes, and where the other rank's comes.
  __device__ __forceinline__ std::byte* Out() const {
    return links_.other + Slot();
  }
  __device__ const __forceinline__ std::byte* In() const {
    return links_.mine + Slot();
  }

  // Behind it the other rank's part is there, past L1.
  __device__ __forceinline__ void Meet() const {
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence_system();
      asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(
                       links_.other_flags + blockIdx.x),
                   "r"(call_)
                   : "memory");
      Await();
      *static_cast<volatile uint32_t*>(links_.calls + blockIdx.x) = call_;
    }
    __syncthreads();
  }

 private:
  __device__ __forceinline__ int64_t Slot() const {
    return (static_cast<int64_t>(blockIdx.x) * 2 + call_ % 2) * kRankSlotBytes;
  }

  // The other rank may be a call ahead, never two.
  __device__ __forceinline__ bool Arrived() const {
    uint32_t flag;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                 : "=r"(flag)
                 : "l"(links_.my_flags + blockIdx.x)
                 : "memory");
    return static_cast<int32_t>(flag - call_) >= 0;
  }
  __device__ __forceinline__ void Await() const {
    constexpr int kPollsPerLook = 1024;  // at the clock and the host's word
    const uint64_t start = NowNs();
    while (true) {
      for (int i = 0; i < kPollsPerLook; ++i) {
        if (Arrived()) return;
      }
      if (*static_cast<const volatile uint32_t*>(&links_.words->abort) != 0) {
        return;
      }
      if (NowNs() - start > links_.patience_ns) __trap();
    }
  }
  __device__ __forceinline__ static uint64_t NowNs() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }

  const RankLinks& links_;
  uint32_t call_;
};

}  // namespace baton::cuda
