// SPDX-License-Identifier: Apache-2.0
#include "actors/registrar_actor.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "tests/testing/fake_controller.h"
#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using ::baton::testing::FakeController;
using ::baton::testing::IsOk;
using ::baton::testing::IsOkAndHolds;
using ::baton::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct SetClock : public Clock {
  absl::Time now = absl::UnixEpoch();
  absl::Time Now() const override { return now; }
};

struct FakePeer : public StagePeer {
  PeerEvents events;
  std::function<void()> on_close;
  bool closed = false;
  StageRef ref() override { return {}; }
  void Close() override {
    closed = true;
    if (on_close) on_close();
  }
};

class RegistrarActorTest : public ::testing::Test {
 protected:
  RegistrarActorTest()
      : executor_(&clock_),
        registrar_(executor_, ControllerRef(controller_), absl::Seconds(3),
                   [this](const JoinOffer&, PeerEvents events) {
                     auto peer = std::make_shared<FakePeer>();
                     peer->events = std::move(events);
                     peers_.push_back(peer);
                     return peer;
                   }) {}

  // What is posted, not the timers.
  void RunPosted() {
    while (executor_.pending() > 0) executor_.RunOne();
  }
  // Lets time pass until a timer has run.
  void Pass(absl::Duration time) {
    clock_.now += time;
    RunPosted();
    executor_.RunOne();
    RunPosted();
  }
  void Join(const std::string& name, uint64_t incarnation) {
    registrar_.ref().Tell(JoinStage{
        {name, incarnation, "host:1", "data"},
        Reply<absl::Duration>(
            [this](StatusOr<absl::Duration> answer) { lease_ = answer; })});
    RunPosted();
  }
  void JoinWholly(const std::string& name, uint64_t incarnation) {
    Join(name, incarnation);
    peers_.back()->events.on_ready();
    RunPosted();
    controller_->joined.back().reply.Send(Done{});
    RunPosted();
  }
  Status Renew(const std::string& name, uint64_t incarnation) {
    Status status = Internal("no answer");
    registrar_.ref().Tell(RenewLease{
        name, incarnation,
        Reply<Done>([&](StatusOr<Done> answer) { status = answer.status(); })});
    RunPosted();
    return status;
  }

  SetClock clock_;
  ManualExecutor executor_;
  std::shared_ptr<FakeController> controller_ =
      std::make_shared<FakeController>();
  std::vector<std::shared_ptr<FakePeer>> peers_;
  std::optional<StatusOr<absl::Duration>> lease_;
  RegistrarActor registrar_;
};

TEST_F(RegistrarActorTest, OffersAStageOnceItsPeerIsReady) {
  Join("a", 1);
  EXPECT_THAT(controller_->joined, IsEmpty());
  peers_[0]->events.on_ready();
  RunPosted();
  ASSERT_THAT(controller_->joined, SizeIs(1));
  EXPECT_EQ(controller_->joined[0].data_address, "data");
  EXPECT_FALSE(lease_.has_value());
  controller_->joined[0].reply.Send(Done{});
  RunPosted();
  ASSERT_TRUE(lease_.has_value());
  EXPECT_THAT(*lease_, IsOkAndHolds(absl::Seconds(3)));
}

TEST_F(RegistrarActorTest, PassesOnThatTheControllerRefuses) {
  Join("a", 1);
  peers_[0]->events.on_ready();
  RunPosted();
  controller_->joined[0].reply.Send(FailedPrecondition("no stage named a"));
  RunPosted();
  EXPECT_THAT(*lease_, StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_TRUE(peers_[0]->closed);
  EXPECT_THAT(controller_->lost, IsEmpty());
}

TEST_F(RegistrarActorTest, RefusesALiveName) {
  JoinWholly("a", 1);
  Join("a", 2);
  EXPECT_THAT(*lease_, StatusIs(StatusCode::kAlreadyExists));
  EXPECT_THAT(peers_, SizeIs(1));
}

TEST_F(RegistrarActorTest, ReportsABrokenPeerAtOnce) {
  JoinWholly("a", 1);
  peers_[0]->events.on_lost(Unavailable("connection reset"));
  RunPosted();
  ASSERT_THAT(controller_->lost, SizeIs(1));
  EXPECT_EQ(controller_->lost[0].name, "a");
  EXPECT_THAT(Renew("a", 1), StatusIs(StatusCode::kFailedPrecondition));
  JoinWholly("a", 2);  // the name is free
  EXPECT_THAT(*lease_, IsOk());
}

// Calls to it that are cancelled then would tell of that, and a start that
// failed so counts as final.
TEST_F(RegistrarActorTest, ReportsALossBeforeItCancelsCalls) {
  JoinWholly("a", 1);
  std::optional<size_t> lost_at_close;
  peers_[0]->on_close = [&] { lost_at_close = controller_->lost.size(); };
  Pass(absl::Seconds(3));
  EXPECT_EQ(lost_at_close, 1u);
}

TEST_F(RegistrarActorTest, ReportsAStageThatStopsRenewing) {
  JoinWholly("a", 1);
  Pass(absl::Seconds(2));
  EXPECT_THAT(Renew("a", 1), IsOk());
  Pass(absl::Seconds(2));
  EXPECT_THAT(controller_->lost, IsEmpty());
  Pass(absl::Seconds(1));
  ASSERT_THAT(controller_->lost, SizeIs(1));
  EXPECT_THAT(controller_->lost[0].status,
              StatusIs(StatusCode::kUnavailable, HasSubstr("no heartbeat")));
  EXPECT_TRUE(peers_[0]->closed);
}

TEST_F(RegistrarActorTest, GivesUpOnAHostThatDoesNotAnswer) {
  Join("a", 1);
  Pass(absl::Seconds(3));
  EXPECT_THAT(*lease_, StatusIs(StatusCode::kUnavailable,
                                HasSubstr("no answer from host:1")));
  EXPECT_THAT(controller_->lost, IsEmpty());
}

TEST_F(RegistrarActorTest, LetsAStageGoWhenTheControllerDoes) {
  JoinWholly("a", 1);
  std::optional<StatusOr<Done>> left;
  registrar_.ref().Tell(LeaveStage{
      "a", 1, Reply<Done>([&](StatusOr<Done> answer) { left = answer; })});
  RunPosted();
  ASSERT_THAT(controller_->leaving, SizeIs(1));
  EXPECT_FALSE(left.has_value());
  EXPECT_THAT(Renew("a", 1), IsOk());  // it drains
  controller_->leaving[0].reply.Send(Done{});
  RunPosted();
  ASSERT_TRUE(left.has_value());
  EXPECT_THAT(*left, IsOk());
  EXPECT_THAT(controller_->lost, IsEmpty());
}

TEST_F(RegistrarActorTest, IgnoresNewsOfAnEarlierIncarnation) {
  JoinWholly("a", 1);
  peers_[0]->events.on_lost(Unavailable("reset"));
  RunPosted();
  JoinWholly("a", 2);
  peers_[0]->events.on_lost(Unavailable("late"));
  RunPosted();
  EXPECT_THAT(controller_->lost, SizeIs(1));
  EXPECT_THAT(Renew("a", 2), IsOk());
}

}  // namespace
}  // namespace baton
