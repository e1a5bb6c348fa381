// SPDX-License-Identifier: Apache-2.0
// CUDA as a Device. Only files of kernels/cuda and of the transport include
// this; everybody else sees device.h.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/tensor/device.h"

// CUDA's own names, so that this header needs none of CUDA's.
struct CUstream_st;

namespace baton {

// GPU `ordinal`. Device memory comes in blocks that are kept for later
// allocations of the same size class: a block is free for work that is
// submitted after its Buffer is gone, so all work on a device object's memory
// belongs on one stream (the stage's). Host memory is pinned.
// Unavailable: no such GPU, or no driver.
[[nodiscard]] StatusOr<std::unique_ptr<Device>> NewCudaDevice(int ordinal);
// GPUs of this machine; 0 without a driver.
[[nodiscard]] int CudaDeviceCount();

// The CUDA stream behind a Stream, with its GPU made this thread's current one.
// CHECKs the kind.
[[nodiscard]] CUstream_st* CudaStreamOf(Stream& stream);
[[nodiscard]] int CudaOrdinalOf(Stream& stream);

// What kernels keep beside a stream; goes with it.
class CudaAttachment {
 public:
  virtual ~CudaAttachment() = default;
};
[[nodiscard]] std::unique_ptr<CudaAttachment>& CudaAttachmentOf(Stream& stream);

// Internal, or Unavailable where the GPU is lost, with the name of what
// failed; OK for success. `error`: a cudaError_t.
[[nodiscard]] Status CudaStatus(int error, std::string_view what);

}  // namespace baton
