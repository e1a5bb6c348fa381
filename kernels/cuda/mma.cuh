// SPDX-License-Identifier: Apache-2.0
// Warp-level matrix instructions (sm_80 and later) and what feeds them.
//
// Registers of lane (g = lane / 4, q = lane % 4), two bf16 each, lower k first:
//   A [16, 16]  a0 (g, 2q)  a1 (g + 8, 2q)  a2 (g, 2q + 8)  a3 (g + 8, 2q + 8)
//   B [16, 8]   b0 (k = 2q, n = g)  b1 (k = 2q + 8, n = g)
//   C [16, 8]   fp32: c0, c1 (g, 2q), (g, 2q + 1)  c2, c3 the same of row g + 8
#pragma once

#include <cstdint>

#include "kernels/cuda/common.cuh"

namespace baton::cuda {

// c += a b
__device__ __forceinline__ void Mma(float (&c)[4], const uint32_t (&a)[4],
                                    uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8, and
// gets elements (g, 2q), (g, 2q + 1) of each.
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4],
                                             uint32_t shared_address) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(shared_address)
      : "memory");
}

// The same, each matrix transposed: a lane gets (2q, g), (2q + 1, g).
__device__ __forceinline__ void LoadTransposed(uint32_t (&r)[4],
                                               uint32_t shared_address) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(shared_address)
      : "memory");
}

// Transposes an 8x8 matrix of which each lane holds (g, 2q), (g, 2q + 1).
__device__ __forceinline__ uint32_t Transpose(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
               : "=r"(out)
               : "r"(pair));
  return out;
}

// 2^x to about 2 ulp; 0 for -infinity, exactly 1 for 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Starts a copy of `bytes` (0 to 16) to 16 bytes of shared memory, the rest of
// which become zeros. Past L1.
__device__ __forceinline__ void CopyAsync(uint32_t to, const void* from,
                                          int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// All but the last kPending groups.
template <int kPending>
__device__ __forceinline__ void AwaitGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void AwaitCopies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
// Waits for all committed copies but the last kPending commits.
template <int kPending>
__device__ __forceinline__ void AwaitCopiesBut() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace baton::cuda
