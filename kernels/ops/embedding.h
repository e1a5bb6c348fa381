// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/tensor/tensor.h"

namespace baton {

// out[i] = table[ids[i]] in the dtype of the table or f32, where an id of -1 -
// s stands for drawn[s]. The caller has checked the ids. Spans are in the
// memory of the device.
struct Embedding {
  static constexpr std::string_view kName = "embedding";
  struct Args {
    std::span<const int32_t> ids;         // [tokens]
    ConstView table;                      // [vocab, hidden]
    View out;                             // [tokens, hidden]; may be f32
    std::span<const int32_t> drawn = {};  // tokens by slot (ops/sample.h)
  };
};

}  // namespace baton
