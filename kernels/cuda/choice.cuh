// SPDX-License-Identifier: Apache-2.0
// The best of a row's values, one after the other, by a warp.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/experts.h"

namespace baton::cuda {

// Experts that a lane of a router's warp holds: of few, and of the most.
inline constexpr int kFewHeld = 8;
inline constexpr int kMostHeld = static_cast<int>(kMaxRoutedExperts) / kWarp;

struct Choice {
  float p;
  int index;
};

// Takes the largest value that is left, of equal ones the one with the lowest
// index; NaNs come last. A lane looks through its values once, and again when
// one of them was taken.
template <int kHeld>
class WarpChoices {
 public:
  // Lane l has value[i] of index l + 32 i, of `count`; bit i of `taken`: not to
  // be chosen.
  __device__ __forceinline__ WarpChoices(const float (&value)[kHeld], int count,
                                         uint32_t taken)
      : value_(value), lane_(static_cast<int>(threadIdx.x) % kWarp) {
    static_assert(kHeld <= 32);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const bool is_left = lane_ + i * kWarp < count && (taken >> i & 1) == 0;
      key_[i] = is_left ? KeyOf(value[i]) : kTaken;
    }
    Look();
  }

  // All lanes. There is one left.
  __device__ __forceinline__ Choice Take() {
    constexpr unsigned kNone = kWarp * kHeld;
    const uint32_t best = __reduce_max_sync(kAllLanes, best_);
    const unsigned index = __reduce_min_sync(
        kAllLanes,
        best_ == best ? static_cast<unsigned>(lane_ + at_ * kWarp) : kNone);
    const int owner = static_cast<int>(index) % kWarp;
    const Choice choice = {__shfl_sync(kAllLanes, p_, owner),
                           static_cast<int>(index)};
    if (lane_ == owner) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (i == at_) key_[i] = kTaken;
      }
      Look();
    }
    return choice;
  }

 private:
  static constexpr uint32_t kTaken = 0;
  static constexpr uint32_t kNan = 1;

  // Ordered as numbers are, -0 like 0; above kNan.
  __device__ __forceinline__ static uint32_t KeyOf(float x) {
    if (isnan(x)) return kNan;
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return bits ^ (bits >> 31 != 0 ? ~0u : 1u << 31);
  }
  __device__ __forceinline__ void Look() {
    best_ = kTaken;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (key_[i] <= best_) continue;
      best_ = key_[i];
      at_ = i;
      p_ = value_[i];
    }
  }

  const float (&value_)[kHeld];
  int lane_;
  uint32_t key_[kHeld];
  uint32_t best_;  // of the lane's keys
  int at_ = 0;     // where that is
  float p_ = 0;    // and its value
};

}  // namespace baton::cuda
