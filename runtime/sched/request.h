// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace baton {

// How a request's tokens are chosen. Defaults are greedy.
struct SamplingParams {
  float temperature = 0;
  int top_k = 0;    // 0: all
  float top_p = 1;  // (0, 1]
  float min_p = 0;  // [0, 1]
  uint64_t seed = 0;
  int top_logprobs = 0;     // best alternatives per generated token, <= 64
  int prompt_logprobs = 0;  // the same per prompt token; 0: none
  bool digest = false;      // hash every wanted row of logits
  friend bool operator==(const SamplingParams&,
                         const SamplingParams&) = default;
};

struct Request {
  std::string id;  // unique among live requests
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 0;         // >= 1
  std::vector<int32_t> stop_ids;  // end the request; the id is delivered
};

// What a request is checked against before it is admitted.
struct RequestLimits {
  int64_t vocab = 0;
  int64_t max_positions = 0;  // prompt + max_tokens
  int64_t kv_tokens = 0;      // of the whole pool
};

// InvalidArgument: empty prompt, id out of range, max_tokens < 1, prompt +
// max_tokens over the context, absurd sampling values (not finite, negative,
// out of range). ResourceExhausted: can never fit the KV pool.
[[nodiscard]] Status CheckRequest(const Request& request,
                                  const RequestLimits& limits);

}  // namespace baton
