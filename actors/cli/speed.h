// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "actors/local_pipeline.h"
#include "runtime/base/status.h"

namespace baton {

struct Speed {
  double prompt_tokens_per_s = 0;
  double decode_tokens_per_s = 0;
};

// Requests that start at once.
struct SpeedLoad {
  int batch = 1;
  int prompt = 0;  // tokens
  int tokens = 0;  // to generate, each
  int64_t vocab = 0;
};

// Runs the load and waits. Decode speed is taken while all requests decode.
// FailedPrecondition: there is no such time, since the first has ended before
// the last one's prompt is done. Thread: any but the controller's.
[[nodiscard]] StatusOr<Speed> MeasureSpeed(const ControllerRef& controller,
                                           const SpeedLoad& load);

}  // namespace baton
