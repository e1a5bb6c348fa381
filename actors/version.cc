// SPDX-License-Identifier: Apache-2.0
#include "actors/version.h"

namespace baton {

std::string BuildId() { return BATON_BUILD_ID; }

}  // namespace baton
