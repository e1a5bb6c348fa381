// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/check.h"
#include "runtime/weights/safetensors.h"
#include "tests/fuzz/fuzz.h"

// model.safetensors.index.json. No accepted name leaves the folder.
bool baton::fuzz::Run(std::span<const std::byte> input) {
  const auto index = ParseSafetensorsIndex(Text(input), "index.json");
  if (!index.ok()) return false;
  for (const auto& entry : *index) {
    BATON_CHECK(entry.second.find('/') == std::string::npos);
  }
  return true;
}
