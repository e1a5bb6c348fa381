// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace baton {

// Injected time. Thread: any.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual absl::Time Now() const = 0;
};

class RealClock : public Clock {
 public:
  [[nodiscard]] absl::Time Now() const override { return absl::Now(); }
};

}  // namespace baton
