// SPDX-License-Identifier: Apache-2.0
// The order in which the reference adds. For reference.cc.
#pragma once

#include <cstdint>

namespace baton::cpu {
namespace {

// Sums run in this many lanes, lane i over i, i + 16, ..., and the lanes are
// added as a balanced tree: (i) + (i + 8), then + 4, + 2, + 1.
constexpr int kSumLanes = 16;

template <typename Float>
Float AddLanes(Float (&lanes)[kSumLanes]) {
  for (int width = kSumLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// The sum of squares.
template <typename T>
float SumSquares(const T* x, int64_t n) {
  float lanes[kSumLanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    const float v = static_cast<float>(x[i]);
    lanes[i % kSumLanes] += v * v;
  }
  return AddLanes(lanes);
}

}  // namespace
}  // namespace baton::cpu
