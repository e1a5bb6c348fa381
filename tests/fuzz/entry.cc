// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::fuzz::Run(std::as_bytes(std::span(data, size)));
  return 0;
}
