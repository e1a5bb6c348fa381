// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// How much state there is room for; the same on every stage.
struct KvSizes {
  int64_t pages = 0;         // of layers that keep every position
  int64_t window_pages = 0;  // of layers that keep a window of them
  int64_t state_slots = 0;   // of layers that keep the same bytes of any length
  friend bool operator==(const KvSizes&, const KvSizes&) = default;
};

inline constexpr int64_t kSlotAlignment = 64;

// What one unrolled layer keeps of a sequence: of its positions, all of them or
// those that later rows may still see, keys and values of heads, or a latent
// of all heads; or a slot, whose bytes do not depend on its length.
struct LayerState {
  DType dtype = DType::kF32;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;        // positions a row sees, itself included; 0: all
  int64_t latent_width = 0;  // values of a position's latent
  int64_t slot_bytes = 0;    // multiples of kSlotAlignment

  // What each of a stage's ranks keeps: an equal run of KV heads, at least one;
  // whole latents; an equal part of a slot.
  [[nodiscard]] LayerState OfRank(int ranks) const;
  [[nodiscard]] int64_t TokenBytes() const;  // of one position
  [[nodiscard]] int64_t PageBytes() const { return kPageTokens * TokenBytes(); }
  [[nodiscard]] int64_t Pages(const KvSizes& sizes) const {
    return window > 0 ? sizes.window_pages : sizes.pages;
  }
  // Of its pool: pages, then slots.
  [[nodiscard]] int64_t Bytes(const KvSizes& sizes) const {
    return SlotsAt(sizes) + sizes.state_slots * slot_bytes;
  }
  [[nodiscard]] int64_t SlotsAt(const KvSizes& sizes) const {
    return Pages(sizes) * PageBytes();
  }
  friend bool operator==(const LayerState&, const LayerState&) = default;
};

// The state of a stage's layers: one pool of pages and slots per unrolled layer
// it holds. Layers that keep every position share page ids, and so do layers
// that keep a window; a sequence has the same slot in every layer. The
// controller allocates all of them. Memory is touched when it is first written,
// not before.
// Owner thread: the stage's.
class KvCache {
 public:
  // `layers`: of the unrolled layers held. ResourceExhausted: no memory.
  [[nodiscard]] static StatusOr<KvCache> Create(Device& device,
                                                std::vector<LayerState> layers,
                                                const KvSizes& sizes);

  [[nodiscard]] const KvSizes& sizes() const { return sizes_; }
  [[nodiscard]] int64_t bytes() const;
  // Of the `slot`th layer held.
  [[nodiscard]] const LayerState& State(int slot) const;
  [[nodiscard]] std::byte* Pool(int slot) const;  // [pages, PageBytes], slots

  // What the `slot`th layer held keeps in a sequence's slot becomes zeros, as
  // it is when a sequence starts. Internal: the device failed.
  [[nodiscard]] Status ClearState(int slot, int32_t state_slot, Device& device,
                                  Stream& stream) const;
  // What all layers keep in slot `from`, also in slot `to`: a snapshot of a
  // sequence, or its restoration. Internal: the device failed.
  [[nodiscard]] Status CopyState(int32_t from, int32_t to, Device& device,
                                 Stream& stream) const;

 private:
  [[nodiscard]] std::byte* StateAt(size_t layer, int32_t state_slot) const;

  std::vector<LayerState> layers_;
  KvSizes sizes_;
  std::vector<Buffer> pools_;  // one per layer
};

}  // namespace baton
