// SPDX-License-Identifier: Apache-2.0
// Runs over memory in lanes of a vector. Include after one of the vec_*.h. The
// tail of a row goes through the same instructions as the rest, in a padded
// copy.
#pragma once

#include <cstring>

#include "kernels/cpu/math_inl.h"

namespace baton::cpu {
namespace {

constexpr int64_t kLanes = Vec::kLanes;

template <typename T>
F LoadTail(const T* p, int64_t n) {
  if (n == kLanes) return Vec::Load(p);
  T padded[kLanes];
  std::memset(static_cast<void*>(padded), 0, sizeof(padded));
  std::memcpy(static_cast<void*>(padded), p,
              static_cast<size_t>(n) * sizeof(T));
  return Vec::Load(padded);
}

template <typename T>
void StoreTail(T* p, F v, int64_t n) {
  if (n == kLanes) return Vec::Store(p, v);
  T padded[kLanes];
  Vec::Store(padded, v);
  std::memcpy(static_cast<void*>(p), padded,
              static_cast<size_t>(n) * sizeof(T));
}

// out[i] = f(a[i], b[i]).
template <typename A, typename B, typename Out, typename Function>
void Map(const A* a, const B* b, Out* out, int64_t n, const Function& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Vec::Store(out + i, f(Vec::Load(a + i), Vec::Load(b + i)));
  }
  if (i < n) {
    StoreTail(out + i, f(LoadTail(a + i, n - i), LoadTail(b + i, n - i)),
              n - i);
  }
}

// Calls f(vector, lane group) over n values, the last one padded with zeros.
// Lane groups make 16 lanes of whatever the vector has.
template <typename T, typename Function>
void ForEach(const T* x, int64_t n, const Function& f) {
  constexpr int64_t kGroups = 16 / kLanes;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    f(Vec::Load(x + i), i / kLanes % kGroups);
  }
  if (i < n) f(LoadTail(x + i, n - i), i / kLanes % kGroups);
}

// The sum of squares, in 16 lanes.
template <typename T>
float SumSquares(const T* x, int64_t n) {
  F lanes[16 / kLanes];
  for (F& lane : lanes) lane = Vec::Set(0.0f);
  ForEach(x, n, [&](F v, int64_t group) {
    lanes[group] = Vec::Fma(v, v, lanes[group]);
  });
  F all = lanes[0];
  if constexpr (kLanes == 8) all = Vec::Add(all, lanes[16 / kLanes - 1]);
  return Vec::SumLanes(all);
}

}  // namespace
}  // namespace baton::cpu
