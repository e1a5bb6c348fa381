// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv/block_pool.h"

#include <algorithm>
#include <functional>

#include "runtime/base/check.h"

namespace baton {

BlockPool::BlockPool(int64_t pages)
    : total_(pages), in_use_(static_cast<size_t>(pages), false) {
  for (int64_t page = 0; page < pages; ++page) {
    free_.push_back(static_cast<PageId>(page));  // ascending: already a heap
  }
}

StatusOr<std::vector<PageId>> BlockPool::Take(int64_t count) {
  if (count > available()) {
    return ResourceExhausted("{} KV pages wanted, {} of {} free", count,
                             available(), total_);
  }
  std::vector<PageId> pages;
  for (int64_t i = 0; i < count; ++i) {
    std::pop_heap(free_.begin(), free_.end(), std::greater<>());
    pages.push_back(free_.back());
    free_.pop_back();
    in_use_[static_cast<size_t>(pages.back())] = true;
  }
  return pages;
}

void BlockPool::Give(const std::vector<PageId>& pages) {
  for (PageId page : pages) {
    BATON_CHECK(page >= 0 && page < total_);
    BATON_CHECK(in_use_[static_cast<size_t>(page)]);
    in_use_[static_cast<size_t>(page)] = false;
    free_.push_back(page);
    std::push_heap(free_.begin(), free_.end(), std::greater<>());
  }
}

}  // namespace baton
