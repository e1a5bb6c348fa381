// SPDX-License-Identifier: Apache-2.0
// What sampling one row of logits gives; shared by kernels and the wire.
#pragma once

#include <cstdint>
#include <vector>

namespace baton {

// Of the tokens in one place, the most whose logprobs can be asked for.
inline constexpr int kMaxTopLogprobs = 64;

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

struct SampleResult {
  int32_t token = 0;
  float logprob = 0;              // of `token`, before temperature and filters
  std::vector<TokenLogprob> top;  // best first; ties to the lowest id
  uint64_t digest = 0;            // of the row's bits, if asked for
  friend bool operator==(const SampleResult&, const SampleResult&) = default;
};

}  // namespace baton
