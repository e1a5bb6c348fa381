// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>

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

// How long the calling thread has run on a processor since this was made.
class ThreadTime {
 public:
  [[nodiscard]] double Seconds() const { return Read() - start_; }

 private:
  static double Read() {
    timespec t = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) +
           1e-9 * static_cast<double>(t.tv_nsec);
  }

  double start_ = Read();
};

}  // namespace baton
