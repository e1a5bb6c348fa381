// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "runtime/base/check.h"
#include "runtime/config/model_config.h"
#include "tests/fuzz/fuzz.h"

// config.json; accepted if its rotary embedding is understood too.
bool baton::fuzz::Run(std::span<const std::byte> input) {
  const auto config = ModelConfig::Parse(Text(input), "config.json");
  if (!config.ok()) return false;
  for (const char* key : {"hidden_size", "rope_theta", "eos_token_id", "x"}) {
    (void)config->Has(key);
    (void)config->Size(key);
    (void)config->Number(key);
    (void)config->BoolOr(key, true);
    (void)config->Text(key);
    (void)config->Ids(key);
    (void)config->RequireOff(key);
    (void)config->RequireText(key, "y");
  }
  const auto rope = config->Rope();
  if (!rope.ok()) return false;
  for (const float frequency : ComputeRope(*rope, 64).inv_freq) {
    BATON_CHECK(std::isfinite(frequency));
  }
  return true;
}
