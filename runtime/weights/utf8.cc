// SPDX-License-Identifier: Apache-2.0
#include "runtime/weights/utf8.h"

#include "runtime/base/check.h"

namespace baton {
namespace {

// What may follow a lead byte: how many bytes, and the range of the first of
// them (narrower for E0, ED, F0 and F4: no long forms, no surrogates, nothing
// past U+10FFFF).
struct Lead {
  int more = -1;  // -1: no character starts with this byte
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
};

constexpr Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {.more = 0};
  if (byte < 0xc2) return {};
  if (byte < 0xe0) return {.more = 1};
  if (byte == 0xe0) return {.more = 2, .low = 0xa0};
  if (byte == 0xed) return {.more = 2, .high = 0x9f};
  if (byte < 0xf0) return {.more = 2};
  if (byte == 0xf0) return {.more = 3, .low = 0x90};
  if (byte < 0xf4) return {.more = 3};
  if (byte == 0xf4) return {.more = 3, .high = 0x8f};
  return {};
}

}  // namespace

Utf8Part NextUtf8(std::string_view bytes) {
  using enum Utf8Part::Kind;
  BATON_CHECK(!bytes.empty());
  const auto first = static_cast<uint8_t>(bytes[0]);
  const Lead lead = LeadOf(first);
  if (lead.more < 0) return {kBroken, 1};
  // A lead byte with n followers keeps its low 6 - n bits (all 7 for n = 0).
  int32_t code_point = lead.more == 0 ? first : first & (0x3f >> lead.more);
  for (int i = 1; i <= lead.more; ++i) {
    if (static_cast<size_t>(i) == bytes.size()) return {kUnfinished, i};
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xbf;
    if (byte < low || byte > high) return {kBroken, i};
    code_point = (code_point << 6) | (byte & 0x3f);
  }
  return {kCharacter, lead.more + 1, code_point};
}

}  // namespace baton
