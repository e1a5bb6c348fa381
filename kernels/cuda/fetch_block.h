// SPDX-License-Identifier: Apache-2.0
// What the host wrote for one visit, fetched by the visit's first kernel: a
// copy ahead of a graph costs the way to a copy engine and back.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace baton::cuda {

struct FetchArgs {
  const void* ring;  // blocks of `bytes` in pinned host memory
  int64_t blocks;    // a power of two
  void* block;       // device
  int64_t bytes;     // a multiple of 16, as are the addresses
  // [2]: runs so far, and how many blocks of this run's grid are done; zero
  // before the first run.
  uint32_t* turns;
};

// Run n fetches block n % blocks. Kernels behind it start when the block is in
// L2: they may read it before they wait for earlier grids. invalidValue: sizes
// that do not fit.
[[nodiscard]] cudaError_t FetchToDevice(const FetchArgs& args,
                                        cudaStream_t stream);

}  // namespace baton::cuda
