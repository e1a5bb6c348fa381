// SPDX-License-Identifier: Apache-2.0
// A controller and stages in processes of their own, over UCX: joining, loss,
// return, drain.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "actors/version.h"
#include "actors/wire.h"
#include "tests/e2e/pipeline.h"
#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using ::baton::testing::Client;
using ::baton::testing::IsOk;
using ::baton::testing::LongCall;
using ::baton::testing::LongConfig;
using ::baton::testing::Ran;
using ::baton::testing::ReadBytes;
using ::baton::testing::RunBaton;
using ::baton::testing::Running;
using ::baton::testing::StatusIs;
using ::baton::testing::TempFolder;
using ::baton::testing::TwoStages;
using ::testing::AllOf;
using ::testing::HasSubstr;

const char kTiny[] = BATON_SOURCE_DIR "/tests/checkpoints/nanbeige";

TEST(RemoteStagesTest, GenerateTheGoldenTokens) {
  TwoStages pipeline(kTiny, {"--dtype", "f32"});
  pipeline.StartBoth();
  ASSERT_TRUE(Client(pipeline.address()).AwaitHealth(true).healthy())
      << pipeline.serve().output();
  const nlohmann::json golden =
      nlohmann::json::parse(ReadBytes(std::string(kTiny) + "/golden.json"));
  const nlohmann::json& prompt = golden["cases"][0];
  GenerateCall call = LongCall(16);
  call.prompt = prompt["prompt_ids"].get<std::vector<uint32_t>>();
  StatusOr<GenerateSummary> got = Running(pipeline.address(), call).End();
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(got->ids, prompt["greedy_ids"].get<std::vector<int32_t>>());
}

// A long request in flight over two stages with random weights.
class LossTest : public ::testing::Test {
 protected:
  LossTest() {
    folder_.Write("config.json", LongConfig());
    pipeline_ = std::make_unique<TwoStages>(
        folder_.path(),
        std::vector<std::string>{"--random-weights", "--kv-tokens", "110000"});
    pipeline_->StartBoth();
    client_ = std::make_unique<Client>(pipeline_->address());
    client_->AwaitHealth(true);
  }
  // Starts a request that takes much longer than the test.
  std::unique_ptr<Running> StartLong() {
    auto running =
        std::make_unique<Running>(pipeline_->address(), LongCall(100000));
    EXPECT_TRUE(running->AwaitFirstToken()) << pipeline_->serve().output();
    return running;
  }
  void ExpectServing() {
    EXPECT_TRUE(client_->AwaitHealth(true).healthy())
        << pipeline_->serve().output();
    EXPECT_THAT(Running(pipeline_->address(), LongCall(8)).End(), IsOk());
  }

  TempFolder folder_;
  std::unique_ptr<TwoStages> pipeline_;
  std::unique_ptr<Client> client_;
};

TEST_F(LossTest, AKilledStageEndsItsRequestsAndMayComeBack) {
  std::unique_ptr<Running> running = StartLong();
  const absl::Time killed = absl::Now();
  pipeline_->stage("b").Signal(SIGKILL);
  // Its neighbour may notice first, and then names it by its place.
  EXPECT_THAT(running->End(), StatusIs(StatusCode::kUnavailable));
  EXPECT_LT(absl::Now() - killed, absl::Seconds(5));
  EXPECT_FALSE(client_->AwaitHealth(false).healthy());
  EXPECT_THAT(client_->AwaitMessage("stage b is gone"),
              HasSubstr("stage b is gone"));
  EXPECT_EQ(client_->UsedTokens(), 0);

  pipeline_->StartStage("b");
  ExpectServing();
}

TEST_F(LossTest, AFrozenStageLosesItsLeaseAndMayThaw) {
  std::unique_ptr<Running> running = StartLong();
  const absl::Time frozen = absl::Now();
  pipeline_->stage("a").Signal(SIGSTOP);
  EXPECT_THAT(running->End(),
              StatusIs(StatusCode::kUnavailable, HasSubstr("stage a")));
  EXPECT_LT(absl::Now() - frozen, absl::Seconds(5));
  EXPECT_FALSE(client_->AwaitHealth(false).healthy());
  pipeline_->stage("a").Signal(SIGCONT);
  ExpectServing();
}

TEST_F(LossTest, ALeavingStageIsLetGo) {
  pipeline_->stage("b").Signal(SIGTERM);
  EXPECT_EQ(pipeline_->stage("b").WaitForExit(), 0)
      << pipeline_->stage("b").output();
  EXPECT_FALSE(client_->AwaitHealth(false).healthy());
  pipeline_->StartStage("b");
  ExpectServing();
}

TEST_F(LossTest, ANewControllerAdoptsTheStages) {
  std::unique_ptr<Running> running = StartLong();
  pipeline_->RestartController();
  EXPECT_THAT(running->End(), StatusIs(StatusCode::kUnavailable));
  client_ = std::make_unique<Client>(pipeline_->address());
  ExpectServing();
}

TEST_F(LossTest, ADrainFinishesWhatRuns) {
  Running running(pipeline_->address(), LongCall(300));
  ASSERT_TRUE(running.AwaitFirstToken());
  pipeline_->serve().Signal(SIGTERM);
  StatusOr<GenerateSummary> end = running.End();
  ASSERT_THAT(end, IsOk());
  EXPECT_EQ(end->ids.size(), 300u);
  EXPECT_EQ(pipeline_->serve().WaitForExit(), 0) << pipeline_->serve().output();
}

// A first start that a stage holds up is tried again.
TEST(FirstStartTest, OutlivesAStageThatDoesNotLoadInTime) {
  TwoStages pipeline(kTiny, {}, "load_deadline: 2s\nlease: 60s\n");
  pipeline.StartStage("a");
  ASSERT_TRUE(pipeline.stage("a").WaitFor("stage.joined").has_value());
  pipeline.stage("a").Signal(SIGSTOP);
  pipeline.StartStage("b");
  ASSERT_TRUE(pipeline.serve().WaitFor("controller.start_failed").has_value());
  pipeline.stage("a").Signal(SIGCONT);
  EXPECT_TRUE(Client(pipeline.address()).AwaitHealth(true).healthy())
      << pipeline.serve().output();
  EXPECT_TRUE(pipeline.serve().WaitFor("serving nanbeige").has_value());
}

TEST(JoinTest, RefusesAnotherProtocolAndBuild) {
  TwoStages pipeline(kTiny, {});
  Client client(pipeline.address());
  v1::JoinRequest request = ToProto(JoinOffer{"a", 1, "127.0.0.1:1", "x"});
  const auto join = [&] {
    grpc::ClientContext context;
    v1::JoinResponse response;
    return client.controller().Join(&context, request, &response);
  };
  request.mutable_hello()->set_protocol(kProtocolVersion + 1);
  EXPECT_EQ(join().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(join().error_message(),
              AllOf(HasSubstr("protocol 2"), HasSubstr("this one 1")));
  *request.mutable_hello() = MyHello();
  request.mutable_hello()->set_build("0.0.0-other");
  EXPECT_EQ(join().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(join().error_message(),
              AllOf(HasSubstr("0.0.0-other"), HasSubstr(BuildId())));
}

TEST(JoinTest, RefusesAStageThatThePlanDoesNotName) {
  TwoStages pipeline(kTiny, {});
  pipeline.StartStage("c");
  EXPECT_EQ(pipeline.stage("c").WaitForExit(), 1);
  EXPECT_THAT(pipeline.stage("c").output(), HasSubstr("no stage named c"));
}

TEST(JoinTest, SaysWhichStagesAreMissing) {
  TwoStages pipeline(kTiny, {});
  pipeline.StartStage("a");
  EXPECT_TRUE(pipeline.serve().WaitFor("1 of 2 stages have joined").has_value())
      << pipeline.serve().output();
}

}  // namespace
}  // namespace baton
