// SPDX-License-Identifier: Apache-2.0
#include "actors/stage_actor.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/testing/manual_pipeline.h"
#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

// The first of two stages alone on a manual executor; the test is controller
// and second stage.
class StageActorTest : public ::testing::Test {
 protected:
  StageActorTest() : executor_(&clock_), network_(NewInprocNetwork()) {
    RegisterCpuKernels(kernels_, CpuIsa::kReference);
    StageOptions options;
    options.name = "under_test";
    options.devices.push_back(NewCpuDevice(1));
    options.kernels = &kernels_;
    options.make_data_plane = [this](DataPlaneEvents events) {
      return StatusOr<std::unique_ptr<DataPlane>>(
          NewInprocDataPlane(network_, std::move(events)));
    };
    options.on_step_done = [this](StepDone d) { done_.push_back(d.result); };
    options.on_failed = [this](StageFailed f) { failed_.push_back(f.status); };
    options.stops = [this] { return ++asked_ > stop_after_; };
    actor_ = *StageActor::Create(executor_, std::move(options));
    DataPlaneEvents events;
    events.on_packet = [this](Packet p) { sent_.push_back(p.header); };
    peer_ = NewInprocDataPlane(network_, std::move(events));
    model_ = *OpenModel(testing::TinyCheckpoint("apertus"), DType::kF32,
                        WeightsCheck::kStrict);
  }

  void Settle() {
    while (executor_.RunOne() || actor_->data_plane().Progress() ||
           peer_->Progress()) {
    }
  }

  Status Load() {
    LoadStage load;
    load.spec.checkpoint = model_.directory;
    load.spec.config = model_.config_text;
    load.spec.ranges = {{0, 2}};
    load.spec.dtype = DType::kF32;
    load.spec.kv = {.pages = 8, .window_pages = 4, .state_slots = 2};
    return Ask(std::move(load));
  }
  Status Connect(uint64_t epoch) {
    session_.epoch = Epoch(epoch);
    session_.key = 77;
    session_.max_packet_bytes = 1 << 20;
    EXPECT_THAT(peer_->Connect(session_, StageId(1),
                               {{StageId(0), actor_->DataAddress()}}),
                testing::IsOk());
    ConnectStage connect;
    connect.session = session_;
    connect.self = StageId(0);
    connect.num_stages = 2;
    connect.passes = 1;
    connect.max_step_rows = 6;
    connect.step_deadline = absl::Seconds(10);
    connect.peers = {{StageId(1), peer_->Address()}};
    return Ask(std::move(connect));
  }
  template <typename M>
  Status Ask(M message) {
    Status status(StatusCode::kUnknown, "no answer");
    message.reply =
        decltype(message.reply)([&](auto answer) { status = answer.status(); });
    actor_->ref().Tell(std::move(message));
    Settle();
    return status;
  }
  // A round of one step: sequence 1, a prompt of three tokens.
  Round Prompt() {
    Round round;
    round.epoch = session_.epoch;
    round.round = RoundId(1);
    round.starts = {{SequenceId(1), {}}};
    StepDescriptor& step = round.steps.emplace_back();
    step.step = StepId(1);
    StepSequence& part = step.sequences.emplace_back();
    part.id = SequenceId(1);
    part.rows = 3;
    part.ids = {4, 5, 6};
    part.new_pages = {0};
    part.wants_token = true;
    return round;
  }
  Round Decode() {
    Round round;
    round.epoch = session_.epoch;
    round.round = RoundId(2);
    StepDescriptor& step = round.steps.emplace_back();
    step.step = StepId(2);
    StepSequence& part = step.sequences.emplace_back();
    part.id = SequenceId(1);
    part.first_position = 3;
    part.rows = 1;
    part.token_from = StepId(1);
    part.wants_token = true;
    return round;
  }
  void Run(Round round) {
    actor_->ref().Tell(RunRound{std::move(round)});
    Settle();
  }
  void SendTokens(std::vector<int32_t> tokens) {
    PacketHeader header;
    header.epoch = session_.epoch;
    header.step = StepId(1);
    header.kind = PacketKind::kTokens;
    header.dtype = DType::kI32;
    header.rows = static_cast<int32_t>(tokens.size());
    header.columns = 1;
    Tensor payload = *Tensor::AllocateHost(DType::kI32, {header.rows, 1});
    for (size_t i = 0; i < tokens.size(); ++i) {
      *payload.view().Row<int32_t>(static_cast<int64_t>(i)) = tokens[i];
    }
    EXPECT_THAT(peer_->Send(StageId(0), header, std::move(payload)),
                testing::IsOk());
    Settle();
  }

  testing::FakeClock clock_;
  ManualExecutor executor_;
  std::shared_ptr<InprocNetwork> network_;
  KernelRegistry kernels_;
  std::unique_ptr<StageActor> actor_;
  std::unique_ptr<DataPlane> peer_;
  OpenedModel model_;
  SessionInfo session_;
  std::vector<StepResult> done_;
  std::vector<Status> failed_;
  std::vector<PacketHeader> sent_;
  int asked_ = 0;  // whether to stop loading
  int stop_after_ = std::numeric_limits<int>::max();
};

TEST_F(StageActorTest, RefusesToConnectBeforeLoad) {
  EXPECT_THAT(Connect(1), StatusIs(StatusCode::kFailedPrecondition,
                                   HasSubstr("nothing loaded")));
}

TEST_F(StageActorTest, GivesALoadUpWhenTheProcessIsToEnd) {
  stop_after_ = 3;
  EXPECT_THAT(Load(), StatusIs(StatusCode::kUnavailable,
                               HasSubstr("the process is to end")));
  EXPECT_EQ(asked_, 4) << "what comes after is not read";
  EXPECT_THAT(Connect(1), StatusIs(StatusCode::kFailedPrecondition));
  stop_after_ = std::numeric_limits<int>::max();
  EXPECT_THAT(Load(), testing::IsOk());
  EXPECT_GT(asked_, 20);
}

TEST_F(StageActorTest, IgnoresARoundBeforeItIsConnected) {
  ASSERT_THAT(Load(), testing::IsOk());
  Run(Prompt());
  EXPECT_TRUE(sent_.empty());
  EXPECT_TRUE(failed_.empty());
}

TEST_F(StageActorTest, SendsTheStreamThatTheStepDescribes) {
  ASSERT_THAT(Load(), testing::IsOk());
  ASSERT_THAT(Connect(5), testing::IsOk());
  Run(Prompt());
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].step, StepId(1));
  EXPECT_EQ(sent_[0].rows, 3);
  EXPECT_EQ(sent_[0].columns, model_.info.hidden);
  EXPECT_EQ(sent_[0].dtype, DType::kF32);
}

TEST_F(StageActorTest, WaitsForTheTokenOfTheStepBefore) {
  ASSERT_THAT(Load(), testing::IsOk());
  ASSERT_THAT(Connect(5), testing::IsOk());
  Run(Prompt());
  Run(Decode());
  EXPECT_EQ(sent_.size(), 1u);
  SendTokens({9});
  EXPECT_EQ(sent_.size(), 2u);
  EXPECT_TRUE(failed_.empty());
}

TEST_F(StageActorTest, GivesUpAtTheDeadlineOfAMissingInput) {
  ASSERT_THAT(Load(), testing::IsOk());
  ASSERT_THAT(Connect(5), testing::IsOk());
  Run(Prompt());
  Run(Decode());
  clock_.Advance(absl::Seconds(11));
  Settle();
  ASSERT_EQ(failed_.size(), 1u);
  EXPECT_EQ(failed_[0].code(), StatusCode::kDeadlineExceeded);
}

TEST_F(StageActorTest, RefusesTokensThatAreNotDueOrOutOfRange) {
  for (const std::vector<int32_t>& tokens :
       {std::vector<int32_t>{1, 2}, {1 << 20}, {-1}}) {
    failed_.clear();
    ASSERT_THAT(Load(), testing::IsOk());
    ASSERT_THAT(Connect(session_.epoch.value() + 1), testing::IsOk());
    Run(Prompt());
    SendTokens(tokens);
    ASSERT_EQ(failed_.size(), 1u);
    EXPECT_EQ(failed_[0].code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(StageActorTest, DropsARoundOfAnotherEpoch) {
  ASSERT_THAT(Load(), testing::IsOk());
  ASSERT_THAT(Connect(5), testing::IsOk());
  Round stale = Prompt();
  stale.epoch = Epoch(4);
  Run(std::move(stale));
  EXPECT_TRUE(sent_.empty());
  EXPECT_TRUE(failed_.empty());
}

TEST_F(StageActorTest, RefusesWindowPagesThatDoNotFit) {
  model_ = *OpenModel(testing::TinyCheckpoint("exaone4-hybrid"), DType::kF32,
                      WeightsCheck::kStrict);
  for (const std::vector<PageId>& pages :
       {std::vector<PageId>{}, {4}, {-1}, {3}}) {
    failed_.clear();
    ASSERT_THAT(Load(), testing::IsOk());
    ASSERT_THAT(Connect(session_.epoch.value() + 1), testing::IsOk());
    Round round = Prompt();
    round.steps[0].sequences[0].new_window_pages = pages;
    Run(std::move(round));
    const bool fits = pages == std::vector<PageId>{3};
    EXPECT_EQ(failed_.empty(), fits);
    if (fits) continue;
    EXPECT_EQ(failed_[0].code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(StageActorTest, RefusesADescriptorThatDoesNotFit) {
  const std::vector<std::function<void(Round&)>> faults = {
      [](Round& r) { r.starts.clear(); },
      [](Round& r) { r.starts.push_back(r.starts[0]); },
      [](Round& r) { r.steps.push_back(r.steps[0]); },
      [](Round& r) { r.steps[0].sequences[0].rows = 2; },
      [](Round& r) { r.steps[0].sequences[0].rows = 0; },
      [](Round& r) { r.steps[0].sequences[0].rows = -3; },
      [](Round& r) { r.steps[0].sequences[0].ids[1] = 1 << 20; },
      [](Round& r) { r.steps[0].sequences[0].ids[1] = -1; },
      [](Round& r) { r.steps[0].sequences[0].first_position = 1; },
      [](Round& r) { r.steps[0].sequences[0].new_pages = {8}; },
      [](Round& r) { r.steps[0].sequences[0].new_pages = {-1}; },
      [](Round& r) { r.steps[0].sequences[0].new_pages.clear(); },
      [](Round& r) { r.steps[0].sequences[0].new_window_pages = {0}; },
      [](Round& r) {
        r.steps[0].sequences[0].targets = {1, 2, 3};
      },
      [](Round& r) {
        r.steps[0].sequences[0].targets = {1, -2};
      },
      [](Round& r) {
        r.steps[0].sequences[0].rows = 7;
        r.steps[0].sequences[0].ids.assign(7, 1);
      },
  };
  for (size_t i = 0; i < faults.size(); ++i) {
    failed_.clear();
    sent_.clear();
    ASSERT_THAT(Load(), testing::IsOk());
    ASSERT_THAT(Connect(session_.epoch.value() + 1), testing::IsOk());
    Round round = Prompt();
    faults[i](round);
    Run(std::move(round));
    ASSERT_EQ(failed_.size(), 1u) << "fault " << i;
    EXPECT_EQ(failed_[0].code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(sent_.empty());
  }
}

TEST_F(StageActorTest, RefusesStateSlotsThatDoNotFit) {
  model_ = *OpenModel(testing::TinyCheckpoint("kimi-linear"), DType::kF32,
                      WeightsCheck::kStrict);
  const std::vector<std::vector<int32_t>> faults = {{-1}, {2}, {1, 1}};
  for (const std::vector<int32_t>& slots : faults) {
    failed_.clear();
    ASSERT_THAT(Load(), testing::IsOk());
    ASSERT_THAT(Connect(session_.epoch.value() + 1), testing::IsOk());
    Round round = Prompt();
    round.starts.clear();
    for (size_t i = 0; i < slots.size(); ++i) {
      round.starts.push_back({SequenceId(1 + i), {}, 3, slots[i]});
    }
    Run(std::move(round));
    ASSERT_EQ(failed_.size(), 1u);
    EXPECT_THAT(failed_[0], StatusIs(StatusCode::kInvalidArgument,
                                     HasSubstr("state slot")));
  }
}

TEST_F(StageActorTest, RefusesAStateSlotWhereNoLayerNeedsOne) {
  ASSERT_THAT(Load(), testing::IsOk());
  ASSERT_THAT(Connect(5), testing::IsOk());
  Round round = Prompt();
  round.starts[0].state_slot = 0;
  Run(std::move(round));
  ASSERT_EQ(failed_.size(), 1u);
  EXPECT_EQ(failed_[0].code(), StatusCode::kInvalidArgument);
}

// A slot is free again for the round that releases its sequence.
TEST_F(StageActorTest, HandsAStateSlotOnInTheRoundThatReleasesIt) {
  model_ = *OpenModel(testing::TinyCheckpoint("kimi-linear"), DType::kF32,
                      WeightsCheck::kStrict);
  ASSERT_THAT(Load(), testing::IsOk());
  ASSERT_THAT(Connect(5), testing::IsOk());
  Round first = Prompt();
  first.starts[0].state_slot = 1;
  Run(first);
  Round second = first;
  second.round = RoundId(2);
  second.released = {SequenceId(1)};
  second.starts[0].id = SequenceId(2);
  second.steps[0].step = StepId(2);
  second.steps[0].sequences[0].id = SequenceId(2);
  Run(std::move(second));
  EXPECT_TRUE(failed_.empty());
  EXPECT_EQ(sent_.size(), 2u);
}

TEST_F(StageActorTest, RefusesAConfigThatIsNotTheControllers) {
  model_.config_text += " ";
  EXPECT_THAT(Load(), StatusIs(StatusCode::kFailedPrecondition,
                               HasSubstr("different")));
}

TEST_F(StageActorTest, KeepsWeightsOverSessions) {
  ASSERT_THAT(Load(), testing::IsOk());
  ASSERT_THAT(Connect(1), testing::IsOk());
  Run(Prompt());
  EXPECT_THAT(Ask(EndSession{}), testing::IsOk());
  EXPECT_EQ(actor_->sequences(), 0);
  ASSERT_THAT(Connect(2), testing::IsOk());
  Run(Prompt());
  EXPECT_EQ(sent_.size(), 2u);
}

TEST_F(StageActorTest, SaysWhenItsPeerIsLost) {
  ASSERT_THAT(Load(), testing::IsOk());
  ASSERT_THAT(Connect(1), testing::IsOk());
  peer_.reset();
  while (executor_.RunOne() || actor_->data_plane().Progress()) {
  }
  ASSERT_EQ(failed_.size(), 1u);
  EXPECT_EQ(failed_[0].code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton
