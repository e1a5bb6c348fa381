// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace baton {

// Of the services in proto/: raised when a message changes its meaning. Both
// ends of a connection must have the same, and the same build, because the
// numerics contract holds inside one build.
inline constexpr uint32_t kProtocolVersion = 1;

// What `git describe` said when this was configured, or the project's version.
[[nodiscard]] std::string BuildId();

}  // namespace baton
