// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/base/clock.h"

namespace baton::testing {

// Time that moves only when a test says so.
class FakeClock : public Clock {
 public:
  [[nodiscard]] absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

}  // namespace baton::testing
