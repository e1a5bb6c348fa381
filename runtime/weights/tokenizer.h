// SPDX-License-Identifier: Apache-2.0
// Token ids to text, for checkpoints with a byte-level tokenizer.json. Decoding
// only; encoding belongs to the router in front.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace baton {

class TokenTable {
 public:
  // NotFound: no tokenizer.json. Unimplemented: not byte-level.
  // InvalidArgument: damaged.
  [[nodiscard]] static StatusOr<TokenTable> Open(const std::string& directory);
  [[nodiscard]] static StatusOr<TokenTable> Parse(const std::string& json);

  // The bytes of one token; empty for special and unknown ids.
  [[nodiscard]] const std::string& Bytes(int32_t id) const;

 private:
  std::vector<std::string> bytes_;
};

// Joins token bytes and hands out whole UTF-8 characters only. Owner thread:
// any one.
class TextStream {
 public:
  explicit TextStream(const TokenTable* table) : table_(table) {}
  [[nodiscard]] std::string Push(int32_t id);
  // What is left, broken characters replaced by U+FFFD.
  [[nodiscard]] std::string Finish();

 private:
  const TokenTable* table_;
  std::string pending_;
};

}  // namespace baton
