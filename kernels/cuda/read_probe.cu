// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/read_probe.h"

namespace baton::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;  // in flight per thread, 16 bytes each
constexpr int64_t kTile = int64_t{kThreads} * kLoads * 16;

__global__ void __launch_bounds__(kThreads)
    ReadKernel(const uint4* __restrict__ data, int64_t tiles, unsigned* sink) {
  unsigned sum = 0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const uint4* from = data + tile * (kTile / 16) + threadIdx.x;
    uint4 value[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(value[i].x), "=r"(value[i].y), "=r"(value[i].z),
                     "=r"(value[i].w)
                   : "l"(from + i * kThreads));
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      sum += value[i].x ^ value[i].y ^ value[i].z ^ value[i].w;
    }
  }
  // Never true for what the probe reads; the loads stay.
  if (sum == 0x9e3779b9u) *sink = sum;
}

}  // namespace

cudaError_t ReadOnce(const void* data, int64_t bytes, void* sink,
                     cudaStream_t stream) {
  static_assert(kTile == 65536);
  if (bytes % kTile != 0) return cudaErrorInvalidValue;
  int device = 0;
  int processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount,
                                 device);
  if (error != cudaSuccess) return error;
  ReadKernel<<<static_cast<unsigned>(processors * 4), kThreads, 0, stream>>>(
      static_cast<const uint4*>(data), bytes / kTile,
      static_cast<unsigned*>(sink));
  return cudaGetLastError();
}

}  // namespace baton::cuda
