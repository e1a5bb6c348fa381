// SPDX-License-Identifier: Apache-2.0
// What `baton parity` runs: placements, requests, their batch mates.
#pragma once

#include <string>
#include <vector>

#include "actors/cli/golden.h"
#include "actors/local_pipeline.h"
#include "actors/placement.h"

namespace baton {

// "1,2,3" or "all": every single cut, and every stage count. InvalidArgument.
[[nodiscard]] StatusOr<std::vector<Placement>> ParityPlacements(
    const OpenedModel& model, const DecoderBytes& bytes, RouteKind route,
    const std::string& pp);

// Each placement with stages of each number of ranks.
[[nodiscard]] std::vector<Placement> WithRanks(
    const std::vector<Placement>& placements, const std::vector<int>& ranks);

// InvalidArgument: no placement has rows that go from stage to stage.
[[nodiscard]] Status CheckHops(const std::vector<Placement>& placements);

// "pp=3 cut=2,4", with " tp=2" behind it where stages have ranks.
[[nodiscard]] std::string CutName(const Placement& placement);

// The requests under test: golden prompts, or made-up ones. `max_tokens` 0: as
// many as golden has.
[[nodiscard]] std::vector<Request> ParityRequests(
    const OpenedModel& model, const std::vector<GoldenCase>& golden,
    int max_tokens);

// `count` sequences beside case `i`: other prompts, sampled, of other lengths.
[[nodiscard]] std::vector<Request> BatchMates(const std::vector<Request>& cases,
                                              size_t i, int count);

// KV tokens that `batch` of the cases need at most.
[[nodiscard]] int64_t KvTokensFor(const std::vector<Request>& cases, int batch);

[[nodiscard]] ControllerOptions ParityController(const OpenedModel& model,
                                                 const Placement& placement,
                                                 DType dtype, int chunk,
                                                 int64_t kv_tokens);

// Each case alone, whole, on one stage of this process.
[[nodiscard]] StatusOr<std::vector<Completion>> RunAlone(
    const OpenedModel& model, DType dtype, LocalStagesOptions where,
    const std::vector<Request>& cases);

}  // namespace baton
