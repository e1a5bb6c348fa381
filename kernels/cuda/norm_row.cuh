// SPDX-License-Identifier: Apache-2.0
// RMSNorm of one row by a block of NormThreads(n) threads, of which thread t
// keeps elements [8 (t + v threads), + 8). The order of the sum depends on the
// size alone, whoever calls.
#pragma once

#include <algorithm>

#include "kernels/cuda/row_eights.cuh"

namespace baton::cuda {

inline constexpr int kMaxNormThreads = 512;
using NormScratch = float[kMaxNormThreads / kWarp];  // of a block

[[nodiscard]] inline int NormThreads(int64_t n) {
  return static_cast<int>(std::min<int64_t>(
      CeilDiv(CeilDiv(n, 8), kWarp) * kWarp, int64_t{kMaxNormThreads}));
}

#ifdef __CUDACC__

// A row of n <= 8 kHeld threads elements, held as T.
template <typename T, bool kVectors, int kHeld>
class NormRow {
 public:
  // May come before the wait for earlier grids: weights are older. `share`:
  // ShareOf(n).
  __device__ __forceinline__ NormRow(const void* weight, int64_t n, float share)
      : weight_(static_cast<const uint16_t*>(weight)), n_(n), share_(share) {
    if constexpr (kEarly) {
#pragma unroll
      for (int v = 0; v < kHeld; ++v) {
        scale_[v] = LoadEight<kVectors>(weight_, At(v), n_);
      }
    }
  }

  __device__ __forceinline__ void Load(const T* row) {
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      held_[v] = LoadEight<kVectors>(row, At(v), n_);
    }
  }
  // row = held = cast(held + update); update(v, at, y) puts elements [at, at +
  // 8) into y, the thread's `v`th such.
  template <typename Update>
  __device__ __forceinline__ void Add(T* row, const Update& update) {
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      float x[8];
      float y[8];
      Unpack(held_[v], x);
      update(v, At(v), y);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] += y[i];
      held_[v] = PackTo<T>(x);
      if constexpr (!kEarly) StoreEight<kVectors>(row, At(v), n_, held_[v]);
    }
    if constexpr (kEarly) {  // no load waits for a store
#pragma unroll
      for (int v = 0; v < kHeld; ++v) {
        StoreEight<kVectors>(row, At(v), n_, held_[v]);
      }
    }
  }
  // out = cast(norm(held)). `scratch`: as BlockSum.
  __device__ __forceinline__ void Store(float eps, uint16_t* out,
                                        NormScratch& scratch) {
    const float factor = Factor(eps, scratch);
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      StoreEight<kVectors>(out, At(v), n_, Normed(v, factor));
    }
  }
  // row = cast(row + cast(norm(held))), held being bf16.
  template <typename R>
  __device__ __forceinline__ void AddTo(float eps, R* row,
                                        NormScratch& scratch) {
    Eight<R> sum[kHeld];
    if constexpr (kEarly) {
#pragma unroll
      for (int v = 0; v < kHeld; ++v) {
        sum[v] = LoadEight<kVectors>(row, At(v), n_);
        // Compilers load this last unless the squares need it, too: they do not
        // know that the mask is zero.
        held_[v].x |= AnyWord(sum[v]) & static_cast<uint32_t>(n_ >> 63);
      }
    }
    const float factor = Factor(eps, scratch);
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      if constexpr (!kEarly) sum[v] = LoadEight<kVectors>(row, At(v), n_);
      float x[8];
      float y[8];
      Unpack(sum[v], x);
      Unpack(Normed(v, factor), y);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] += y[i];
      StoreEight<kVectors>(row, At(v), n_, PackTo<R>(x));
    }
  }

  // Where the thread's `v`th eight elements begin.
  __device__ __forceinline__ static int64_t At(int v) {
    return 8 * (static_cast<int64_t>(threadIdx.x) +
                v * static_cast<int64_t>(blockDim.x));
  }

 private:
  // Whether what is used last is loaded first; else no registers are left.
  static constexpr bool kEarly = kHeld <= 2;

  __device__ __forceinline__ float Factor(float eps,
                                          NormScratch& scratch) const {
    float sum = 0;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      float x[8];
      Unpack(held_[v], x);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(x[i], x[i], sum);
    }
    return rsqrtf(fmaf(BlockSum(sum, scratch), share_, eps));
  }
  __device__ __forceinline__ uint4 Normed(int v, float factor) const {
    float x[8];
    float w[8];
    Unpack(held_[v], x);
    Unpack(kEarly ? scale_[v] : LoadEight<kVectors>(weight_, At(v), n_), w);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = w[i] * (x[i] * factor);
    return Pack(x);
  }

  const uint16_t* weight_;
  int64_t n_;
  float share_;
  uint4 scale_[kHeld];
  Eight<T> held_[kHeld];
};

#endif  // __CUDACC__

}  // namespace baton::cuda
