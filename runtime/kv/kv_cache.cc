// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv/kv_cache.h"

#include <utility>

#include "runtime/base/check.h"

namespace baton {

int64_t LayerState::TokenBytes() const {
  return 2 * kv_heads * head_dim * SizeOf(dtype);
}

StatusOr<KvCache> KvCache::Create(Device& device,
                                  std::vector<LayerState> layers,
                                  const KvSizes& sizes) {
  KvCache cache;
  cache.layers_ = std::move(layers);
  cache.sizes_ = sizes;
  for (const LayerState& layer : cache.layers_) {
    auto pool = device.Allocate(layer.Bytes(sizes));
    if (!pool.ok()) {
      return ResourceExhausted(
          "KV pools of {} layers, {} pages and {} window pages ({} bytes): {}",
          cache.layers_.size(), sizes.pages, sizes.window_pages, cache.bytes(),
          Message(pool.status()));
    }
    cache.pools_.push_back(*std::move(pool));
  }
  return cache;
}

int64_t KvCache::bytes() const {
  int64_t bytes = 0;
  for (const LayerState& layer : layers_) bytes += layer.Bytes(sizes_);
  return bytes;
}

const LayerState& KvCache::State(int slot) const {
  BATON_CHECK(slot >= 0 && slot < static_cast<int>(layers_.size()));
  return layers_[static_cast<size_t>(slot)];
}

std::byte* KvCache::Pool(int slot) const {
  BATON_CHECK(slot >= 0 && slot < static_cast<int>(pools_.size()));
  return pools_[static_cast<size_t>(slot)].data();
}

}  // namespace baton
