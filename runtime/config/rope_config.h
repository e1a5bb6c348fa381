// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/status.h"
#include "runtime/config/model_config.h"

namespace baton {

// The rotary embedding of a config.json, from either layout.
// InvalidArgument: names the key. Thread: any.
[[nodiscard]] StatusOr<RopeConfig> ReadRope(const nlohmann::json& root,
                                            const std::string& where);

// That of layers of one type: rope_parameters.<layer_type>.
[[nodiscard]] StatusOr<RopeConfig> ReadRopeOf(const nlohmann::json& root,
                                              const std::string& layer_type,
                                              const std::string& where);

}  // namespace baton
