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

// A declared tensor as a checkpoint has it.
struct FoundTensor {
  const TensorEntry* entry = nullptr;  // null: it is not there
  Shape expected;                      // of the entry
  bool fits = false;  // [] and [1] are one where `any_one_element` says so
  ConstView rows;     // as declared, if it fits; may be off its alignment
};
[[nodiscard]] FoundTensor FindDeclared(std::span<const TensorEntry> tensors,
                                       const TensorDecl& decl);

}  // namespace baton
