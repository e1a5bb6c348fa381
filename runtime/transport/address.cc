// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/address.h"

#include <cstddef>
#include <cstdint>

namespace baton {
namespace {

// At the end: the length of the note, 4 bytes little endian, and this.
constexpr std::string_view kMagic = "BatonGPU";
constexpr size_t kTrailer = 4 + kMagic.size();

}  // namespace

std::string AddDeviceNote(const std::string& host_address,
                          std::string_view note) {
  std::string address = host_address;
  address.append(note);
  const auto bytes = static_cast<uint32_t>(note.size());
  for (int i = 0; i < 4; ++i) {
    address.push_back(static_cast<char>((bytes >> (8 * i)) & 0xff));
  }
  return address.append(kMagic);
}

std::string_view DeviceNote(const std::string& address) {
  const std::string_view all = address;
  if (all.size() < kTrailer ||
      all.substr(all.size() - kMagic.size()) != kMagic) {
    return "";
  }
  const size_t rest = all.size() - kTrailer;
  uint32_t bytes = 0;
  for (size_t i = 0; i < 4; ++i) {
    bytes |= uint32_t{static_cast<uint8_t>(all[rest + i])} << (8 * i);
  }
  return bytes <= rest ? all.substr(rest - bytes, bytes) : "";
}

std::string HostAddress(const std::string& address) {
  const std::string_view note = DeviceNote(address);
  if (note.empty()) return address;
  return address.substr(0, address.size() - kTrailer - note.size());
}

}  // namespace baton
