// SPDX-License-Identifier: Apache-2.0
// Window pages: how many a sequence holds, and when they come back.
#include <algorithm>
#include <deque>
#include <utility>

#include "tests/runtime/sched/scheduler_testing.h"

namespace baton::testing {
namespace {

SchedulerOptions WindowOptions() {
  SchedulerOptions o = Options();
  o.kv_pages = 2000;
  o.prefill_chunk = 8;
  o.window = 40;
  o.window_pages = EnoughWindowPages(o);
  return o;
}

// Runs until nothing is left, results at once; the most window pages in use.
int64_t RunAll(Scheduler& s) {
  int64_t most = 0;
  std::deque<StepDescriptor> queue;
  while (true) {
    while (auto round = s.NextRound(Epoch(1))) {
      most = std::max(most, s.window_pages_used());
      for (StepDescriptor& step : round->steps) queue.push_back(step);
    }
    if (queue.empty()) return most;
    Finish(s, queue.front());
    queue.pop_front();
  }
}

TEST(SchedulerWindowTest, KeepsTheWindowPoolBoundedOverTenThousandTokens) {
  const SchedulerOptions o = WindowOptions();
  Scheduler s(o);
  ASSERT_TRUE(s.Add(MakeRequest("a", 30, 10000)).ok());
  const int64_t most = RunAll(s);
  // Two chunks of eight in flight behind a window of 40.
  EXPECT_EQ(WindowPagesFor(o, 10030), 4 + 1);
  EXPECT_LE(most, WindowPagesFor(o, 10030));
  EXPECT_GE(most, 3) << "a window of 40 lies in three pages";
  EXPECT_EQ(s.pages_used(), 0);
  EXPECT_EQ(s.window_pages_used(), 0);
}

TEST(SchedulerWindowTest, TakesAWindowPageBackWhenTheStepThatReadItCompletes) {
  SchedulerOptions o = WindowOptions();
  o.window = 16;
  Scheduler s(o);
  ASSERT_TRUE(s.Add(MakeRequest("a", 33, 2)).ok());
  std::vector<StepDescriptor> steps;
  for (int i = 0; i < 4; ++i) {  // positions [0, 32), one step completed late
    steps.push_back(s.NextRound(Epoch(1))->steps[0]);
    if (i > 0) Finish(s, steps[static_cast<size_t>(i) - 1]);
  }
  EXPECT_EQ(s.window_pages_used(), 2) << "row 24 sees position 9";
  Finish(s, steps[3]);
  EXPECT_EQ(s.window_pages_used(), 1) << "row 32 sees positions 17 to 32";
  EXPECT_EQ(s.NextRound(Epoch(1))->steps[0].sequences[0].new_window_pages,
            (std::vector<PageId>{0}))
      << "the first page, again";
}

TEST(SchedulerWindowTest, FreesWindowPagesOfAnAbortedRequestAtOnce) {
  Scheduler s(WindowOptions());
  ASSERT_TRUE(s.Add(MakeRequest("a", 60, 3)).ok());
  ASSERT_TRUE(s.NextRound(Epoch(1)).has_value());
  EXPECT_GT(s.window_pages_used(), 0);
  EXPECT_TRUE(s.Abort("a"));
  EXPECT_EQ(s.window_pages_used(), 0);
}

// Pages for both are there, window pages for one at a time only.
TEST(SchedulerWindowTest, AdmitsNoRequestIntoWindowPagesPromisedToAnother) {
  SchedulerOptions o = WindowOptions();
  o.window_pages = WindowPagesFor(o, 1000);
  Scheduler s(o);
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(s.Add(MakeRequest(id, 30, 200)).ok());
  }
  const Round first = *s.NextRound(Epoch(1));
  EXPECT_EQ(s.running(), 1);
  Finish(s, first.steps[0]);
  EXPECT_LE(RunAll(s), o.window_pages);
  EXPECT_EQ(s.running() + s.waiting(), 0);
}

}  // namespace
}  // namespace baton::testing
