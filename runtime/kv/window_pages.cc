// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv/window_pages.h"

namespace baton {

std::vector<PageId> WindowPages::Grow(int64_t positions, BlockPool& pool) {
  const int64_t need =
      PagesFor(positions) - given_back_ - static_cast<int64_t>(held_.size());
  if (need <= 0) return {};
  std::vector<PageId> added = pool.Take(need).value();
  held_.insert(held_.end(), added.begin(), added.end());
  return added;
}

void WindowPages::Trim(int64_t next, int64_t window, BlockPool& pool) {
  // The row at `next` sees positions after next - window.
  while (!held_.empty() &&
         (given_back_ + 1) * kPageTokens - 1 <= next - window) {
    pool.Give({held_.front()});
    held_.pop_front();
    ++given_back_;
  }
}

void WindowPages::Clear(BlockPool& pool) {
  pool.Give({held_.begin(), held_.end()});
  held_.clear();
  given_back_ = 0;
}

}  // namespace baton
