// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/clock.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(ThreadTimeTest, CountsWorkAndNotSleep) {
  const ThreadTime slept;
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_LT(slept.Seconds(), 0.025);

  const ThreadTime worked;
  const absl::Time begin = absl::Now();
  volatile int64_t sum = 0;
  while (worked.Seconds() < 0.01) sum = sum + 1;
  EXPECT_GT(sum, 0);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(9));
}

}  // namespace
}  // namespace baton
