// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway.h"

#include <gtest/gtest.h>

#include "tests/testing/fake_controller.h"
#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using ::baton::testing::FakeController;
using ::baton::testing::IsOk;
using ::baton::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelFacts Facts() {
  ModelFacts facts;
  facts.vocab = 100;
  facts.context = 32;
  facts.kv_tokens = 64;
  facts.eos_ids = {2, 3};
  return facts;
}

GenerateCall Call() {
  GenerateCall call;
  call.prompt = {5, 6, 7};
  return call;
}

StatusOr<Request> Make(const GenerateCall& call) {
  return MakeRequest(call, Facts(), "r", 99);
}

TEST(MakeRequestTest, FillsInWhatIsAbsent) {
  StatusOr<Request> request = Make(Call());
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->id, "r");
  EXPECT_EQ(request->sampling.temperature, 1);
  EXPECT_EQ(request->sampling.top_p, 1);
  EXPECT_EQ(request->sampling.top_k, 0);
  EXPECT_EQ(request->sampling.seed, 99u);
  EXPECT_EQ(request->sampling.top_logprobs, 0);
  EXPECT_EQ(request->max_tokens, 29);  // what the context leaves
  EXPECT_THAT(request->stop_ids, ElementsAre(2, 3));
}

TEST(MakeRequestTest, TakesZeroTemperatureAsGreedy) {
  GenerateCall call = Call();
  call.temperature = 0;
  StatusOr<Request> request = Make(call);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->sampling.temperature, 0);
}

// More than the context leaves is for the controller to refuse.
TEST(MakeRequestTest, HandsOnMaxTokensAsAsked) {
  GenerateCall call = Call();
  call.max_tokens = 1000;
  StatusOr<Request> request = Make(call);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->max_tokens, 1000);
}

TEST(MakeRequestTest, AsksForNoMoreThanTheKvPoolHolds) {
  ModelFacts facts = Facts();
  facts.kv_tokens = 16;
  StatusOr<Request> request = MakeRequest(Call(), facts, "r", 1);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->max_tokens, 13);
}

TEST(MakeRequestTest, RefusesPromptsThatLeaveNothing) {
  GenerateCall call = Call();
  call.prompt.assign(32, 1);
  EXPECT_THAT(Make(call), StatusIs(StatusCode::kInvalidArgument,
                                   HasSubstr("nothing is left")));
  call.prompt.clear();
  EXPECT_THAT(Make(call),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("empty")));
}

TEST(MakeRequestTest, RefusesIdsOutOfRange) {
  GenerateCall call = Call();
  call.prompt = {5, 100};
  EXPECT_THAT(Make(call), StatusIs(StatusCode::kInvalidArgument,
                                   HasSubstr("100 at position 1")));
  call.prompt = {5, 0xffffffff};
  EXPECT_THAT(Make(call), StatusIs(StatusCode::kInvalidArgument));
}

TEST(MakeRequestTest, IgnoresEndTokensWhereAsked) {
  GenerateCall call = Call();
  call.ignore_eos = true;
  call.stop_ids = {9};
  StatusOr<Request> request = Make(call);
  ASSERT_THAT(request, IsOk());
  EXPECT_THAT(request->stop_ids, ElementsAre(9));
}

TEST(MakeRequestTest, RefusesMoreLogprobsThanThereAre) {
  GenerateCall call = Call();
  call.logprobs = -1;
  EXPECT_THAT(Make(call), StatusIs(StatusCode::kInvalidArgument));
  call.logprobs = 65;
  EXPECT_THAT(Make(call), StatusIs(StatusCode::kInvalidArgument));
}

TEST(MakeRequestTest, ComputesPromptLogprobsForZeroAlternatives) {
  GenerateCall call = Call();
  call.prompt_logprobs = 0;
  StatusOr<Request> request = Make(call);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->sampling.prompt_logprobs, 1);
}

struct FakeSink : public RequestSink {
  explicit FakeSink(std::vector<Status>* to) : ends(to) {}
  void OnEvent(const TokenEvent&) override {}
  void OnEnd(const Status& status) override { ends->push_back(status); }
  std::vector<Status>* ends;
};

class GatewayTest : public ::testing::Test {
 protected:
  std::string Submit(const std::string& id) {
    GenerateCall call = Call();
    call.request_id = id;
    return gateway_.Submit(call, std::make_unique<FakeSink>(&ends_));
  }
  std::shared_ptr<FakeController> controller_ =
      std::make_shared<FakeController>();
  std::vector<Status> ends_;
  Gateway gateway_{ControllerRef(controller_), Facts()};
};

TEST_F(GatewayTest, AbortsByTheClientsId) {
  const std::string ticket = Submit("x");
  EXPECT_TRUE(gateway_.AbortById("x"));
  EXPECT_FALSE(gateway_.AbortById("y"));
  EXPECT_THAT(controller_->aborted, ElementsAre(ticket));
}

TEST_F(GatewayTest, RefusesTheIdOfALiveRequest) {
  const std::string ticket = Submit("x");
  EXPECT_EQ(Submit("x"), "");
  EXPECT_THAT(ends_, ElementsAre(StatusIs(StatusCode::kAlreadyExists)));
  gateway_.Forget(ticket);
  EXPECT_NE(Submit("x"), "");
  EXPECT_EQ(controller_->submitted.size(), 2u);
}

TEST_F(GatewayTest, TellsRequestsWithoutAnIdApart) {
  EXPECT_NE(Submit(""), Submit(""));
  EXPECT_EQ(gateway_.live(), 2);
  EXPECT_FALSE(gateway_.AbortById(""));
}

TEST_F(GatewayTest, EndsTheSinkOfABadRequest) {
  GenerateCall call;
  EXPECT_EQ(gateway_.Submit(call, std::make_unique<FakeSink>(&ends_)), "");
  EXPECT_THAT(ends_, ElementsAre(StatusIs(StatusCode::kInvalidArgument)));
  EXPECT_EQ(gateway_.live(), 0);
  EXPECT_THAT(controller_->submitted, IsEmpty());
}

}  // namespace
}  // namespace baton
