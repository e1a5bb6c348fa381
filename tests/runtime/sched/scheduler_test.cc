// SPDX-License-Identifier: Apache-2.0
#include "runtime/sched/scheduler.h"

#include <deque>

#include "tests/runtime/sched/scheduler_testing.h"

namespace baton::testing {
namespace {

// Steps that a stage runs in the order of issue: a slot twice in a row would
// wait there for its own token while the other's is at hand.
TEST(SchedulerTest, SlotsTakeTurnsInWhateverOrderTheyComplete) {
  SchedulerOptions o = Options();
  o.slots = 2;
  o.prefill_chunk = 0;
  o.max_sequences = 2;
  o.kv_pages = 64;
  Scheduler s(o);
  // The first prompt is seen alone, so that its slot is a step ahead.
  ASSERT_TRUE(s.Add(MakeRequest("a", 3, 40)).ok());
  std::vector<StepDescriptor> issued;
  auto issue = [&] {
    while (std::optional<Round> round = s.NextRound(Epoch(1))) {
      for (StepDescriptor& step : round->steps) {
        issued.push_back(std::move(step));
      }
    }
  };
  issue();
  ASSERT_TRUE(s.Add(MakeRequest("b", 3, 40)).ok());
  issue();
  size_t done = 0;
  for (int i = 0; i < 40; ++i) {
    Finish(s, issued[done++]);
    issue();
  }
  for (size_t i = 8; i < issued.size(); ++i) {
    EXPECT_NE(issued[i].slot, issued[i - 1].slot) << "step " << i;
  }
}

TEST(SchedulerTest, CutsAPromptIntoChunksAndWantsATokenAfterTheLast) {
  Scheduler s(Options());
  ASSERT_TRUE(s.Add(MakeRequest("a", 6, 3)).ok());
  const Round first = *s.NextRound(Epoch(1));
  ASSERT_EQ(first.steps.size(), 1u);
  EXPECT_EQ(first.starts.size(), 1u);
  EXPECT_EQ(first.steps[0].sequences[0].ids,
            (std::vector<int32_t>{10, 11, 12, 13}));
  EXPECT_FALSE(first.steps[0].sequences[0].wants_token);
  EXPECT_EQ(first.steps[0].sequences[0].new_pages, (std::vector<PageId>{0}));
  const Round second = *s.NextRound(Epoch(1));
  EXPECT_TRUE(second.starts.empty());
  EXPECT_EQ(second.steps[0].sequences[0].first_position, 4);
  EXPECT_EQ(second.steps[0].sequences[0].ids, (std::vector<int32_t>{14, 15}));
  EXPECT_TRUE(second.steps[0].sequences[0].wants_token);
  EXPECT_FALSE(s.NextRound(Epoch(1)).has_value()) << "two steps in flight";
}

TEST(SchedulerTest, RunsAheadOfTokensItDoesNotKnow) {
  Scheduler s(Options());
  ASSERT_TRUE(s.Add(MakeRequest("a", 3, 4)).ok());
  const Round first = *s.NextRound(Epoch(1));
  const Round ahead = *s.NextRound(Epoch(1));
  const StepSequence& part = ahead.steps[0].sequences[0];
  EXPECT_TRUE(part.ids.empty());
  EXPECT_EQ(part.token_from, first.steps[0].step);
  EXPECT_EQ(part.first_position, 3);
}

TEST(SchedulerTest, GivesExactlyMaxTokens) {
  for (int64_t max_tokens : {1, 2, 3, 7}) {
    Scheduler s(Options());
    ASSERT_TRUE(s.Add(MakeRequest("a", 5, max_tokens)).ok());
    std::deque<StepDescriptor> queue;
    int64_t tokens = 0;
    bool finished = false;
    while (true) {
      while (auto round = s.NextRound(Epoch(1))) {
        for (auto& step : round->steps) queue.push_back(step);
      }
      if (queue.empty()) break;
      for (const TokenEvent& e : Finish(s, queue.front())) {
        tokens += e.token.has_value() ? 1 : 0;
        finished = finished || e.finished == FinishReason::kLength;
      }
      queue.pop_front();
    }
    EXPECT_EQ(tokens, max_tokens);
    EXPECT_TRUE(finished);
    EXPECT_EQ(s.pages_used(), 0);
  }
}

TEST(SchedulerTest, ThrowsAwayWhatRanPastAStopId) {
  Scheduler s(Options());
  Request r = MakeRequest("a", 3, 10);
  r.stop_ids = {3 * 7 % 50};  // the first token the fake stage gives
  ASSERT_TRUE(s.Add(r).ok());
  const Round first = *s.NextRound(Epoch(1));
  const Round ahead = *s.NextRound(Epoch(1));
  const std::vector<TokenEvent> events = Finish(s, first.steps[0]);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finished, FinishReason::kStop);
  EXPECT_EQ(s.pages_used(), 0);
  EXPECT_TRUE(Finish(s, ahead.steps[0]).empty());
}

TEST(SchedulerTest, FreesPagesOfAnAbortedRequestAtOnce) {
  Scheduler s(Options());
  ASSERT_TRUE(s.Add(MakeRequest("a", 6, 3)).ok());
  const Round first = *s.NextRound(Epoch(1));
  EXPECT_GT(s.pages_used(), 0);
  EXPECT_TRUE(s.Abort("a"));
  EXPECT_EQ(s.pages_used(), 0);
  EXPECT_FALSE(s.Abort("a"));
  const Round told = *s.NextRound(Epoch(1));
  EXPECT_EQ(told.released, (std::vector<SequenceId>{first.starts[0].id}));
  EXPECT_TRUE(told.steps.empty());
  EXPECT_TRUE(Finish(s, first.steps[0]).empty());
}

TEST(SchedulerTest, SpreadsSequencesOverSlots) {
  SchedulerOptions o = Options();
  o.slots = 2;
  Scheduler s(o);
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_TRUE(s.Add(MakeRequest(id, 2, 3)).ok());
  }
  const Round round = *s.NextRound(Epoch(1));
  ASSERT_EQ(round.steps.size(), 2u);
  EXPECT_EQ(round.steps[0].sequences.size(), 2u);
  EXPECT_EQ(round.steps[1].sequences.size(), 1u);
}

// Each fits the pool alone, but not beside the other: the second waits, rather
// than start and be preempted by the first's own prompt.
TEST(SchedulerTest, AdmitsNoPromptIntoPagesPromisedToAnother) {
  SchedulerOptions o = Options();
  o.kv_pages = 8;
  Scheduler s(o);
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(s.Add(MakeRequest(id, 90, 4)).ok());
  }
  std::string order;
  while (auto round = s.NextRound(Epoch(1))) {
    for (const StepDescriptor& step : round->steps) {
      for (const TokenEvent& e : Finish(s, step)) order += e.request;
    }
  }
  EXPECT_EQ(order, "aaaabbbb");
  EXPECT_EQ(s.preemptions(), 0);
}

TEST(SchedulerTest, KeepsRoundsWholeOnALoopedRoute) {
  SchedulerOptions o = Options();
  o.slots = 2;
  o.passes = 2;
  Scheduler s(o);
  ASSERT_TRUE(s.Add(MakeRequest("a", 2, 5)).ok());
  ASSERT_TRUE(s.Add(MakeRequest("b", 2, 5)).ok());
  const Round first = *s.NextRound(Epoch(1));
  ASSERT_TRUE(s.NextRound(Epoch(1)).has_value());
  Finish(s, first.steps[0]);
  EXPECT_FALSE(s.NextRound(Epoch(1)).has_value()) << "slot 1 is still full";
  Finish(s, first.steps[1]);
  EXPECT_EQ(s.NextRound(Epoch(1))->steps.size(), 2u);
}

TEST(SchedulerTest, ReportsPromptLogprobsOfEveryPosition) {
  Scheduler s(Options());
  Request r = MakeRequest("a", 6, 1);
  r.sampling.prompt_logprobs = 2;
  ASSERT_TRUE(s.Add(r).ok());
  std::vector<int32_t> targets;
  while (auto round = s.NextRound(Epoch(1))) {
    for (const StepDescriptor& step : round->steps) {
      for (const TokenEvent& e : Finish(s, step)) {
        for (const SampleResult& p : e.prompt_logprobs) {
          targets.push_back(p.token);
        }
      }
    }
  }
  EXPECT_EQ(targets, (std::vector<int32_t>{11, 12, 13, 14, 15}));
}

TEST(SchedulerTest, RefusesAResultThatDoesNotFit) {
  Scheduler s(Options());
  ASSERT_TRUE(s.Add(MakeRequest("a", 3, 2)).ok());
  const Round first = *s.NextRound(Epoch(1));
  StepResult wrong = Answer(first.steps[0], Epoch(1));
  wrong.step = StepId(99);
  EXPECT_EQ(s.Complete(wrong).status().code(), StatusCode::kInvalidArgument);
  wrong = Answer(first.steps[0], Epoch(1));
  wrong.sequences[0].samples.clear();
  EXPECT_EQ(s.Complete(wrong).status().code(), StatusCode::kInvalidArgument);
  wrong = Answer(first.steps[0], Epoch(1));
  wrong.sequences[0].id = SequenceId(77);
  EXPECT_EQ(s.Complete(wrong).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Finish(s, first.steps[0]).size(), 1u);
}

TEST(SchedulerTest, RefusesAFullQueueAndAnIdInUse) {
  SchedulerOptions o = Options();
  o.max_queue = 1;
  Scheduler s(o);
  ASSERT_TRUE(s.Add(MakeRequest("a", 2, 2)).ok());
  EXPECT_EQ(s.Add(MakeRequest("a", 2, 2)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(s.Add(MakeRequest("b", 2, 2)).code(),
            StatusCode::kResourceExhausted);
}

TEST(VisitOrderTest, RunsAPassOverAllStepsBeforeTheNext) {
  EXPECT_EQ(VisitOrder(2, 2),
            (std::vector<Visit>{{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
  EXPECT_TRUE(VisitOrder(3, 0).empty());
}

}  // namespace
}  // namespace baton::testing
