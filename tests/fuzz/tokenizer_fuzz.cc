// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/check.h"
#include "runtime/weights/tokenizer.h"
#include "runtime/weights/utf8.h"
#include "tests/fuzz/fuzz.h"

// tokenizer.json, then a stream of its first tokens: all that comes out is
// whole characters.
bool baton::fuzz::Run(std::span<const std::byte> input) {
  const auto table = TokenTable::Parse(Text(input));
  if (!table.ok()) return false;
  TextStream stream(&*table);
  std::string text;
  for (int32_t id = -1; id < 64; ++id) text += stream.Push(id);
  text += stream.Finish();
  for (size_t at = 0; at < text.size();) {
    const Utf8Part part = NextUtf8(std::string_view(text).substr(at));
    BATON_CHECK(part.kind == Utf8Part::Kind::kCharacter);
    at += part.length;
  }
  return true;
}
