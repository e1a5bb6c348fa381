// SPDX-License-Identifier: Apache-2.0
// out[row, h] = x[row, h] W^T with W of head h, for all heads in one launch.
//
// bf16 operands, fp32 accumulation along k in order, one rounding. The bits of
// an output depend on its row of x and its row of W alone: not on the number of
// rows, nor on the tile that this decides. Zero rows submit nothing. May be
// captured, and starts as a programmatic dependent.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace baton::cuda {

// The heads' matrices [n, k]; the array is on the device.
struct HeadWeights {
  const void* const*
      pointers;  // [heads], bf16, row stride ldw; 16-byte aligned
  int64_t heads, n, k, ldw;
};

struct HeadMatmulArgs {
  const void* x;  // bf16: head h's k columns begin at h * head_stride
  int64_t ldx, head_stride;
  void* out;  // bf16 [rows, heads * n]; must not alias x
  int64_t ldo;
  int64_t rows;
};

// Tensor cores where k is a multiple of 8, n is even and rows are aligned; a
// plain kernel, which claims no speed, where not. invalidValue: more than 65535
// heads.
[[nodiscard]] cudaError_t HeadMatmul(const HeadWeights& weights,
                                     const HeadMatmulArgs& args,
                                     cudaStream_t stream);

}  // namespace baton::cuda
