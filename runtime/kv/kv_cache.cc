// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv/kv_cache.h"

#include "runtime/base/check.h"

namespace baton {

int64_t KvShape::PageBytes() const {
  return 2 * kv_heads * head_dim * kPageTokens * SizeOf(dtype);
}

StatusOr<KvCache> KvCache::Create(Device& device, const KvShape& shape,
                                  int slots, int64_t pages) {
  KvCache cache;
  cache.shape_ = shape;
  cache.pages_ = pages;
  for (int slot = 0; slot < slots; ++slot) {
    auto pool = device.Allocate(pages * shape.PageBytes());
    if (!pool.ok()) {
      return ResourceExhausted("KV pool of {} pages x {} layers ({} bytes): {}",
                               pages, slots, pages * slots * shape.PageBytes(),
                               Message(pool.status()));
    }
    cache.pools_.push_back(*std::move(pool));
  }
  return cache;
}

std::byte* KvCache::Pool(int slot) const {
  BATON_CHECK(slot >= 0 && slot < slots());
  return pools_[static_cast<size_t>(slot)].data();
}

}  // namespace baton
