// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/kv/block_pool.h"

namespace baton {

// The window pages that one sequence holds: those of its newest positions.
// Easy to get wrong: stages keep the ids of all pages it ever had, in order,
// and it is the window that keeps them from reading the ones given back.
// Owner thread: the controller's.
class WindowPages {
 public:
  // So that positions [0, positions) have had a page each; returns those added.
  // CHECKs that the pool has them.
  std::vector<PageId> Grow(int64_t positions, BlockPool& pool);
  // Gives back the pages whose positions no row from position `next` on sees.
  void Trim(int64_t next, int64_t window, BlockPool& pool);
  // Gives back what is left, and starts over.
  void Clear(BlockPool& pool);

 private:
  std::deque<PageId> held_;
  int64_t given_back_ = 0;  // pages before the ones held
};

}  // namespace baton
