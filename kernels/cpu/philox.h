// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace baton::cpu {

// Philox4x32-10 (Salmon et al., SC 2011): four random words for a counter.
[[nodiscard]] constexpr std::array<uint32_t, 4> Philox(
    std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// A number in [0, 1) for a request's seed and a position: 53 bits of the words
// for counter (position, 0, 0) under key seed.
[[nodiscard]] constexpr double UniformAt(uint64_t seed, int64_t position) {
  const auto p = static_cast<uint64_t>(position);
  const auto words =
      Philox({static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), 0, 0},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{words[1]} << 32 | words[0]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace baton::cpu
