// SPDX-License-Identifier: Apache-2.0
// Building blocks of sampling: the order of logits, weights, and what a block
// does with one row.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/sample.h"

namespace baton::cuda {

inline constexpr int kSampleThreads = 1024;
inline constexpr int kSampleWarps = kSampleThreads / kWarp;
inline constexpr int kStrip = 4096;      // logits of one warp's sum
inline constexpr int kMaxStrips = 64;    // of a row
inline constexpr int kMaxListed = 4096;  // candidates sorted at a time
inline constexpr int kBins = 1024;

// Larger for better logits; 0 for NaN. Both zeros are one.
__device__ __forceinline__ uint32_t KeyOf(float x) {
  if (isnan(x)) return 0;
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float LogitOf(uint32_t key) {
  if (key == 0) return __uint_as_float(0x7fffffffu);
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
// Larger for better tokens: by logit, then by lower id.
__device__ __forceinline__ uint64_t RankOf(float x, int id) {
  return uint64_t{KeyOf(x)} << 32 | static_cast<uint32_t>(~id);
}
__device__ __forceinline__ int IdOf(uint64_t rank) {
  return static_cast<int>(~static_cast<uint32_t>(rank));
}
__device__ __forceinline__ float LogitOfRank(uint64_t rank) {
  return LogitOf(static_cast<uint32_t>(rank >> 32));
}

// A row, its largest logit, and weights relative to it.
struct WeighedRow {
  const float* logits;
  int vocab;
  float largest;
  float factor;  // 1 / temperature

  __device__ __forceinline__ float Logit(int id) const {
    return __ldcg(logits + id);
  }
  __device__ __forceinline__ float Weight(float x) const {
    if (x == largest) return 1.0f;
    const float weight = expf((x - largest) * factor);
    return weight > 0 ? weight : 0.0f;  // a NaN has none
  }
  __device__ __forceinline__ uint64_t Fixed(float x) const {
    return static_cast<uint64_t>(Weight(x) * 0x1p44f);
  }
};

// Calls f(logit, id) for ids first, first + step, ... below end, with several
// loads on their way.
template <typename Function>
__device__ __forceinline__ void ForLogits(const WeighedRow& row, int first,
                                          int end, int step,
                                          const Function& f) {
  constexpr int kLoads = 16;
  for (int i = first; i < end; i += kLoads * step) {
    float x[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int id = i + j * step;
      x[j] = id < end ? row.Logit(id) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int id = i + j * step;
      if (id < end) f(x[j], id);
    }
  }
}

// The number in [0, 1) of a seed and a position: kernels/cpu/philox.h.
__device__ inline double UniformAt(uint64_t seed, int64_t position) {
  const auto p = static_cast<uint64_t>(position);
  uint32_t c[4] = {static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), 0,
                   0};
  uint32_t key[2] = {static_cast<uint32_t>(seed),
                     static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    c[0] = static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0];
    c[1] = static_cast<uint32_t>(b);
    c[2] = static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1];
    c[3] = static_cast<uint32_t>(a);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const uint64_t bits = (uint64_t{c[1]} << 32 | c[0]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}
// A number below total.
__device__ __forceinline__ uint64_t TargetOf(double u, uint64_t total) {
  const auto target = static_cast<uint64_t>(u * static_cast<double>(total));
  return target < total ? target : total - 1;
}

struct SampleShared {
  uint64_t ranks[kMaxListed];
  uint64_t sums[kMaxListed];
  uint32_t bins[kBins];
  uint64_t strips[kMaxStrips];
  uint64_t warps[kSampleWarps];
  uint64_t found;
  int count;
  // What the first kernel found out about the row.
  uint64_t best;   // rank
  double log_sum;  // of e^(logit - largest)
  uint64_t digest;
};

// All functions below: all threads of a block of kSampleThreads, and they end
// with a barrier.

// Sums of four per thread become running sums, of n <= 4 kSampleThreads.
__device__ inline void RunningSums(uint64_t* sums, int n, uint64_t* warps) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  uint64_t own[4];
  uint64_t sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (4 * thread + i < n) sum += sums[4 * thread + i];
    own[i] = sum;
  }
  uint64_t before = sum;
#pragma unroll
  for (int width = 1; width < kWarp; width *= 2) {
    const uint64_t other = __shfl_up_sync(kAllLanes, before, width);
    if (lane >= width) before += other;
  }
  if (lane == kWarp - 1) warps[thread / kWarp] = before;
  before -= sum;
  __syncthreads();
  for (int w = 0; w < thread / kWarp; ++w) before += warps[w];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (4 * thread + i < n) sums[4 * thread + i] = before + own[i];
  }
  __syncthreads();
}

// The index of the first running sum above target, n if there is none.
__device__ inline int FirstAbove(const uint64_t* sums, int n, uint64_t target,
                                 SampleShared& shared) {
  if (threadIdx.x == 0) shared.found = static_cast<uint64_t>(n);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kSampleThreads) {
    if (sums[i] > target && (i == 0 || sums[i - 1] <= target)) {
      shared.found = static_cast<uint64_t>(i);
    }
  }
  __syncthreads();
  const int found = static_cast<int>(shared.found);
  __syncthreads();
  return found;
}

// The sum over the row of weight(logit, id), and in shared.strips its running
// sums by strips of kStrip ids.
template <typename Weight>
__device__ inline uint64_t SumStrips(const WeighedRow& row,
                                     SampleShared& shared,
                                     const Weight& weight) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int strips = (row.vocab + kStrip - 1) / kStrip;
  for (int strip = static_cast<int>(threadIdx.x) / kWarp; strip < strips;
       strip += kSampleWarps) {
    const int end = min((strip + 1) * kStrip, row.vocab);
    uint64_t sum = 0;
    ForLogits(row, strip * kStrip + lane, end, kWarp,
              [&](float x, int id) { sum += weight(x, id); });
    sum = WarpSum(sum);
    if (lane == 0) shared.strips[strip] = sum;
  }
  __syncthreads();
  RunningSums(shared.strips, strips, shared.warps);
  return shared.strips[strips - 1];
}

// After SumStrips: the first id whose running sum exceeds target, which is
// below the total. Overwrites shared.sums.
template <typename Weight>
__device__ inline int Locate(const WeighedRow& row, SampleShared& shared,
                             uint64_t target, const Weight& weight) {
  const int strips = (row.vocab + kStrip - 1) / kStrip;
  const int strip = FirstAbove(shared.strips, strips, target, shared);
  const int first = strip * kStrip;
  const int count = min(kStrip, row.vocab - first);
  if (strip > 0) target -= shared.strips[strip - 1];
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
    shared.sums[i] = weight(row.Logit(first + i), first + i);
  }
  __syncthreads();
  RunningSums(shared.sums, count, shared.warps);
  return first + FirstAbove(shared.sums, count, target, shared);
}

// Sorts `size` (a power of two) numbers, largest first.
__device__ inline void SortDescending(uint64_t* x, int size) {
  for (int length = 2; length <= size; length *= 2) {
    for (int step = length / 2; step > 0; step /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < size / 2;
           i += kSampleThreads) {
        const int a = 2 * i - (i & (step - 1));
        const int b = a + step;
        const bool is_down = (a & length) == 0;
        if ((x[a] < x[b]) == is_down) {
          const uint64_t other = x[a];
          x[a] = x[b];
          x[b] = other;
        }
      }
      __syncthreads();
    }
  }
}
__device__ __forceinline__ int PowerOfTwo(int count) {
  return count <= 1 ? 1 : 1 << (32 - __clz(count - 1));
}

}  // namespace baton::cuda
