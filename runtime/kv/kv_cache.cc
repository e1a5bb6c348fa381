// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv/kv_cache.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace baton {

LayerState LayerState::OfRank(int ranks) const {
  LayerState state = *this;
  if (kv_heads > 0) state.kv_heads = std::max<int64_t>(1, kv_heads / ranks);
  const int64_t unit = ranks * kSlotAlignment;
  state.slot_bytes = (slot_bytes + unit - 1) / unit * kSlotAlignment;
  return state;
}

int64_t LayerState::TokenBytes() const {
  return (2 * kv_heads * head_dim + latent_width) * SizeOf(dtype);
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
          "KV pools of {} layers, {} pages, {} window pages and {} slots ({} "
          "bytes): {}",
          cache.layers_.size(), sizes.pages, sizes.window_pages,
          sizes.state_slots, cache.bytes(), Message(pool.status()));
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

std::byte* KvCache::StateAt(size_t layer, int32_t state_slot) const {
  BATON_CHECK(state_slot >= 0 && state_slot < sizes_.state_slots);
  const LayerState& state = layers_[layer];
  return pools_[layer].data() + state.SlotsAt(sizes_) +
         state_slot * state.slot_bytes;
}

Status KvCache::ClearState(int slot, int32_t state_slot, Device& device,
                           Stream& stream) const {
  const int64_t bytes = State(slot).slot_bytes;
  if (bytes == 0) return OkStatus();
  return device.Clear(StateAt(static_cast<size_t>(slot), state_slot), bytes,
                      stream);
}

Status KvCache::CopyState(int32_t from, int32_t to, Device& device,
                          Stream& stream) const {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (layers_[layer].slot_bytes == 0) continue;
    BATON_RETURN_IF_ERROR(device.Copy(StateAt(layer, to), StateAt(layer, from),
                                      layers_[layer].slot_bytes, stream));
  }
  return OkStatus();
}

}  // namespace baton
