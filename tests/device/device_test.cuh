// SPDX-License-Identifier: Apache-2.0
// What the programs for a device machine share: memory, random numbers that
// host and device agree on, comparison of bits, time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

namespace baton::test {

#define CHECK_CUDA(expression)                                        \
  do {                                                                \
    const cudaError_t error_ = (expression);                          \
    if (error_ != cudaSuccess) {                                      \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #expression, \
                  cudaGetErrorString(error_));                        \
      std::exit(2);                                                   \
    }                                                                 \
  } while (false)
#define CHECK_CUBLAS(expression)                                             \
  do {                                                                       \
    const cublasStatus_t status_ = (expression);                             \
    if (status_ != CUBLAS_STATUS_SUCCESS) {                                  \
      std::printf("%s:%d: %s: cublas %d\n", __FILE__, __LINE__, #expression, \
                  static_cast<int>(status_));                                \
      std::exit(2);                                                          \
    }                                                                        \
  } while (false)

// Device memory. Filled with ones (NaN in every float type) when made.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t size) : size_(size) {
    CHECK_CUDA(cudaMalloc(&data_, Bytes()));
    Poison();
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void Poison() { CHECK_CUDA(cudaMemset(data_, 0xff, Bytes())); }
  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] int64_t size() const { return size_; }
  [[nodiscard]] std::vector<T> Download() const {
    std::vector<T> host(static_cast<size_t>(size_));
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaMemcpy(host.data(), data_, Bytes(), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  [[nodiscard]] size_t Bytes() const {
    return static_cast<size_t>(size_) * sizeof(T);
  }
  T* data_ = nullptr;
  int64_t size_;
};

// Element `index` of the random sequence `seed`: a bf16 in (-1, 1).
__host__ __device__ inline float RandomAt(uint32_t seed, int64_t index) {
  uint64_t z = static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u + seed;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  // 8 bits of magnitude and a sign: exact in bf16.
  const float magnitude = static_cast<float>((z & 255) + 0.5f) / 256.0f;
  const float value = (z & 256) != 0 ? -magnitude : magnitude;
  return __bfloat162float(__float2bfloat16_rn(value));
}

// matrix [rows, columns], row stride ld: element (r, c) is number
// r * columns + c of the sequence.
static __global__ void FillKernel(__nv_bfloat16* matrix, int64_t rows,
                                  int64_t columns, int64_t ld, uint32_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows * columns; i += step) {
    matrix[i / columns * ld + i % columns] =
        __float2bfloat16_rn(RandomAt(seed, i));
  }
}
inline void FillRandom(__nv_bfloat16* matrix, int64_t rows, int64_t columns,
                       int64_t ld, uint32_t seed) {
  FillKernel<<<2048, 256>>>(matrix, rows, columns, ld, seed);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
}

template <typename T>
__global__ void DifferKernel(const T* a, const T* b, int64_t rows,
                             int64_t columns, int64_t ld,
                             unsigned long long* count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  unsigned long long mine = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows * columns; i += step) {
    const int64_t at = i / columns * ld + i % columns;
    mine += a[at] != b[at];
  }
  if (mine != 0) atomicAdd(count, mine);
}
// Elements of two [rows, columns] of row stride ld that differ in a bit; T is
// an unsigned integer.
template <typename T>
int64_t CountDifferent(const void* a, const void* b, int64_t rows,
                       int64_t columns, int64_t ld) {
  const DeviceArray<unsigned long long> count(1);
  CHECK_CUDA(cudaMemset(count.data(), 0, sizeof(unsigned long long)));
  CHECK_CUDA(cudaDeviceSynchronize());
  DifferKernel<T><<<1024, 256>>>(static_cast<const T*>(a),
                                 static_cast<const T*>(b), rows, columns, ld,
                                 count.data());
  CHECK_CUDA(cudaGetLastError());
  return static_cast<int64_t>(count.Download()[0]);
}

// The median time in ms of `work`, which submits to the stream.
inline double MedianMs(cudaStream_t stream, int runs,
                       const std::function<void()>& work) {
  cudaEvent_t start = nullptr, stop = nullptr;
  CHECK_CUDA(cudaEventCreate(&start));
  CHECK_CUDA(cudaEventCreate(&stop));
  work();
  std::vector<float> times;
  for (int i = 0; i < runs; ++i) {
    float ms = 0;
    CHECK_CUDA(cudaEventRecord(start, stream));
    work();
    CHECK_CUDA(cudaEventRecord(stop, stream));
    CHECK_CUDA(cudaEventSynchronize(stop));
    CHECK_CUDA(cudaEventElapsedTime(&ms, start, stop));
    times.push_back(ms);
  }
  CHECK_CUDA(cudaEventDestroy(start));
  CHECK_CUDA(cudaEventDestroy(stop));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// `work` captured into a graph.
inline cudaGraphExec_t Capture(cudaStream_t stream,
                               const std::function<void()>& work) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  work();
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&made, graph, 0));
  CHECK_CUDA(cudaGraphDestroy(graph));
  return made;
}

}  // namespace baton::test
