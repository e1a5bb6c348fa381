// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// What one unrolled layer keeps for a token.
struct KvShape {
  DType dtype = DType::kF32;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  [[nodiscard]] int64_t PageBytes() const;  // of one layer: keys and values
};

// A stage's paged keys and values: one pool per unrolled layer it holds, all
// with the same page ids, which the controller allocates. Memory is touched
// when a page is first written, not before.
// Owner thread: the stage's.
class KvCache {
 public:
  // `slots`: unrolled layers held. ResourceExhausted: no memory.
  [[nodiscard]] static StatusOr<KvCache> Create(Device& device,
                                                const KvShape& shape, int slots,
                                                int64_t pages);

  [[nodiscard]] const KvShape& shape() const { return shape_; }
  [[nodiscard]] int slots() const { return static_cast<int>(pools_.size()); }
  [[nodiscard]] int64_t pages() const { return pages_; }
  [[nodiscard]] int64_t bytes() const {
    return slots() * pages_ * shape_.PageBytes();
  }
  // Start of slot `slot`'s pool, [pages, PageBytes].
  [[nodiscard]] std::byte* Pool(int slot) const;

 private:
  KvShape shape_;
  int64_t pages_ = 0;
  std::vector<Buffer> pools_;
};

}  // namespace baton
