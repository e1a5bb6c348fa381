// SPDX-License-Identifier: Apache-2.0
// Sums and moves among two ranks. Both submit the same calls in the same order,
// each on its own stream; all may be captured. Zero rows submit nothing.
// Strides are in elements.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/rank_links.h"
#include "kernels/cuda/row_kernels.h"

namespace baton::cuda {

// out = cast(mine + the other rank's), one rounding.
struct AllReduceArgs {
  const float* partial;  // [rows, size], contiguous
  void* out;             // [rows, size], bf16 or f32; may be partial if f32
  int64_t out_stride;
  bool out_f32;
  int64_t rows, size;
};
// invalidValue: size > kMaxNormSize.
[[nodiscard]] cudaError_t AllReduceRows(const RankLinks& links,
                                        const AllReduceArgs& args,
                                        cudaStream_t stream);

// The bits of AllReduceRows to bf16, then AddRmsNormRows, in one kernel.
struct AllReduceNormArgs {
  const float* partial;  // [rows, hidden], contiguous
  AddRmsNormArgs norm;   // bf16, without an update
};
// invalidValue: hidden > kMaxNormSize.
[[nodiscard]] cudaError_t AllReduceAddRmsNormRows(const RankLinks& links,
                                                  const AllReduceNormArgs& args,
                                                  cudaStream_t stream);

// out = both ranks' x beside each other, in the order of ranks.
struct AllGatherArgs {
  const std::byte* x;  // [rows, row_bytes], contiguous
  std::byte* out;      // [rows, 2 * row_bytes], or null
  int64_t out_stride;  // bytes
  int64_t rows, row_bytes;
  int rank;
};
// invalidValue: row_bytes is odd, or more than a call moves (8 MiB); rows of
// whole 16 bytes are not aligned to 16.
[[nodiscard]] cudaError_t AllGatherRows(const RankLinks& links,
                                        const AllGatherArgs& args,
                                        cudaStream_t stream);

}  // namespace baton::cuda
