// SPDX-License-Identifier: Apache-2.0
// What the row, attention and sampling kernels share: programmatic dependent
// launch, loads past L1, bf16, and reductions in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

namespace baton::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ---- Launch ----------------------------------------------------------------

// Of the current device; 0 where there is none.
inline int DeviceAttribute(cudaDeviceAttr which) {
  int device = 0;
  int value = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&value, which, device);
  return value;
}
inline int Multiprocessors() {
  static const int count = [] {
    const int found = DeviceAttribute(cudaDevAttrMultiProcessorCount);
    return found < 1 ? 1 : found;
  }();
  return count;
}
// Whether kernels of this device may start before the one ahead has ended.
inline bool HasDependentLaunch() {
  static const bool has =
      DeviceAttribute(cudaDevAttrComputeCapabilityMajor) >= 9;
  return has;
}

// Lets blocks of the kernel have so much dynamic shared memory on the current
// device. What they may have never shrinks: another thread may be about to
// launch the kernel with more.
inline cudaError_t AllowShared(const void* kernel, size_t bytes) {
  static std::mutex mutex;
  static auto* const allowed =
      new std::map<std::pair<const void*, int>, size_t>;
  int device = 0;
  (void)cudaGetDevice(&device);
  const std::lock_guard lock(mutex);
  size_t& most = (*allowed)[{kernel, device}];
  if (bytes <= most) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes));
  if (error == cudaSuccess) most = bytes;
  return error;
}

// Launches as a programmatic dependent of the kernel before it in the stream.
// Every thread of the kernel must call AwaitPreviousGrids, itself or through
// EnterKernel, before it touches what other kernels write.
// `cluster`: blocks of a cluster, which divide the grid; 1 before sm_90.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchClusters(void (*kernel)(Parameters...), dim3 grid,
                           int cluster, int threads, size_t shared_bytes,
                           cudaStream_t stream, const Arguments&... arguments) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error =
        AllowShared(reinterpret_cast<const void*>(kernel), shared_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !HasDependentLaunch() ? 0 : cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, int threads,
                   size_t shared_bytes, cudaStream_t stream,
                   const Arguments&... arguments) {
  return LaunchClusters(kernel, grid, 1, threads, shared_bytes, stream,
                        arguments...);
}

[[nodiscard]] constexpr int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
// Of one of n in a mean.
[[nodiscard]] constexpr float ShareOf(int64_t n) {
  return 1.0f / static_cast<float>(n);
}
inline unsigned Blocks(int64_t count) { return static_cast<unsigned>(count); }
inline bool IsAligned(const void* p, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

#ifdef __CUDACC__

// Lets the next grid start, so that its launch overlaps this one.
__device__ __forceinline__ void AllowNextGrid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits for the grids before this one. Memory they write may be read after it,
// past L1 only: its lines can be older.
__device__ __forceinline__ void AwaitPreviousGrids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void EnterKernel() {
  AllowNextGrid();
  AwaitPreviousGrids();
}

// A value that compilers do not see through: they would compute what is cheap
// again where it is used, behind the wait, where each step counts. (ptxas still
// may, and moves what it likes; the machine code tells.)
__device__ __forceinline__ bool Kept(bool x) {
  int word = x ? 1 : 0;
  asm volatile("" : "+r"(word));
  return word != 0;
}
__device__ __forceinline__ int Kept(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
__device__ __forceinline__ uint32_t Kept(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}
template <typename T>  // of global memory
__device__ __forceinline__ T* Kept(T* x) {
  asm volatile("" : "+l"(x));
  __builtin_assume(__isGlobal(x));
  return x;
}

// ---- Memory ----------------------------------------------------------------

// Loads past L1; volatile, so that none moves before AwaitPreviousGrids.
__device__ __forceinline__ uint4 Load16(const void* p) {
  return __ldcg(static_cast<const uint4*>(p));
}
__device__ __forceinline__ uint2 Load8(const void* p) {
  return __ldcg(static_cast<const uint2*>(p));
}
__device__ __forceinline__ uint32_t Load4(const void* p) {
  return __ldcg(static_cast<const uint32_t*>(p));
}
__device__ __forceinline__ uint16_t Load2(const void* p) {
  return __ldcg(static_cast<const uint16_t*>(p));
}
__device__ __forceinline__ int32_t LoadInt(const int32_t* p) {
  return __ldcg(p);
}

__device__ __forceinline__ uint32_t SharedOffset(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- bf16 ------------------------------------------------------------------

__device__ __forceinline__ float FromBf16(uint32_t bits) {
  return __uint_as_float(bits << 16);
}
__device__ __forceinline__ float LowOf(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float HighOf(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
// Rounds to nearest even; `low` goes to the lower half.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ uint16_t ToBf16(float x) {
  return static_cast<uint16_t>(PackBf16(x, 0.0f));
}
__device__ __forceinline__ float RoundBf16(float x) {
  return FromBf16(ToBf16(x));
}

// Eight bf16 of a row from element `at` of n: whole vectors where the row
// allows it, the same values one by one where not. Past the end: zeros.
template <bool kVectors>
__device__ __forceinline__ uint4 LoadEight(const uint16_t* row, int64_t at,
                                           int64_t n) {
  if constexpr (kVectors) {
    return at < n ? Load16(row + at) : uint4{0, 0, 0, 0};
  } else {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t low = at + 2 * i;
      words[i] = low < n ? Load2(row + low) : 0;
      if (low + 1 < n) words[i] |= uint32_t{Load2(row + low + 1)} << 16;
    }
    return {words[0], words[1], words[2], words[3]};
  }
}
template <bool kVectors>
__device__ __forceinline__ void StoreEight(uint16_t* row, int64_t at, int64_t n,
                                           uint4 value) {
  if constexpr (kVectors) {
    if (at < n) *reinterpret_cast<uint4*>(row + at) = value;
  } else {
    const uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t low = at + 2 * i;
      if (low < n) row[low] = static_cast<uint16_t>(words[i]);
      if (low + 1 < n) row[low + 1] = static_cast<uint16_t>(words[i] >> 16);
    }
  }
}
__device__ __forceinline__ void Unpack(uint4 v, float (&x)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = LowOf(words[i]);
    x[2 * i + 1] = HighOf(words[i]);
  }
}
__device__ __forceinline__ uint4 Pack(const float (&x)[8]) {
  return {PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]),
          PackBf16(x[6], x[7])};
}

// ---- Reductions: every lane gets the result, always by the same tree --------

template <typename T>
__device__ __forceinline__ T WarpSum(T x) {
#pragma unroll
  for (int width = kWarp / 2; width > 0; width /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, width);
  }
  return x;
}
template <typename T>
__device__ __forceinline__ T WarpMax(T x) {
#pragma unroll
  for (int width = kWarp / 2; width > 0; width /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, x, width);
    x = other > x ? other : x;
  }
  return x;
}

// A warp: counts[i + 1] = what [0, i] have in all, from what each has.
__device__ __forceinline__ void AddUp(int n, int* counts) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int before = 0;
  for (int first = 0; first < n; first += kWarp) {
    const int i = first + lane;
    int sum = i < n ? counts[i + 1] : 0;
#pragma unroll
    for (int width = 1; width < kWarp; width *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, width);
      if (lane >= width) sum += other;
    }
    if (i < n) counts[i + 1] = before + sum;
    before += __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  if (lane == 0) counts[0] = 0;
}

// Sum over a block of whole warps, warps added in order. `scratch` holds one
// value per warp, of as many as there can be: all of them may be read. Ends
// with no barrier, so use another scratch next time or put one between.
template <int kMostWarps, typename T>
__device__ __forceinline__ T BlockSum(T x, T (&scratch)[kMostWarps]) {
  x = WarpSum(x);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  T sum = scratch[0];
#pragma unroll  // so that no load waits for a sum
  for (unsigned warp = 1; warp < kMostWarps; ++warp) {
    if (warp < blockDim.x / kWarp) sum += scratch[warp];
  }
  return sum;
}
template <int kMostWarps, typename T>
__device__ __forceinline__ T BlockMax(T x, T (&scratch)[kMostWarps]) {
  x = WarpMax(x);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  T best = scratch[0];
#pragma unroll  // as above
  for (unsigned warp = 1; warp < kMostWarps; ++warp) {
    if (warp < blockDim.x / kWarp) {
      best = scratch[warp] > best ? scratch[warp] : best;
    }
  }
  return best;
}

#endif  // __CUDACC__

}  // namespace baton::cuda
