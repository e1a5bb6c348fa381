// SPDX-License-Identifier: Apache-2.0
// What every back end promises; each case runs over all of them.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/transport/plane_testing.h"

namespace baton {
namespace {

using testing::Backend;
using testing::End;
using testing::Fabric;
using testing::Pump;
using testing::SendStep;
using testing::Settle;
using testing::StreamHeader;
using testing::TestSession;
using testing::TestTensor;

class ChannelTest : public ::testing::TestWithParam<Backend> {
 protected:
  void Connect(const SessionInfo& session) {
    ASSERT_TRUE(a_.Connect(session, {&b_}).ok());
    ASSERT_TRUE(b_.Connect(session, {&a_}).ok());
  }

  Fabric fabric_{GetParam()};
  End a_{fabric_, 0};
  End b_{fabric_, 1};
};

TEST_P(ChannelTest, KeepsTheOrderOfAPeersPackets) {
  Connect(TestSession());
  constexpr uint64_t kPackets = 200;
  // Large ones between small ones: they travel by other protocols.
  for (uint64_t step = 0; step < kPackets; ++step) {
    const int rows = step % 7 == 3 ? 300 : 1;
    ASSERT_TRUE(SendStep(a_, b_.stage(), 1, step, rows, 1024).ok());
  }
  size_t consumed = 0;
  EXPECT_TRUE(Pump({&a_, &b_}, [&] {
    for (; consumed < b_.packets.size(); ++consumed) b_->Consume(a_.stage());
    return b_.packets.size() == kPackets;
  }));
  for (uint64_t step = 0; step < b_.packets.size(); ++step) {
    EXPECT_EQ(b_.packets[step].header.step, StepId(step));
  }
}

TEST_P(ChannelTest, DeliversHeaderAndPayloadBitForBit) {
  Connect(TestSession());
  struct Case {
    int rows, columns;
  };
  const Case cases[] = {{0, 4096},   {1, 1}, {1, 4096},    {3, 77}, {128, 4096},
                        {257, 2049}, {1, 0}, {8192, 4096}, {1, 16}};
  uint64_t step = 0;
  for (const Case& c : cases) {
    PacketHeader header = StreamHeader(1, ++step, c.rows, c.columns);
    header.pass = 3;
    Tensor sent = TestTensor(DType::kBF16, c.rows, c.columns, 5);
    ASSERT_TRUE(a_->Send(b_.stage(), header,
                         TestTensor(DType::kBF16, c.rows, c.columns, 5))
                    .ok());
    ASSERT_TRUE(Pump({&a_, &b_}, [&] { return !b_.packets.empty(); }));
    EXPECT_EQ(b_.packets[0].from, a_.stage());
    EXPECT_EQ(b_.packets[0].header, header) << ToString(header);
    EXPECT_TRUE(testing::SameBytes(b_.packets[0].payload, sent))
        << ToString(header);
    b_.packets.clear();
    b_->Consume(a_.stage());
  }
  EXPECT_EQ(b_->counters().received_bytes, a_->counters().sent_bytes);
}

TEST_P(ChannelTest, CarriesTokensBothWaysAtOnce) {
  Connect(TestSession());
  PacketHeader header = StreamHeader(1, 1, 5, 1, DType::kI32);
  header.kind = PacketKind::kTokens;
  ASSERT_TRUE(
      a_->Send(b_.stage(), header, TestTensor(DType::kI32, 5, 1, 1)).ok());
  ASSERT_TRUE(
      b_->Send(a_.stage(), header, TestTensor(DType::kI32, 5, 1, 2)).ok());
  ASSERT_TRUE(Pump({&a_, &b_},
                   [&] { return !a_.packets.empty() && !b_.packets.empty(); }));
  EXPECT_EQ(a_.packets[0].header.kind, PacketKind::kTokens);
  EXPECT_TRUE(testing::SameBytes(a_.packets[0].payload,
                                 TestTensor(DType::kI32, 5, 1, 2)));
}

TEST_P(ChannelTest, SendsToItself) {
  ASSERT_TRUE(a_.Connect(TestSession(), {&a_, &b_}).ok());
  for (uint64_t step = 0; step < 20; ++step) {
    ASSERT_TRUE(SendStep(a_, a_.stage(), 1, step).ok());
  }
  size_t consumed = 0;
  ASSERT_TRUE(Pump({&a_}, [&] {
    for (; consumed < a_.packets.size(); ++consumed) a_->Consume(a_.stage());
    return a_.packets.size() == 20;
  }));
  EXPECT_EQ(a_.packets[19].header.step, StepId(19));
}

TEST_P(ChannelTest, DropsAndCountsAStaleEpoch) {
  ASSERT_TRUE(a_.Connect(TestSession(1), {&b_}).ok());
  ASSERT_TRUE(b_.Connect(TestSession(2), {&a_}).ok());
  ASSERT_TRUE(SendStep(a_, b_.stage(), 1, 1).ok());
  EXPECT_TRUE(Pump({&a_, &b_},
                   [&] { return b_->counters().dropped_stale_epoch == 1; }));
  EXPECT_TRUE(b_.packets.empty());
  EXPECT_EQ(b_->counters().dropped_wrong_key, 0);
}

TEST_P(ChannelTest, DropsAndCountsAWrongKey) {
  SessionInfo forged = TestSession();
  forged.key ^= 1;
  ASSERT_TRUE(a_.Connect(forged, {&b_}).ok());
  ASSERT_TRUE(b_.Connect(TestSession(), {&a_}).ok());
  // Large: nothing may be allocated for it either.
  ASSERT_TRUE(SendStep(a_, b_.stage(), 1, 1, 1024, 4096).ok());
  EXPECT_TRUE(
      Pump({&a_, &b_}, [&] { return b_->counters().dropped_wrong_key == 1; }));
  EXPECT_TRUE(b_.packets.empty());
  EXPECT_EQ(b_->counters().dropped_stale_epoch, 0);
}

TEST_P(ChannelTest, DropsAndCountsAPacketOverTheLimit) {
  SessionInfo small = TestSession();
  small.max_packet_bytes = 100;
  ASSERT_TRUE(a_.Connect(TestSession(), {&b_}).ok());
  ASSERT_TRUE(b_.Connect(small, {&a_}).ok());
  ASSERT_TRUE(SendStep(a_, b_.stage(), 1, 1, 1, 51).ok());
  EXPECT_TRUE(
      Pump({&a_, &b_}, [&] { return b_->counters().dropped_malformed == 1; }));
  EXPECT_TRUE(b_.packets.empty());
}

TEST_P(ChannelTest, DropsASenderThatExceedsItsCredits) {
  SessionInfo strict = TestSession();
  strict.credits = 2;
  ASSERT_TRUE(a_.Connect(TestSession(), {&b_}).ok());
  ASSERT_TRUE(b_.Connect(strict, {&a_}).ok());
  for (uint64_t step = 0; step < 5; ++step) {
    ASSERT_TRUE(SendStep(a_, b_.stage(), 1, step).ok());
  }
  EXPECT_TRUE(
      Pump({&a_, &b_}, [&] { return b_->counters().dropped_malformed == 3; }));
  EXPECT_EQ(b_.packets.size(), 2u);
}

TEST_P(ChannelTest, StallsWithoutCreditsAndResumes) {
  SessionInfo session = TestSession();
  session.credits = 3;
  Connect(session);
  for (uint64_t step = 0; step < 10; ++step) {
    ASSERT_TRUE(SendStep(a_, b_.stage(), 1, step).ok());
  }
  EXPECT_TRUE(Pump({&a_, &b_}, [&] { return b_.packets.size() == 3; }));
  Settle({&a_, &b_});
  EXPECT_EQ(b_.packets.size(), 3u);
  EXPECT_EQ(a_->counters().sent_packets, 3);
  EXPECT_EQ(a_->counters().credit_stalls, 7);
  for (size_t next = 4; next <= 10; ++next) {
    b_->Consume(a_.stage());
    EXPECT_TRUE(Pump({&a_, &b_}, [&] { return b_.packets.size() == next; }));
    Settle({&a_, &b_});
    EXPECT_EQ(b_.packets.size(), next);
  }
}

TEST_P(ChannelTest, ReportsADestroyedPeerOnceAndRefusesSends) {
  Connect(TestSession());
  ASSERT_TRUE(SendStep(a_, b_.stage(), 1, 1).ok());
  ASSERT_TRUE(SendStep(b_, a_.stage(), 1, 1).ok());
  ASSERT_TRUE(Pump({&a_, &b_},
                   [&] { return !a_.packets.empty() && !b_.packets.empty(); }));
  b_.Destroy();
  ASSERT_TRUE(Pump({&a_}, [&] { return !a_.lost.empty(); }));
  EXPECT_EQ(a_.lost[0].first, b_.stage());
  EXPECT_EQ(SendStep(a_, b_.stage(), 1, 2).code(), StatusCode::kUnavailable);
  Settle({&a_});
  EXPECT_EQ(a_.lost.size(), 1u);
}

TEST_P(ChannelTest, DeliversWhatALostPeerHadSentBefore) {
  Connect(TestSession());
  ASSERT_TRUE(SendStep(a_, b_.stage(), 1, 1).ok());
  ASSERT_TRUE(Pump({&a_, &b_}, [&] { return !b_.packets.empty(); }));
  ASSERT_TRUE(SendStep(b_, a_.stage(), 1, 1).ok());
  b_.Destroy();
  ASSERT_TRUE(Pump({&a_}, [&] { return !a_.lost.empty(); }));
  EXPECT_EQ(a_.packets.size(), 1u);
}

TEST_P(ChannelTest, ConnectsAgainWithAnEmptyQueue) {
  SessionInfo session = TestSession(1);
  session.credits = 1;
  Connect(session);
  ASSERT_TRUE(SendStep(a_, b_.stage(), 1, 1).ok());
  ASSERT_TRUE(SendStep(a_, b_.stage(), 1, 2).ok());
  ASSERT_TRUE(Pump({&a_, &b_}, [&] { return b_.packets.size() == 1; }));
  for (uint64_t epoch = 2; epoch < 6; ++epoch) {
    b_.packets.clear();
    session.epoch = Epoch(epoch);
    Connect(session);
    EXPECT_EQ(SendStep(a_, b_.stage(), epoch - 1, 9).code(),
              StatusCode::kFailedPrecondition);
    ASSERT_TRUE(SendStep(a_, b_.stage(), epoch, 10 * epoch).ok());
    ASSERT_TRUE(Pump({&a_, &b_}, [&] { return b_.packets.size() == 1; }));
    EXPECT_EQ(b_.packets[0].header.step, StepId(10 * epoch));
    b_->Consume(a_.stage());
    Settle({&a_, &b_});
  }
  EXPECT_TRUE(a_.lost.empty());
  EXPECT_TRUE(b_.lost.empty());
}

TEST_P(ChannelTest, ReportsAPeerThatConnectedElsewhere) {
  Connect(TestSession(1));
  ASSERT_TRUE(SendStep(b_, a_.stage(), 1, 1).ok());
  ASSERT_TRUE(Pump({&a_, &b_}, [&] { return !a_.packets.empty(); }));
  ASSERT_TRUE(b_->Connect(TestSession(2), b_.stage(), {}).ok());
  ASSERT_TRUE(Pump({&a_, &b_}, [&] { return !a_.lost.empty(); }));
  EXPECT_EQ(a_.lost[0].first, b_.stage());
}

TEST_P(ChannelTest, RefusesWhatItCannotSend) {
  EXPECT_EQ(SendStep(a_, b_.stage(), 1, 1).code(),
            StatusCode::kFailedPrecondition);
  Connect(TestSession());
  EXPECT_EQ(SendStep(a_, StageId(7), 1, 1).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(a_->Send(b_.stage(), StreamHeader(1, 1, 2, 16),
                     TestTensor(DType::kBF16, 1, 16, 1))
                .code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(a_->Send(b_.stage(), StreamHeader(1, 1, 1, 16),
                     TestTensor(DType::kF32, 1, 16, 1))
                .code(),
            StatusCode::kInvalidArgument);
}

TEST_P(ChannelTest, RefusesAnAddressThatIsNone) {
  for (const std::string address :
       {"", "nowhere", "UCX1...................."}) {
    EXPECT_FALSE(
        a_->Connect(TestSession(), a_.stage(), {{b_.stage(), address}}).ok());
  }
  EXPECT_EQ(SendStep(a_, b_.stage(), 1, 1).code(),
            StatusCode::kFailedPrecondition);
  Connect(TestSession());
  EXPECT_TRUE(SendStep(a_, b_.stage(), 1, 1).ok());
  EXPECT_TRUE(Pump({&a_, &b_}, [&] { return b_.packets.size() == 1; }));
}

TEST_P(ChannelTest, IsDestroyedWithTransfersInFlight) {
  Connect(TestSession());
  for (uint64_t step = 0; step < 16; ++step) {
    ASSERT_TRUE(SendStep(a_, b_.stage(), 1, step, 1024, 4096).ok());
  }
  (void)a_->Progress();
  a_.Destroy();
  Settle({&b_});
}

TEST_P(ChannelTest, WaitReturnsAtItsTimeout) {
  Connect(TestSession());
  Settle({&a_, &b_});
  const absl::Time start = absl::Now();
  while (absl::Now() - start < absl::Milliseconds(20)) {
    a_->Wait(absl::Milliseconds(20));
  }
  EXPECT_LT(absl::Now() - start, testing::kTestDeadline);
}

TEST_P(ChannelTest, WaitWakesOnInterrupt) {
  Connect(TestSession());
  Settle({&a_, &b_});
  std::thread other([&] { a_->Interrupt(); });
  const absl::Time start = absl::Now();
  // Whichever comes first: an interrupt is kept for the next Wait.
  a_->Wait(testing::kTestDeadline);
  EXPECT_LT(absl::Now() - start, testing::kTestDeadline);
  other.join();
}

TEST_P(ChannelTest, TwoThreadsPlayPingPong) {
  Connect(TestSession());
  constexpr uint64_t kRounds = 10'000;
  // Serves until it has seen every round; `serve` starts each of them.
  const auto play = [&](End& self, End& other, uint64_t first_send) {
    uint64_t seen = 0;
    const absl::Time deadline = absl::Now() + testing::kTestDeadline;
    if (first_send == 0) {
      EXPECT_TRUE(SendStep(self, other.stage(), 1, 0).ok());
    }
    while (seen < kRounds && absl::Now() < deadline) {
      if (!self->Progress()) self->Wait(absl::Seconds(1));
      for (Packet& packet : std::exchange(self.packets, {})) {
        EXPECT_EQ(packet.header.step, StepId(seen));
        self->Consume(other.stage());
        const uint64_t next = seen + (first_send == 0 ? 1 : 0);
        if (next < kRounds) {
          EXPECT_TRUE(SendStep(self, other.stage(), 1, next).ok());
        }
        ++seen;
      }
    }
    EXPECT_EQ(seen, kRounds);
    return seen;
  };
  std::atomic<bool> done{false};
  std::thread echo([&] {
    play(b_, a_, 1);
    // What it sent last must leave before the test ends.
    while (!done) {
      if (!b_->Progress()) b_->Wait(absl::Milliseconds(1));
    }
  });
  play(a_, b_, 0);
  done = true;
  echo.join();
}

INSTANTIATE_TEST_SUITE_P(All, ChannelTest,
                         ::testing::Values(Backend{"inproc", ""},
                                           Backend{"tcp", "tcp"},
                                           Backend{"shm", "posix,cma"},
                                           Backend{"auto", ""}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton
