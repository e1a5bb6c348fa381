// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/tensor/tensor.h"

namespace baton {

// out[i] = table[ids[i]]. The caller has checked the ids.
struct Embedding {
  static constexpr std::string_view kName = "embedding";
  struct Args {
    std::span<const int32_t> ids;  // [tokens]
    ConstView table;               // [vocab, hidden]
    View out;                      // [tokens, hidden], dtype of table
  };
};

}  // namespace baton
