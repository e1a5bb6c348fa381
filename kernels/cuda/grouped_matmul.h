// SPDX-License-Identifier: Apache-2.0
// out[slot] = x[row of the slot] W^T with W of the slot's expert, which a
// kernel ahead may have just chosen: slots are sorted by expert on the device.
//
// Every product has the bits that SkinnyMatmul gives it, for prompts too: rows
// of one expert are multiplied up to 32 at a time by its kernel. Where the copy
// engine does not suit, by a plain kernel of that one's order.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace baton::cuda {

inline constexpr int64_t kMaxExperts = 1024;

// The experts' matrices [n, k] as the kernels see them: arrays on the device.
struct GroupedWeights {
  const CUtensorMap* maps;      // [experts]; unused by the plain kernel
  const void* const* pointers;  // [experts], bf16, row stride ldw
  int64_t experts, n, k, ldw;
  int leaves;  // as SkinnyWeight's
  bool plain;
};

struct GroupedArgs {
  const void* x;           // bf16 [rows, k]
  int64_t rows;            // slots, or slots / top
  int64_t ldx;             // elements
  const int32_t* experts;  // [tokens, top], row stride ld_experts; device
  int64_t tokens, top, ld_experts;
  void* out;  // bf16 [tokens * top, n]; must not alias x
  int64_t ldo;
  void* scratch;  // GroupedScratchBytes(), 128-byte aligned
};

[[nodiscard]] int64_t GroupedScratchBytes(int64_t slots, int64_t k);

// Zero tokens submit nothing. An expert that does not exist leaves the rows of
// its slots as they are. invalidValue: sizes that do not fit together. May be
// captured, and starts as a programmatic dependent.
[[nodiscard]] cudaError_t GroupedMatmul(const GroupedWeights& weights,
                                        const GroupedArgs& args,
                                        cudaStream_t stream);

}  // namespace baton::cuda
