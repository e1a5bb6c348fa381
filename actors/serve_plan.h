// SPDX-License-Identifier: Apache-2.0
// From a config and a model to what a controller is given. Pure.
#pragma once

#include <cstdint>

#include "actors/controller_actor.h"
#include "actors/local_pipeline.h"
#include "actors/placement.h"
#include "runtime/config/plan.h"

namespace baton {

// Tokens of the KV pool: the config's number in whole pages or, where it is 0,
// 2048 for each sequence, but no more than the context of all of them and no
// more than 8 GiB over all layers, windows' pages and state slots included.
[[nodiscard]] int64_t KvTokens(const ServeConfig& config,
                               const DecoderInfo& info);

// Any Status of PlaceStages, CheckServeConfig and CheckRanks.
[[nodiscard]] StatusOr<ControllerOptions> PlanController(
    const ServeConfig& config, const OpenedModel& model);

}  // namespace baton
