// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/shape.h"

#include <fmt/core.h>

namespace baton {

std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ",", shape[i]);
  }
  return text + "]";
}

}  // namespace baton
