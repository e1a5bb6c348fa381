// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "runtime/transport/cuda_put.h"

namespace baton {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;  // 16-byte loads in flight per thread
constexpr int kMaxBlocks = 128;
// Between looks at the clock and at the host's word, which is far away.
constexpr int kPollsPerLook = 64;

__device__ uint64_t LoadAcquire(const uint64_t* at) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
               : "=l"(value)
               : "l"(at)
               : "memory");
  return value;
}

__device__ void StoreRelease(uint64_t* at, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value)
               : "memory");
}

__device__ uint64_t NowNs() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void __launch_bounds__(kThreads) PutKernel(CudaPut put) {
  const int64_t vectors = put.bytes / static_cast<int64_t>(sizeof(uint4));
  const auto* from = reinterpret_cast<const uint4*>(put.from);
  auto* to = reinterpret_cast<uint4*>(put.to);
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kUnroll - 1) * stride < vectors; i += kUnroll * stride) {
    uint4 v[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) v[k] = from[i + k * stride];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) to[i + k * stride] = v[k];
  }
  for (; i < vectors; i += stride) to[i] = from[i];
  const int64_t tail = vectors * static_cast<int64_t>(sizeof(uint4));
  if (blockIdx.x == 0 && threadIdx.x < put.bytes - tail) {
    put.to[tail + threadIdx.x] = put.from[tail + threadIdx.x];
  }

  __syncthreads();
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    // The last block to come here raises the flag, and leaves the count at 0.
    __threadfence_system();
    if (atomicInc(&put.words->blocks_done, gridDim.x - 1) != gridDim.x - 1) {
      return;
    }
  }
  __threadfence_system();
  if (put.words->poisoned == 0) StoreRelease(put.flag, put.value);
}

__global__ void WaitKernel(CudaWait wait) {
  const auto limit = static_cast<uint64_t>(wait.limit_ns);
  const uint64_t start = NowNs();
  uint32_t failure = CudaWaitWords::kNone;
  while (failure == CudaWaitWords::kNone) {
    for (int i = 0; i < kPollsPerLook; ++i) {
      if (LoadAcquire(wait.flag) == wait.value) return;
    }
    if (*static_cast<volatile uint32_t*>(&wait.wait->abort) != 0) {
      failure = CudaWaitWords::kAborted;
    } else if (NowNs() - start > limit) {
      failure = CudaWaitWords::kDeadline;
    }
  }
  wait.words->poisoned = 1;
  if (wait.wait->failure != CudaWaitWords::kNone) return;
  wait.wait->step = wait.step;
  __threadfence_system();
  *static_cast<volatile uint32_t*>(&wait.wait->failure) = failure;
}

int BlocksFor(int64_t bytes) {
  constexpr int64_t kPerBlock = int64_t{kThreads} * sizeof(uint4);
  const int64_t blocks = (bytes + kPerBlock - 1) / kPerBlock;
  if (blocks <= 1) return 1;
  return static_cast<int>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

}  // namespace

int LaunchPut(const CudaPut& put, CUstream_st* stream) {
  PutKernel<<<BlocksFor(put.bytes), kThreads, 0, stream>>>(put);
  return cudaGetLastError();
}

int LaunchWait(const CudaWait& wait, CUstream_st* stream) {
  WaitKernel<<<1, 1, 0, stream>>>(wait);
  return cudaGetLastError();
}

int SetPoisoned(CudaPutWords* words, CUstream_st* stream) {
  return cudaMemsetAsync(&words->poisoned, 1, sizeof(words->poisoned), stream);
}

int LoadPutKernels() {
  cudaFuncAttributes attributes;
  const cudaError_t put = cudaFuncGetAttributes(&attributes, PutKernel);
  if (put != cudaSuccess) return put;
  return cudaFuncGetAttributes(&attributes, WaitKernel);
}

}  // namespace baton
