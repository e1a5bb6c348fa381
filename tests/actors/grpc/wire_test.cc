// SPDX-License-Identifier: Apache-2.0
#include "actors/wire.h"

#include <gtest/gtest.h>

#include <cmath>

#include "actors/version.h"
#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using ::baton::testing::IsOk;
using ::baton::testing::IsOkAndHolds;
using ::baton::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

Round SomeRound() {
  StepSequence prompt;
  prompt.id = SequenceId(5);
  prompt.first_position = 0;
  prompt.rows = 3;
  prompt.ids = {0, 7, 9};
  prompt.new_pages = {0, 4};
  prompt.new_window_pages = {3, 0};
  prompt.wants_token = true;
  prompt.targets = {7, 9};
  StepSequence decode;
  decode.id = SequenceId(6);
  decode.first_position = 20;
  decode.rows = 1;
  decode.token_from = StepId(11);
  decode.wants_token = true;
  StepDescriptor step;
  step.step = StepId(12);
  step.slot = 0;
  step.sequences = {prompt, decode};
  Round round;
  round.epoch = Epoch(3);
  round.round = RoundId(8);
  round.released = {SequenceId(1), SequenceId(2)};
  SamplingParams sampling;
  sampling.temperature = 0.7f;
  sampling.top_k = 40;
  sampling.top_p = 0.9f;
  sampling.min_p = 0.05f;
  sampling.seed = 0xfedcba9876543210;
  sampling.top_logprobs = 5;
  sampling.prompt_logprobs = 2;
  sampling.digest = true;
  round.starts = {{SequenceId(5), sampling, 3, 0},
                  {SequenceId(7), sampling, 4}};
  round.steps = {step};
  return round;
}

StageSpec SomeSpec() {
  StageSpec spec;
  spec.checkpoint = "/models/tiny";
  spec.config = "{}";
  spec.random_seed = 9;
  spec.ranges = {{0, 2}, {4, 6}};
  spec.dtype = DType::kF32;
  spec.kv = {.pages = 100, .window_pages = 30, .state_slots = 6};
  spec.tp = 2;
  return spec;
}

v1::ConnectRequest SomeConnect() {
  ConnectStage connect;
  connect.session = {
      .epoch = Epoch(2), .key = 0, .max_packet_bytes = 4096, .credits = 8};
  connect.self = StageId(0);
  connect.num_stages = 2;
  connect.passes = 3;
  connect.max_step_rows = 512;
  connect.step_deadline = absl::Seconds(60);
  connect.peers = {{StageId(1), std::string("\0addr", 5)}};
  return ToProto(connect);
}

TEST(WireTest, RoundsComeBackAsTheyWere) {
  const Round round = SomeRound();
  EXPECT_THAT(FromProto(ToProto(round)), IsOkAndHolds(round));
}

TEST(WireTest, AnEmptyRoundStillReleases) {
  Round round;
  round.epoch = Epoch(1);
  round.round = RoundId(1);
  round.released = {SequenceId(4)};
  EXPECT_THAT(FromProto(ToProto(round)), IsOkAndHolds(round));
}

TEST(WireTest, ResultsComeBackAsTheyWere) {
  SampleResult sample;
  sample.token = 0;
  sample.logprob = -0.25f;
  sample.top = {{0, -0.25f}, {8, -INFINITY}};
  sample.digest = 77;
  StepResult result;
  result.epoch = Epoch(3);
  result.step = StepId(12);
  result.sequences = {{SequenceId(5), {sample}}, {SequenceId(6), {}}};
  EXPECT_THAT(FromProto(ToProto(result)), IsOkAndHolds(result));
}

TEST(WireTest, SpecsAndPlacementsComeBackAsTheyWere) {
  EXPECT_THAT(FromProto(ToProto(SomeSpec())), IsOkAndHolds(SomeSpec()));
  Placement placement;
  placement.passes = 2;
  placement.stages = {{"a", {{0, 1}, {3, 4}}}, {"b", {{1, 3}, {4, 6}}}};
  EXPECT_THAT(FromProto(ToProto(placement)), IsOkAndHolds(placement));
}

TEST(WireTest, WhatAStageHasLoadedComesBackAsItWas) {
  StageLoaded loaded;
  loaded.weight_bytes = 12;
  loaded.kv_bytes = 34;
  loaded.seconds = 0.5;
  loaded.fingerprint = 0xfedcba9876543210u;
  loaded.data_address = std::string("a\0b", 3);
  const StatusOr<StageLoaded> back = FromProto(ToProto(loaded));
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->weight_bytes, loaded.weight_bytes);
  EXPECT_EQ(back->kv_bytes, loaded.kv_bytes);
  EXPECT_EQ(back->seconds, loaded.seconds);
  EXPECT_EQ(back->fingerprint, loaded.fingerprint);
  EXPECT_EQ(back->data_address, loaded.data_address);
}

TEST(WireTest, ConnectComesBackAsItWas) {
  StatusOr<ConnectStage> connect = FromProto(SomeConnect());
  ASSERT_THAT(connect, IsOk());
  EXPECT_EQ(ToProto(*connect).SerializeAsString(),
            SomeConnect().SerializeAsString());
}

TEST(WireTest, FailuresKeepTheirCode) {
  StageFailed failed;
  failed.epoch = Epoch(4);
  failed.stage = StageId(0);
  failed.status = DeadlineExceeded("no stream from stage 1");
  StatusOr<StageFailed> back = FromProto(ToProto(failed));
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->status, failed.status);
  EXPECT_EQ(back->epoch, failed.epoch);
}

// Each change makes the round a bad one.
void ExpectRefused(void (*change)(v1::Round&), const std::string& message) {
  v1::Round round = ToProto(SomeRound());
  change(round);
  EXPECT_THAT(FromProto(round),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr(message)));
}

TEST(WireTest, RefusesRoundsThatLackAField) {
  ExpectRefused([](v1::Round& r) { r.clear_epoch(); }, "epoch");
  ExpectRefused([](v1::Round& r) { r.clear_round(); }, "round");
  ExpectRefused([](v1::Round& r) { r.mutable_steps(0)->clear_step(); }, "step");
  ExpectRefused([](v1::Round& r) { r.mutable_steps(0)->clear_slot(); }, "slot");
  ExpectRefused([](v1::Round& r) { r.mutable_starts(0)->clear_sampling(); },
                "sampling");
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_starts(0)->mutable_sampling()->clear_temperature();
      },
      "sampling");
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_steps(0)->mutable_sequences(0)->clear_first_position();
      },
      "first_position");
  ExpectRefused([](v1::Round& r) { r.mutable_steps(0)->clear_sequences(); },
                "sequences");
}

TEST(WireTest, RefusesRoundsWhoseRowsDoNotAddUp) {
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_steps(0)->mutable_sequences(0)->set_rows(2);
      },
      "3 ids for 2 rows");
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_steps(0)->mutable_sequences(1)->set_rows(2);
      },
      "2 rows without ids");
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_steps(0)->mutable_sequences(1)->clear_token_from();
      },
      "from step 0");
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_steps(0)->mutable_sequences(0)->add_targets(1);
      },
      "3 targets for 3 rows");
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_steps(0)->mutable_sequences(0)->set_first_position(-1);
      },
      "first_position");
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_steps(0)->mutable_sequences(0)->set_ids(0, -5);
      },
      "negative");
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_steps(0)->mutable_sequences(0)->set_new_pages(0, -1);
      },
      "new_pages: -1 is negative");
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_steps(0)->mutable_sequences(0)->set_new_window_pages(0, -1);
      },
      "new_window_pages: -1 is negative");
  ExpectRefused([](v1::Round& r) { r.mutable_starts(0)->set_state_slot(-1); },
                "state_slot: -1 is negative");
}

TEST(WireTest, RefusesAbsurdSampling) {
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_starts(0)->mutable_sampling()->set_temperature(NAN);
      },
      "temperature");
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_starts(0)->mutable_sampling()->set_top_p(0);
      },
      "top_p");
  ExpectRefused(
      [](v1::Round& r) {
        r.mutable_starts(0)->mutable_sampling()->set_top_logprobs(65);
      },
      "top_logprobs");
}

TEST(WireTest, RefusesSpecsOutOfRange) {
  v1::StageSpec spec = ToProto(SomeSpec());
  spec.mutable_ranges(1)->set_begin(1);  // overlaps the first
  EXPECT_THAT(FromProto(spec), StatusIs(StatusCode::kInvalidArgument));
  spec = ToProto(SomeSpec());
  spec.clear_dtype();
  EXPECT_THAT(FromProto(spec), StatusIs(StatusCode::kInvalidArgument));
  spec = ToProto(SomeSpec());
  spec.set_kv_pages(0);
  EXPECT_THAT(FromProto(spec), StatusIs(StatusCode::kInvalidArgument));
  spec = ToProto(SomeSpec());
  spec.clear_window_pages();
  EXPECT_THAT(FromProto(spec), StatusIs(StatusCode::kInvalidArgument,
                                        HasSubstr("window_pages")));
  spec = ToProto(SomeSpec());
  spec.set_window_pages(-1);
  EXPECT_THAT(FromProto(spec), StatusIs(StatusCode::kInvalidArgument));
  spec = ToProto(SomeSpec());
  spec.clear_state_slots();
  EXPECT_THAT(FromProto(spec),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("state_slots")));
  spec = ToProto(SomeSpec());
  spec.set_state_slots(-1);
  EXPECT_THAT(FromProto(spec), StatusIs(StatusCode::kInvalidArgument));
  for (const int ranks : {0, 9}) {
    spec = ToProto(SomeSpec());
    spec.set_tp(ranks);
    EXPECT_THAT(FromProto(spec),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("tp")));
  }
  spec = ToProto(SomeSpec());
  spec.clear_config();
  EXPECT_THAT(FromProto(spec), StatusIs(StatusCode::kInvalidArgument));
}

TEST(WireTest, RefusesSessionsWhosePeersDoNotFit) {
  v1::ConnectRequest connect = SomeConnect();
  connect.mutable_peers(0)->set_stage(0);  // itself
  EXPECT_THAT(FromProto(connect),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("peer 0")));
  connect = SomeConnect();
  connect.set_self(2);
  EXPECT_THAT(FromProto(connect), StatusIs(StatusCode::kInvalidArgument));
  connect = SomeConnect();
  connect.clear_peers();
  EXPECT_THAT(FromProto(connect), StatusIs(StatusCode::kInvalidArgument));
  connect = SomeConnect();
  connect.clear_self();
  EXPECT_THAT(FromProto(connect), StatusIs(StatusCode::kInvalidArgument));
}

TEST(WireTest, NamesBothProtocolsAndBuilds) {
  v1::Hello hello = MyHello();
  EXPECT_THAT(CheckHello(hello), IsOk());
  hello.set_protocol(kProtocolVersion + 1);
  EXPECT_THAT(CheckHello(hello), StatusIs(StatusCode::kFailedPrecondition,
                                          AllOf(HasSubstr("protocol 2"),
                                                HasSubstr("this one 1"))));
  hello = MyHello();
  hello.set_build("other");
  EXPECT_THAT(CheckHello(hello),
              StatusIs(StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("other"), HasSubstr(BuildId()))));
}

TEST(WireTest, RefusesOffersThatLackAField) {
  const JoinOffer offer = {"a", 1, "127.0.0.1:1", "x"};
  EXPECT_THAT(FromProto(ToProto(offer)), IsOk());
  for (JoinOffer bad : {JoinOffer{"", 1, "h:1", "x"},
                        {"a", 0, "h:1", "x"},
                        {"a", 1, "", "x"},
                        {"a", 1, "h:1", ""}}) {
    EXPECT_THAT(FromProto(ToProto(bad)),
                StatusIs(StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace baton
