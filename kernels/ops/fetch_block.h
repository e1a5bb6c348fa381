// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace baton {

// Brings what the host wrote to the device, in work that is recorded once and
// launched many times: run n, from 0 on, fetches block n % blocks of the ring.
// Kernels behind it may read the block before they wait for others. Of devices
// that record only. The host may write a block of the ring again once the run
// that fetched it is complete.
struct FetchBlock {
  static constexpr std::string_view kName = "fetch_block";
  struct Args {
    // A power of two of blocks, of Device::AllocateHost; 16-byte aligned.
    std::span<const std::byte> ring;
    std::span<std::byte> block;  // on the device; a multiple of 16 bytes
    std::span<int32_t> turns;    // [2], on the device, zero before run 0
  };
};

}  // namespace baton
