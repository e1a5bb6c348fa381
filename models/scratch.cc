// SPDX-License-Identifier: Apache-2.0
#include "models/scratch.h"

namespace baton {

Scratch& Scratch::operator=(Scratch&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::exchange(other.pool_, nullptr);
    block_ = other.block_;
    view_ = std::exchange(other.view_, View());
  }
  return *this;
}

void Scratch::Release() {
  if (pool_ != nullptr) {
    pool_->blocks_[static_cast<size_t>(block_)].used = false;
  }
  pool_ = nullptr;
}

StatusOr<Scratch> ScratchPool::Take(DType dtype, Shape shape) {
  const int64_t need = shape.NumElements() * SizeOf(dtype);
  // The smallest free block that holds it; failing that, the largest free one
  // grows, so that the number of blocks stays the number in use at once.
  int fits = -1;
  int largest = -1;
  for (int i = 0; i < static_cast<int>(blocks_.size()); ++i) {
    const Block& block = blocks_[static_cast<size_t>(i)];
    if (block.used) continue;
    const auto bytes_of = [&](int b) {
      return blocks_[static_cast<size_t>(b)].buffer.bytes();
    };
    if (bytes_of(i) >= need && (fits < 0 || bytes_of(i) < bytes_of(fits))) {
      fits = i;
    }
    if (largest < 0 || bytes_of(i) > bytes_of(largest)) largest = i;
  }
  if (fits < 0) {
    if (largest < 0) {
      largest = static_cast<int>(blocks_.size());
      blocks_.emplace_back();
    }
    fits = largest;
    BATON_ASSIGN_OR_RETURN(blocks_[static_cast<size_t>(fits)].buffer,
                           device_->Allocate(need));
    ++allocations_;
  }
  Block& block = blocks_[static_cast<size_t>(fits)];
  block.used = true;
  return Scratch(this, fits, View(block.buffer.data(), dtype, shape));
}

int64_t ScratchPool::bytes() const {
  int64_t total = 0;
  for (const Block& block : blocks_) total += block.buffer.bytes();
  return total;
}

}  // namespace baton
