// SPDX-License-Identifier: Apache-2.0
#include "runtime/sched/request.h"

#include <cmath>

#include "runtime/base/sampling.h"

namespace baton {
namespace {

Status CheckSampling(const SamplingParams& s) {
  if (!std::isfinite(s.temperature) || s.temperature < 0 ||
      s.temperature > 100) {
    return InvalidArgument("temperature {}: expected 0 to 100", s.temperature);
  }
  if (s.top_k < 0) {
    return InvalidArgument("top_k {}: expected 0 (off) or more", s.top_k);
  }
  if (!(s.top_p > 0 && s.top_p <= 1)) {
    return InvalidArgument("top_p {}: expected more than 0, at most 1",
                           s.top_p);
  }
  if (!(s.min_p >= 0 && s.min_p <= 1)) {
    return InvalidArgument("min_p {}: expected 0 to 1", s.min_p);
  }
  if (s.top_logprobs < 0 || s.top_logprobs > kMaxTopLogprobs) {
    return InvalidArgument("logprobs {}: expected 0 to {}", s.top_logprobs,
                           kMaxTopLogprobs);
  }
  if (s.prompt_logprobs < 0 || s.prompt_logprobs > kMaxTopLogprobs) {
    return InvalidArgument("prompt_logprobs {}: expected 0 to {}",
                           s.prompt_logprobs, kMaxTopLogprobs);
  }
  return OkStatus();
}

}  // namespace

Status CheckRequest(const Request& request, const RequestLimits& limits) {
  if (request.prompt.empty()) return InvalidArgument("the prompt is empty");
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= limits.vocab) {
      return InvalidArgument(
          "prompt id {} at position {}: the vocabulary has {} entries",
          request.prompt[i], i, limits.vocab);
    }
  }
  if (request.max_tokens < 1) {
    return InvalidArgument("max_tokens {}: expected at least 1",
                           request.max_tokens);
  }
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (request.max_tokens > limits.max_positions - prompt) {
    return InvalidArgument(
        "prompt of {} tokens + max_tokens {} is over the context of {}", prompt,
        request.max_tokens, limits.max_positions);
  }
  BATON_RETURN_IF_ERROR(CheckSampling(request.sampling));
  if (prompt + request.max_tokens > limits.kv_tokens) {
    return ResourceExhausted(
        "prompt of {} tokens + max_tokens {} never fits the KV pool of {} "
        "tokens",
        prompt, request.max_tokens, limits.kv_tokens);
  }
  return OkStatus();
}

}  // namespace baton
