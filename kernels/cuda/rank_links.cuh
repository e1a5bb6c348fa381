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
  const __device__ __forceinline__ std::byte* In() const {
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
      Await([this] { return Arrived(); });
      SetCalls();
    }
    __syncthreads();
  }

  // A quick call in place of the three above: eight elements of the block's
  // row, from element `at`, a multiple of 8.
  __device__ __forceinline__ void SendQuick(int64_t at,
                                            const float (&x)[8]) const {
    uint4* to = QuickSlot(links_.other_quick, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm volatile(
          "st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to + i),
          "r"(__float_as_uint(x[2 * i])), "r"(call_),
          "r"(__float_as_uint(x[2 * i + 1]))
          : "memory");
    }
  }
  __device__ __forceinline__ void ReceiveQuick(int64_t at,
                                               float (&x)[8]) const {
    const uint4* from = QuickSlot(links_.my_quick, at);
    uint4 pairs[4];
    Await([&] {
      bool all = true;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(pairs[i].x), "=r"(pairs[i].y), "=r"(pairs[i].z),
                       "=r"(pairs[i].w)
                     : "l"(from + i)
                     : "memory");
        all = all && pairs[i].y == call_ && pairs[i].w == call_;
      }
      return all;
    });
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(pairs[i].x);
      x[2 * i + 1] = __uint_as_float(pairs[i].z);
    }
  }
  // Ends it.
  __device__ __forceinline__ void FinishQuick() const {
    __syncthreads();  // all have read the count of calls
    if (threadIdx.x == 0) SetCalls();
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
  template <typename HasArrived>
  __device__ __forceinline__ void Await(const HasArrived& has_arrived) const {
    constexpr int kPollsPerLook = 1024;  // at the clock and the host's word
    uint64_t start = 0;
    while (true) {
      for (int i = 0; i < kPollsPerLook; ++i) {
        if (has_arrived()) return;
      }
      if (*static_cast<const volatile uint32_t*>(&links_.words->abort) != 0) {
        return;
      }
      if (start == 0) start = NowNs();
      if (NowNs() - start > links_.patience_ns) __trap();
    }
  }
  __device__ __forceinline__ void SetCalls() const {
    *static_cast<volatile uint32_t*>(links_.calls + blockIdx.x) = call_;
  }
  __device__ __forceinline__ uint4* QuickSlot(std::byte* slots,
                                              int64_t at) const {
    const int64_t slot = static_cast<int64_t>(blockIdx.x) * 2 + call_ % 2;
    return reinterpret_cast<uint4*>(slots + slot * kQuickSlotBytes) + at / 2;
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
