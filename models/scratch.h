// SPDX-License-Identifier: Apache-2.0
// Memory for activations, reused within a visit and between visits.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/tensor/tensor.h"

namespace baton {

class ScratchPool;

// A borrowed block with a shape; goes back to its pool when it is destroyed.
// Move-only. Owner thread: the stage's.
class Scratch {
 public:
  Scratch() = default;
  Scratch(ScratchPool* pool, int block, View view)
      : pool_(pool), block_(block), view_(view) {}
  Scratch(Scratch&& other) noexcept { *this = std::move(other); }
  Scratch& operator=(Scratch&& other) noexcept;
  ~Scratch() { Release(); }

  [[nodiscard]] View view() const { return view_; }

 private:
  void Release();

  ScratchPool* pool_ = nullptr;
  int block_ = -1;
  View view_;
};

// The blocks of one stage. A block is free again as soon as its Scratch is
// gone, which on a device stream means: for work submitted later. After the
// largest batch has been seen, Take allocates nothing. Outlives its Scratches.
class ScratchPool {
 public:
  explicit ScratchPool(Device* device) : device_(device) {}
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  // ResourceExhausted: no memory.
  [[nodiscard]] StatusOr<Scratch> Take(DType dtype, Shape shape);
  [[nodiscard]] int64_t bytes() const;
  // Calls to the device's allocator so far.
  [[nodiscard]] int64_t allocations() const { return allocations_; }

 private:
  friend class Scratch;
  struct Block {
    Buffer buffer;
    bool used = false;
  };

  Device* device_;
  std::vector<Block> blocks_;
  int64_t allocations_ = 0;
};

}  // namespace baton
