// SPDX-License-Identifier: Apache-2.0
// Reads memory as fast as loads go: the ceiling decode speed is measured
// against.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace baton::cuda {

// `data`: `bytes` (a multiple of 64 KB) of device memory, read once; `sink`: 4
// bytes of device memory.
[[nodiscard]] cudaError_t ReadOnce(const void* data, int64_t bytes, void* sink,
                                   cudaStream_t stream);

}  // namespace baton::cuda
