// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/status.h"

namespace baton {

// A file mapped read-only. Move-only; unmaps itself. Thread: any.
// A file that somebody truncates while it is mapped kills the process at the
// next read: checkpoints are not edited in place.
class MappedFile {
 public:
  // NotFound, or Internal: the file cannot be mapped.
  [[nodiscard]] static StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

// Lets go of the pages that lie wholly inside a part of a mapping; a later
// read brings them back from the file.
void DropMappedPages(std::span<const std::byte> bytes);

// Whether there is something of this name: also a link to nothing, so that
// opening it says what is wrong.
[[nodiscard]] bool PathExists(const std::string& path);

// Larger than any configuration or list of ids.
inline constexpr int64_t kMaxTextBytes = int64_t{64} << 20;
// The whole file. NotFound; InvalidArgument: larger than `max_bytes`.
[[nodiscard]] StatusOr<std::string> ReadFile(const std::string& path,
                                             int64_t max_bytes = kMaxTextBytes);

}  // namespace baton
