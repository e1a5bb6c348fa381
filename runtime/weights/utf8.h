// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace baton {

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

// The first character of some bytes.
struct Utf8Part {
  enum class Kind {
    kCharacter,   // a whole character
    kBroken,      // bytes that no continuation can make a character
    kUnfinished,  // all there is, and the beginning of a character
  };
  Kind kind = Kind::kBroken;
  int length = 0;           // bytes
  int32_t code_point = -1;  // of a whole character
};

// `bytes` is not empty. Broken bytes are cut as the Unicode standard advises
// ("maximal subpart"): one replacement character for each longest beginning of
// a valid character, else for one byte. Thread: any.
[[nodiscard]] Utf8Part NextUtf8(std::string_view bytes);

}  // namespace baton
