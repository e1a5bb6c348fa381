// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/check.h"
#include "runtime/weights/safetensors.h"
#include "tests/fuzz/fuzz.h"

// A whole safetensors file. What is accepted covers its data exactly.
bool baton::fuzz::Run(std::span<const std::byte> input) {
  const auto tensors = ParseSafetensors(input, "model.safetensors");
  if (!tensors.ok()) return false;
  const std::byte* const end = input.data() + input.size();
  size_t covered = 0;
  for (const SafetensorsTensor& tensor : *tensors) {
    BATON_CHECK(tensor.data.data() >= input.data());
    BATON_CHECK(tensor.data.data() + tensor.data.size() <= end);
    BATON_CHECK(static_cast<int64_t>(tensor.data.size()) ==
                tensor.shape.NumElements() * SizeOf(tensor.dtype));
    covered += tensor.data.size();
  }
  BATON_CHECK(covered + 8 <= input.size());
  return true;
}
