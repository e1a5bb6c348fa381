// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// How much state there is room for; the same on every stage.
struct KvSizes {
  int64_t pages = 0;         // of layers that keep every position
  int64_t window_pages = 0;  // of layers that keep a window of them
  friend bool operator==(const KvSizes&, const KvSizes&) = default;
};

// What one unrolled layer keeps of a sequence: the keys and values of its
// positions, all of them or those that later rows may still see.
struct LayerState {
  DType dtype = DType::kF32;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // positions a row sees, itself included; 0: all

  [[nodiscard]] int64_t TokenBytes() const;  // of one position
  [[nodiscard]] int64_t PageBytes() const { return kPageTokens * TokenBytes(); }
  [[nodiscard]] int64_t Pages(const KvSizes& sizes) const {
    return window > 0 ? sizes.window_pages : sizes.pages;
  }
  // Of its pool.
  [[nodiscard]] int64_t Bytes(const KvSizes& sizes) const {
    return Pages(sizes) * PageBytes();
  }
  friend bool operator==(const LayerState&, const LayerState&) = default;
};

// The state of a stage's layers: one pool of pages per unrolled layer it holds.
// Layers that keep every position share page ids, and so do layers that keep a
// window; the controller allocates both. Memory is touched when a page is first
// written, not before.
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
  [[nodiscard]] std::byte* Pool(int slot) const;  // [pages, PageBytes]

 private:
  std::vector<LayerState> layers_;
  KvSizes sizes_;
  std::vector<Buffer> pools_;  // one per layer
};

}  // namespace baton
