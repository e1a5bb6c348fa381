// SPDX-License-Identifier: Apache-2.0
// Slots of fixed-size states: one for each sequence that runs.
#include <gtest/gtest.h>

#include <set>

#include "tests/runtime/sched/scheduler_testing.h"

namespace baton {
namespace {

using testing::Finish;
using testing::MakeRequest;
using testing::Options;

SchedulerOptions WithSlots(int64_t slots) {
  SchedulerOptions o = Options();
  o.state_slots = slots;
  return o;
}

std::set<int32_t> SlotsOf(const Round& round) {
  std::set<int32_t> slots;
  for (const SequenceStart& start : round.starts) {
    slots.insert(start.state_slot);
  }
  return slots;
}

TEST(SchedulerSlotsTest, GivesEverySequenceThatStartsOneOfItsOwn) {
  Scheduler s(WithSlots(4));
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_TRUE(s.Add(MakeRequest(id, 2, 3)).ok());
  }
  const std::optional<Round> round = s.NextRound(Epoch(1));
  ASSERT_TRUE(round.has_value());
  EXPECT_EQ(SlotsOf(*round), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(s.state_slots_used(), 3);
  EXPECT_EQ(s.sizes().state_slots, 4);
}

TEST(SchedulerSlotsTest, LetsWaitWhoeverFindsNone) {
  Scheduler s(WithSlots(2));
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_TRUE(s.Add(MakeRequest(id, 2, 1)).ok());
  }
  std::optional<Round> round = s.NextRound(Epoch(1));
  ASSERT_TRUE(round.has_value());
  EXPECT_EQ(s.running(), 2);
  EXPECT_EQ(s.waiting(), 1);
  EXPECT_EQ(Finish(s, round->steps[0]).size(), 2u);
  EXPECT_EQ(s.state_slots_used(), 0);
  round = s.NextRound(Epoch(1));
  ASSERT_TRUE(round.has_value());
  EXPECT_EQ(round->released.size(), 2u);
  EXPECT_EQ(SlotsOf(*round), (std::set<int32_t>{0}));
}

TEST(SchedulerSlotsTest, TakesThemBackFromAbortedSequences) {
  Scheduler s(WithSlots(4));
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(s.Add(MakeRequest(id, 2, 5)).ok());
  }
  ASSERT_TRUE(s.NextRound(Epoch(1)).has_value());
  EXPECT_EQ(s.state_slots_used(), 2);
  EXPECT_TRUE(s.Abort("a"));
  EXPECT_EQ(s.state_slots_used(), 1);
  EXPECT_EQ(s.AbortAll().size(), 1u);
  EXPECT_EQ(s.state_slots_used(), 0);
}

// The other two still run in slots 0 and 1 when it starts over.
TEST(SchedulerSlotsTest, TakesThemBackFromPreemptedSequences) {
  SchedulerOptions o = WithSlots(3);
  o.kv_pages = 3;
  o.prefill_chunk = 16;
  o.max_step_tokens = 48;
  Scheduler s(o);
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_TRUE(s.Add(MakeRequest(id, 14, 8)).ok());
  }
  int64_t most = 0;
  std::set<int32_t> running;
  std::map<SequenceId, int32_t> slot_of;
  for (int rounds = 0; rounds < 100; ++rounds) {
    const std::optional<Round> round = s.NextRound(Epoch(1));
    if (!round.has_value()) break;
    for (const SequenceId id : round->released) {
      running.erase(slot_of.at(id));
    }
    for (const SequenceStart& start : round->starts) {
      slot_of[start.id] = start.state_slot;
      EXPECT_TRUE(running.insert(start.state_slot).second)
          << "slot " << start.state_slot << " has two sequences";
    }
    most = std::max(most, s.state_slots_used());
    for (const StepDescriptor& step : round->steps) Finish(s, step);
  }
  EXPECT_GT(s.preemptions(), 0);
  EXPECT_EQ(most, 3);
  EXPECT_EQ(s.state_slots_used(), 0);
}

TEST(SchedulerSlotsTest, GivesNoneWhereThereAreNone) {
  Scheduler s(Options());
  ASSERT_TRUE(s.Add(MakeRequest("a", 2, 3)).ok());
  EXPECT_EQ(SlotsOf(*s.NextRound(Epoch(1))), (std::set<int32_t>{-1}));
}

}  // namespace
}  // namespace baton
