// SPDX-License-Identifier: Apache-2.0
// A client of the front, for the command line and tests. Blocking.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/gateway.h"
#include "runtime/base/status.h"

namespace baton {

// New tokens, with their logprobs where they were asked for.
struct GenerateChunk {
  std::vector<int32_t> ids;
  std::vector<SampleResult> logprobs;         // as many as ids, or none
  std::vector<SampleResult> prompt_logprobs;  // from the second prompt token on
};
struct GenerateSummary {
  std::vector<int32_t> ids;  // all that were generated
  std::string finish_reason;
  int64_t prompt_tokens = 0;
  std::optional<int32_t> matched_id;
};

// Sends a request and hands out what comes, until the end. `cancelled` is asked
// now and then; true gives the request up. Codes are the server's.
[[nodiscard]] StatusOr<GenerateSummary> Generate(
    const std::string& server, const GenerateCall& call,
    const std::function<void(const GenerateChunk&)>& on_chunk,
    const std::function<bool()>& cancelled);

struct ServedModel {
  std::string name;
  std::string tokenizer_path;
  int64_t context = 0;
};
[[nodiscard]] StatusOr<ServedModel> AskModel(const std::string& server);

}  // namespace baton
