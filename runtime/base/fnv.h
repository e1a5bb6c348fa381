// SPDX-License-Identifier: Apache-2.0
// FNV-1a, of 32 or 64 bits: tells accidents apart, not attacks. The same on
// every machine.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace baton {

template <typename T>
class Fnv1a {
 public:
  static_assert(std::is_same_v<T, uint32_t> || std::is_same_v<T, uint64_t>);

  void Add(std::string_view bytes) {
    constexpr T kPrime =
        static_cast<T>(sizeof(T) == 4 ? 16777619u : 1099511628211u);
    for (char c : bytes) hash_ = (hash_ ^ static_cast<uint8_t>(c)) * kPrime;
  }
  [[nodiscard]] T value() const { return hash_; }

 private:
  T hash_ =
      static_cast<T>(sizeof(T) == 4 ? 2166136261u : 14695981039346656037u);
};

}  // namespace baton
