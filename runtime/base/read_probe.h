// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace baton {

class ThreadPool;

// Reads a block of memory as fast as loads go: the ceiling that decode speed is
// measured against. The block is larger than caches; huge pages where there
// are any. Owner thread: the pool's.
class ReadProbe {
 public:
  explicit ReadProbe(int64_t bytes);

  [[nodiscard]] int64_t bytes() const { return bytes_; }
  // Reads the block once; seconds of wall time.
  [[nodiscard]] double Run(ThreadPool& pool) const;

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  int64_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace baton
