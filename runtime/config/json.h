// SPDX-License-Identifier: Apache-2.0
// JSON from outside: size, depth and duplicate keys are checked before anyone
// looks at a value, and no exception leaves. Thread: any.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace baton {

struct JsonLimits {
  int64_t max_bytes = 4 << 20;
  int max_depth = 32;
};

// InvalidArgument: over a limit, not JSON, not an object, a key given twice;
// the message starts with `where`.
[[nodiscard]] StatusOr<nlohmann::json> ParseJsonObject(std::string_view text,
                                                       const std::string& where,
                                                       JsonLimits limits = {});

// The value of `key`, or nullptr if it is absent or null.
[[nodiscard]] const nlohmann::json* FindValue(const nlohmann::json& object,
                                              const std::string& key);

// A value for an error message, shortened.
[[nodiscard]] std::string Brief(const nlohmann::json& value);

// The value as an integer in [low, high]; InvalidArgument names `what`.
[[nodiscard]] StatusOr<int64_t> ToInteger(const nlohmann::json& value,
                                          const std::string& what, int64_t low,
                                          int64_t high);

// Token ids under `key`: a number or a list of numbers; absent: empty.
[[nodiscard]] StatusOr<std::vector<int32_t>> IdsUnder(
    const nlohmann::json& object, const std::string& key,
    const std::string& where);

}  // namespace baton
