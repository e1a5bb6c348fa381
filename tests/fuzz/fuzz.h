// SPDX-License-Identifier: Apache-2.0
// A fuzz target is one function over untrusted bytes, in <name>_fuzz.cc. The
// same file is linked twice: with libFuzzer (entry.cc), and with
// corpus_main.cc, which runs the corpus as a unit test.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace baton::fuzz {

// Feeds `input` to the parser and to whatever uses its result. True: accepted.
// Anything goes but a crash, a hang, a leak or undefined behaviour.
bool Run(std::span<const std::byte> input);

// The input as text.
[[nodiscard]] inline std::string Text(std::span<const std::byte> input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

}  // namespace baton::fuzz
