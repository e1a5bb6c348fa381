// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/base/check.h"
#include "runtime/tensor/device.h"

namespace baton::cpu {

// Memory of one thread that grows to the largest size asked for and keeps it,
// so that a step allocates nothing once the sizes are known. What it held is
// lost at the next Get.
class Scratch {
 public:
  template <typename T>
  [[nodiscard]] T* Get(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    if (bytes > buffer_.bytes()) {
      buffer_ = Buffer();
      StatusOr<Buffer> larger = AllocateHostBuffer(bytes);
      BATON_CHECK(larger.ok());
      buffer_ = *std::move(larger);
    }
    return reinterpret_cast<T*>(buffer_.data());
  }

 private:
  Buffer buffer_;
};

}  // namespace baton::cpu
