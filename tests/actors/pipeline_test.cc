// SPDX-License-Identifier: Apache-2.0
// The controller and its stages together, on manual executors.
#include <gtest/gtest.h>

#include "tests/testing/manual_pipeline.h"
#include "tests/testing/tiny_checkpoint.h"

namespace baton {
namespace {

using testing::ManualPipeline;
using testing::ManualPipelineOptions;
using testing::Outcome;
using testing::Submit;

constexpr int kSeeds = 12;

std::vector<int32_t> Prompt(int length, int first) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((first + 17 * i) % 250);
  return prompt;
}

std::vector<Outcome> RunAll(const ManualPipelineOptions& options) {
  ManualPipeline p(options);
  p.Settle();
  std::vector<Outcome> out(4);
  for (int i = 0; i < 4; ++i) {
    p.controller().Tell(Submit(std::to_string(i), Prompt(3 + 5 * i, i), 6 + i,
                               &out[static_cast<size_t>(i)]));
  }
  p.Settle();
  EXPECT_EQ(p.Snapshot().pages_used, 0);
  return out;
}

void ExpectSame(const std::vector<Outcome>& a, const std::vector<Outcome>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].status.ok()) << a[i].status;
    EXPECT_TRUE(b[i].status.ok()) << b[i].status;
    EXPECT_TRUE(b[i].ended);
    EXPECT_EQ(a[i].tokens.size(), 6 + i);
    EXPECT_TRUE(a[i].tokens == b[i].tokens) << "request " << i;
    EXPECT_TRUE(a[i].prompt == b[i].prompt) << "request " << i;
  }
}

class PipelineOrderTest : public ::testing::TestWithParam<int> {};

// Stages and shuffles of message order do not change a bit.
TEST_P(PipelineOrderTest, TokensDoNotDependOnWhoRunsFirst) {
  ManualPipelineOptions one;
  one.stages = 1;
  const std::vector<Outcome> expected = RunAll(one);
  ManualPipelineOptions many;
  many.stages = 2 + GetParam() % 2;
  many.seed = static_cast<uint64_t>(GetParam());
  many.prefill_chunk = 1 + 3 * (GetParam() % 4);
  ExpectSame(expected, RunAll(many));
  many.route = RouteKind::kUnrolled;
  many.stages = 4;
  ExpectSame(expected, RunAll(many));
}
INSTANTIATE_TEST_SUITE_P(Seeds, PipelineOrderTest, ::testing::Range(0, kSeeds));

TEST(PipelineTest, TakesNothingBeforeAllStagesServe) {
  ManualPipeline p(ManualPipelineOptions{});
  Outcome early;
  p.controller().Tell(Submit("early", {1, 2}, 3, &early));
  // The submission comes before the stages' answers.
  p.Settle();
  EXPECT_TRUE(early.ended);
  EXPECT_EQ(early.status.code(), StatusCode::kUnavailable);
  Outcome late;
  p.controller().Tell(Submit("late", {1, 2}, 3, &late));
  p.Settle();
  EXPECT_TRUE(late.status.ok()) << late.status;
  EXPECT_EQ(late.tokens.size(), 3u);
}

TEST(PipelineTest, RefusesBadRequestsAndGoesOn) {
  ManualPipeline p(ManualPipelineOptions{});
  p.Settle();
  Outcome bad;
  p.controller().Tell(Submit("bad", {100000}, 3, &bad));
  p.Settle();
  EXPECT_EQ(bad.status.code(), StatusCode::kInvalidArgument);
  Outcome good;
  p.controller().Tell(Submit("good", {1}, 3, &good));
  p.Settle();
  EXPECT_EQ(good.tokens.size(), 3u);
}

TEST(PipelineTest, EndsRequestsOfALostStageAndServesAgainWhenItIsBack) {
  ManualPipelineOptions options;
  ManualPipeline p(options);
  p.Settle();
  Outcome before;
  p.controller().Tell(Submit("r", Prompt(9, 2), 8, &before));
  p.Settle();
  const Epoch first = p.Snapshot().epoch;

  Outcome cut;
  p.controller().Tell(Submit("cut", Prompt(9, 2), 8, &cut));
  p.Kill(1);
  p.controller().Tell(StageLost{"s1", Unavailable("connection reset")});
  p.Settle();
  EXPECT_TRUE(cut.ended);
  EXPECT_EQ(cut.status.code(), StatusCode::kUnavailable);
  ControllerStatus status = p.Snapshot();
  EXPECT_EQ(status.state, ControllerState::kWaiting);
  EXPECT_NE(status.detail.find("s1"), std::string::npos) << status.detail;
  EXPECT_EQ(status.pages_used, 0);

  p.Restart(1);
  p.Join(1);
  p.Settle();
  status = p.Snapshot();
  EXPECT_EQ(status.state, ControllerState::kServing) << status.detail;
  EXPECT_GT(status.epoch, first);
  Outcome after;
  p.controller().Tell(Submit("r", Prompt(9, 2), 8, &after));
  p.Settle();
  EXPECT_TRUE(after.tokens == before.tokens);
}

// The host of the new stage has another checkpoint of the same shape.
TEST(PipelineTest, RefusesAStageWhoseWeightsAreNotTheOthers) {
  testing::TempFolder folder;
  const std::string from = testing::TinyCheckpoint("nanbeige");
  for (const char* name : {"config.json", "model.safetensors"}) {
    folder.Write(name, testing::ReadBytes(from + "/" + name));
  }
  ManualPipelineOptions options;
  options.checkpoint = folder.path();
  ManualPipeline p(options);
  p.Settle();
  ASSERT_EQ(p.Snapshot().state, ControllerState::kServing);
  const auto replace = [&](int i) {
    p.Kill(i);
    p.controller().Tell(
        StageLost{"s" + std::to_string(i), Unavailable("connection reset")});
    p.Settle();
    p.Restart(i);
    p.Join(i);
    p.Settle();
    return p.Snapshot();
  };

  std::string weights = testing::ReadBytes(from + "/model.safetensors");
  weights[weights.size() / 2] ^= 1;
  folder.Write("model.safetensors", weights);
  ControllerStatus status = replace(1);
  EXPECT_EQ(status.state, ControllerState::kWaiting);
  for (const char* word : {"not the same on all hosts", "s0 ", "s1 "}) {
    EXPECT_NE(status.detail.find(word), std::string::npos) << status.detail;
  }
  // All of them are of the new kind.
  status = replace(0);
  EXPECT_EQ(status.state, ControllerState::kServing) << status.detail;
}

TEST(PipelineTest, RefusesAStageThatIsUnknownOrThereAlready) {
  ManualPipeline p(ManualPipelineOptions{});
  p.Settle();
  std::vector<Status> answers;
  for (const char* name : {"s0", "other"}) {
    StageJoined joined;
    joined.name = name;
    joined.reply = Reply<Done>(
        [&](StatusOr<Done> answer) { answers.push_back(answer.status()); });
    p.controller().Tell(std::move(joined));
  }
  p.Settle();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(answers[1].code(), StatusCode::kFailedPrecondition);
}

// A stage that hears nothing of its peer gives up at the step's deadline, and
// the controller starts over.
TEST(PipelineTest, AStepPastItsDeadlineEndsTheEpochNotTheController) {
  ManualPipeline p(ManualPipelineOptions{});
  p.Settle();
  Outcome stuck;
  p.controller().Tell(Submit("stuck", Prompt(5, 1), 4, &stuck));
  p.Kill(0);  // no word to the controller
  p.Settle();
  p.clock.Advance(absl::Seconds(30));
  p.Settle();
  EXPECT_TRUE(stuck.ended);
  EXPECT_EQ(stuck.status.code(), StatusCode::kUnavailable);
}

// All stages are there, so nobody else will make the controller serve again.
TEST(PipelineTest, ServesAgainAfterAResultThatFitsNoStep) {
  ManualPipeline p(ManualPipelineOptions{});
  p.Settle();
  StepDone bad;
  bad.result.epoch = p.Snapshot().epoch;
  bad.result.step = StepId(12345);
  p.controller().Tell(std::move(bad));
  p.Settle();
  EXPECT_EQ(p.Snapshot().state, ControllerState::kServing);
  Outcome after;
  p.controller().Tell(Submit("r", Prompt(5, 1), 4, &after));
  p.Settle();
  EXPECT_EQ(after.tokens.size(), 4u);
}

// What a stage answers to the first attempt to start. The attempt's epoch is
// the one after the controller's first, which is its time.
StageAnswered FirstAnswer(ManualPipeline& p, Status status) {
  StageAnswered answer;
  answer.attempt =
      Epoch(static_cast<uint64_t>(absl::ToUnixMicros(p.clock.Now())) + 1);
  answer.stage = StageId(1);
  answer.status = std::move(status);
  return answer;
}

TEST(PipelineTest, TriesAgainAfterAStartThatFailedForATime) {
  ManualPipeline p(ManualPipelineOptions{});
  p.controller().Tell(FirstAnswer(p, Unavailable("no route")));
  p.Settle();
  ControllerStatus status = p.Snapshot();
  EXPECT_EQ(status.state, ControllerState::kWaiting);
  EXPECT_EQ(status.detail, "stage s1: no route");
  p.clock.Advance(absl::Seconds(5));
  p.Settle();
  EXPECT_EQ(p.Snapshot().state, ControllerState::kServing);
}

TEST(PipelineTest, DoesNotTryAgainWhatCannotWork) {
  ManualPipeline p(ManualPipelineOptions{});
  p.controller().Tell(FirstAnswer(p, InvalidArgument("no such tensor")));
  p.Settle();
  p.clock.Advance(absl::Minutes(10));
  p.Settle();
  EXPECT_EQ(p.Snapshot().state, ControllerState::kWaiting);
}

TEST(PipelineTest, StaysStoppedWhenItsStagesGoAndComeBack) {
  ManualPipeline p(ManualPipelineOptions{});
  p.Settle();
  p.controller().Tell(DrainController{absl::InfiniteFuture(), {}});
  p.controller().Tell(StageLost{"s1", Unavailable("connection reset")});
  p.Settle();
  EXPECT_EQ(p.Snapshot().state, ControllerState::kStopped);
  p.Join(1);
  p.Settle();
  EXPECT_EQ(p.Snapshot().state, ControllerState::kStopped);
}

TEST(PipelineTest, WhoAwaitsServingHearsThatItStops) {
  ManualPipeline p(ManualPipelineOptions{});
  std::vector<Status> answers;
  auto await = [&] {
    p.controller().Tell(AwaitServing{Reply<Done>(
        [&](StatusOr<Done> answer) { answers.push_back(answer.status()); })});
  };
  await();
  p.controller().Tell(DrainController{absl::InfiniteFuture(), {}});
  await();
  p.Settle();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].code(), StatusCode::kUnavailable);
  EXPECT_EQ(answers[1].code(), StatusCode::kUnavailable);
}

TEST(PipelineTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  ManualPipeline p(ManualPipelineOptions{});
  p.Settle();
  Outcome running;
  Outcome late;
  bool drained = false;
  p.controller().Tell(Submit("running", Prompt(5, 1), 7, &running));
  DrainController drain;
  drain.deadline = p.clock.Now() + absl::Seconds(5);
  drain.reply = Reply<Done>([&](StatusOr<Done> d) { drained = d.ok(); });
  p.controller().Tell(std::move(drain));
  p.controller().Tell(Submit("late", Prompt(5, 1), 7, &late));
  p.Settle();
  EXPECT_EQ(running.tokens.size(), 7u);
  EXPECT_TRUE(running.status.ok());
  EXPECT_EQ(late.status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(drained);
  EXPECT_EQ(p.Snapshot().state, ControllerState::kStopped);
}

TEST(PipelineTest, AStageMayLeaveOnceItsRequestsAreDone) {
  ManualPipeline p(ManualPipelineOptions{});
  p.Settle();
  Outcome running;
  bool may_leave = false;
  p.controller().Tell(Submit("running", Prompt(5, 1), 7, &running));
  StageLeaving leaving;
  leaving.name = "s1";
  leaving.reply = Reply<Done>([&](StatusOr<Done> d) { may_leave = d.ok(); });
  p.controller().Tell(std::move(leaving));
  p.Settle();
  EXPECT_TRUE(may_leave);
  EXPECT_EQ(running.tokens.size(), 7u);
  EXPECT_EQ(p.Snapshot().state, ControllerState::kWaiting);
}

class PreemptionTest : public ::testing::TestWithParam<int> {};

// Sequences lose their pages while steps of theirs are on the way, and start
// over from what they have.
TEST_P(PreemptionTest, ChangesNoToken) {
  const std::vector<Outcome> expected = RunAll(ManualPipelineOptions{});
  ManualPipelineOptions few;
  few.stages = 2 + GetParam() % 2;
  few.seed = static_cast<uint64_t>(GetParam());
  few.kv_pages = 3;
  ManualPipeline p(few);
  p.Settle();
  std::vector<Outcome> out(4);
  // The first to come outgrows its page when the others have theirs.
  for (int i : {2, 0, 1, 3}) {
    p.controller().Tell(Submit(std::to_string(i), Prompt(3 + 5 * i, i), 6 + i,
                               &out[static_cast<size_t>(i)]));
  }
  p.Settle();
  ExpectSame(expected, out);
  EXPECT_GT(p.Snapshot().preemptions, 0);
  EXPECT_EQ(p.Snapshot().pages_used, 0);
  for (int i = 0; i < few.stages; ++i) EXPECT_EQ(p.stage(i).sequences(), 0);
}
INSTANTIATE_TEST_SUITE_P(Seeds, PreemptionTest, ::testing::Range(0, kSeeds));

class AbortTest : public ::testing::TestWithParam<int> {};

// At whatever point of its life a request is aborted, all it had comes back.
TEST_P(AbortTest, LeavesNothingBehind) {
  ManualPipelineOptions options;
  options.seed = static_cast<uint64_t>(GetParam());
  ManualPipeline p(options);
  p.Settle();
  Outcome aborted;
  Outcome other;
  p.controller().Tell(Submit("a", Prompt(11, 3), 9, &aborted));
  p.controller().Tell(Submit("b", Prompt(7, 5), 9, &other));
  p.RunSome(40 * GetParam());
  p.controller().Tell(AbortRequest{"a"});
  p.controller().Tell(AbortRequest{"never was"});
  p.Settle();
  EXPECT_TRUE(aborted.ended);
  EXPECT_EQ(other.tokens.size(), 9u);
  EXPECT_EQ(p.Snapshot().pages_used, 0);
  EXPECT_EQ(p.stage(0).sequences(), 0);
  EXPECT_EQ(p.stage(1).sequences(), 0);
}
INSTANTIATE_TEST_SUITE_P(Seeds, AbortTest, ::testing::Range(0, kSeeds));

}  // namespace
}  // namespace baton
