// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/check.h"
#include "runtime/config/plan.h"
#include "tests/fuzz/fuzz.h"

// The controller's config file. What is accepted keeps its own promises.
bool baton::fuzz::Run(std::span<const std::byte> input) {
  const auto config = ParseServeConfig(Text(input), "plan.yaml");
  if (!config.ok()) return false;
  BATON_CHECK(!config->stages.empty());
  BATON_CHECK(CheckServeConfig(*config).ok());
  int next = 0;
  for (const StageConfig& stage : config->stages) {
    BATON_CHECK(!stage.name.empty());
    BATON_CHECK(stage.layers.has_value() ==
                config->stages.front().layers.has_value());
    if (!stage.layers.has_value()) continue;
    BATON_CHECK(stage.layers->begin == next &&
                stage.layers->end > stage.layers->begin);
    next = stage.layers->end;
  }
  return true;
}
