// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/status.h"

namespace baton {

// Which pages are free. The controller's: ids are valid on every stage.
// Lowest ids are handed out first, so that a lightly loaded pool touches
// little memory. Owner thread: the controller's.
class BlockPool {
 public:
  explicit BlockPool(int64_t pages);

  [[nodiscard]] int64_t total() const { return total_; }
  [[nodiscard]] int64_t used() const {
    return total_ - static_cast<int64_t>(free_.size());
  }
  [[nodiscard]] int64_t available() const {
    return static_cast<int64_t>(free_.size());
  }

  // ResourceExhausted: fewer than `count` are free; takes none then.
  [[nodiscard]] StatusOr<std::vector<PageId>> Take(int64_t count);
  // CHECKs that every page is in use.
  void Give(const std::vector<PageId>& pages);

 private:
  int64_t total_;
  std::vector<PageId> free_;  // a heap, lowest first
  std::vector<bool> in_use_;
};

}  // namespace baton
