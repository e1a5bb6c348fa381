// SPDX-License-Identifier: Apache-2.0
// Matrix products of a warpgroup, 128 threads in four whole warps, whose
// operands the tensor cores read from shared memory by themselves. sm_90a
// alone.
//
// An operand is rows of 64 bf16 of k, 128 bytes each, swizzled as the copy
// engine does it (tma.cuh), and begins at a multiple of 1024 bytes.
//
// Sums [64, 256] fp32: of lane (g = lane / 4, q = lane % 4) of warp w, elements
// 4j to 4j + 3 are (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1) with r = 16w
// + g and c = 8j + 2q.
#pragma once

#include <cstdint>

#include "kernels/cuda/common.cuh"

namespace baton::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

inline constexpr int kGroupSums = 128;  // of a thread

// An operand as the tensor cores are told of it. 16 of k further on it is the
// same plus 2.
__device__ __forceinline__ uint64_t OperandAt(uint32_t address) {
  constexpr uint64_t kSwizzled128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{8 * 128 / 16} << 32;
  constexpr uint64_t kUnused = uint64_t{1} << 16;  // stride of swizzled k
  return kSwizzled128 | kEightRows | kUnused | ((address & 0x3ffff) >> 4);
}

// Before the first product that uses registers which others have written.
__device__ __forceinline__ void GroupMmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Closes a batch of products.
__device__ __forceinline__ void GroupMmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for all batches but the last kPending.
template <int kPending>
__device__ __forceinline__ void GroupMmaAwait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from reading sums ahead of a wait for them.
__device__ __forceinline__ void HoldSums(float (&sums)[kGroupSums]) {
#pragma unroll
  for (int i = 0; i < kGroupSums; ++i)
    asm volatile("" : "+f"(sums[i])::"memory");
}

// Starts sums = x w^T of 16 k, or += where `add` is not 0. x: 64 rows, w: 256.
__device__ __forceinline__ void GroupMma(float (&sums)[kGroupSums], uint64_t x,
                                         uint64_t w, int add) {
// clang-format off
#define BATON_SUMS(i)                                                       \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]),   \
  "+f"(sums[i + 4]), "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7,"
      " %8, %9, %10, %11, %12, %13, %14, %15,"
      " %16, %17, %18, %19, %20, %21, %22, %23,"
      " %24, %25, %26, %27, %28, %29, %30, %31,"
      " %32, %33, %34, %35, %36, %37, %38, %39,"
      " %40, %41, %42, %43, %44, %45, %46, %47,"
      " %48, %49, %50, %51, %52, %53, %54, %55,"
      " %56, %57, %58, %59, %60, %61, %62, %63,"
      " %64, %65, %66, %67, %68, %69, %70, %71,"
      " %72, %73, %74, %75, %76, %77, %78, %79,"
      " %80, %81, %82, %83, %84, %85, %86, %87,"
      " %88, %89, %90, %91, %92, %93, %94, %95,"
      " %96, %97, %98, %99, %100, %101, %102, %103,"
      " %104, %105, %106, %107, %108, %109, %110, %111,"
      " %112, %113, %114, %115, %116, %117, %118, %119,"
      " %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, add, 1, 1, 0, 0;\n"
      "}\n"
      : BATON_SUMS(0), BATON_SUMS(8), BATON_SUMS(16), BATON_SUMS(24),
        BATON_SUMS(32), BATON_SUMS(40), BATON_SUMS(48), BATON_SUMS(56),
        BATON_SUMS(64), BATON_SUMS(72), BATON_SUMS(80), BATON_SUMS(88),
        BATON_SUMS(96), BATON_SUMS(104), BATON_SUMS(112), BATON_SUMS(120)
      : "l"(x), "l"(w), "r"(add));
#undef BATON_SUMS
  // clang-format on
}

// A warpgroup hands registers of its threads back, or takes what others have.
template <int kRegisters>
__device__ __forceinline__ void KeepRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// What this thread has written to shared memory can be read by the copy engine
// and the tensor cores once another thread has been told of it.
__device__ __forceinline__ void FenceForEngines() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif

}  // namespace baton::cuda
