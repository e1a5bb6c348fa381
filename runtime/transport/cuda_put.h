// SPDX-License-Identifier: Apache-2.0
// The kernels of the device plane. Each function submits one to `stream`, whose
// GPU is the current one, and returns a cudaError_t.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace baton {

// Of one stage, in its GPU's memory, zero at the start. Its stream's kernels
// use it one after the other.
struct CudaPutWords {
  uint32_t blocks_done = 0;
  // A wait has failed: what the stream computes from then on is not data, and
  // no flag is raised for it.
  uint32_t poisoned = 0;
};

// Of one direction, in pinned host memory that kernels read and write.
struct CudaWaitWords {
  static constexpr uint32_t kNone = 0;
  static constexpr uint32_t kDeadline = 1;
  static constexpr uint32_t kAborted = 2;

  uint32_t abort = 0;    // set by the host: waits end at once
  uint32_t failure = 0;  // of the first wait that failed
  uint64_t step = 0;     // what it waited for
};

struct CudaPut {
  std::byte* to = nullptr;  // 16-byte aligned, of this GPU or a peer's
  const std::byte* from = nullptr;
  int64_t bytes = 0;
  uint64_t* flag = nullptr;  // beside `to`: becomes `value` after the bytes
  uint64_t value = 0;
  CudaPutWords* words = nullptr;
};
[[nodiscard]] int LaunchPut(const CudaPut& put, CUstream_st* stream);

struct CudaWait {
  const uint64_t* flag = nullptr;  // in this GPU's memory
  uint64_t value = 0;
  uint64_t step = 0;
  int64_t limit_ns = 0;
  CudaWaitWords* wait = nullptr;
  CudaPutWords* words = nullptr;
};
// The stream goes on when the flag has the value, the peer is given up, or the
// limit has passed.
[[nodiscard]] int LaunchWait(const CudaWait& wait, CUstream_st* stream);

// Sets words->poisoned.
[[nodiscard]] int SetPoisoned(CudaPutWords* words, CUstream_st* stream);

// Loads the kernels: with CUDA's lazy loading the first launch may wait for
// what runs on the GPU, which may be a wait for that launch.
[[nodiscard]] int LoadPutKernels();

}  // namespace baton
