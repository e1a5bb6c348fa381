// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "runtime/base/check.h"

namespace baton {

// Up to five sizes, outermost first.
class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) {
    BATON_CHECK(sizes.size() <= kMaxRank);
    for (int64_t size : sizes) sizes_[rank_++] = size;
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int64_t operator[](int i) const { return sizes_[i]; }
  void Append(int64_t size) {
    BATON_CHECK(rank_ < kMaxRank);
    sizes_[rank_++] = size;
  }
  [[nodiscard]] int64_t NumElements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= sizes_[i];
    return n;
  }
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxRank> sizes_ = {};
  int rank_ = 0;
};

// "[2048,256]"
[[nodiscard]] std::string ToString(const Shape& shape);

}  // namespace baton
