// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "runtime/base/status.h"
#include "runtime/weights/weight_source.h"

namespace baton {

// Compares the tensors of a checkpoint (in name order) with what a decoder
// declares. InvalidArgument lists what differs, one line each, at most 20.
// Thread: any.
[[nodiscard]] Status CheckTensors(std::span<const TensorEntry> tensors,
                                  std::span<const TensorDecl> declared);

// The entry called `name`, or nullptr. `tensors` is in name order.
[[nodiscard]] const TensorEntry* FindTensor(
    std::span<const TensorEntry> tensors, const std::string& name);

// Whether a file's shape is the declared one ([] and [1] are one where
// `any_one_element` says so).
[[nodiscard]] bool ShapeFits(const TensorDecl& decl, const Shape& shape);

}  // namespace baton
