// SPDX-License-Identifier: Apache-2.0
#include "actors/core/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "actors/core/actor.h"
#include "tests/testing/fake_clock.h"

namespace baton {
namespace {

struct Count {
  int by = 0;
};
struct Question {
  Reply<int> reply;
};
class Counter1 : public Actor<Counter1, Count, Question> {
 public:
  explicit Counter1(Executor& executor) : Actor(executor, "counter") {}
  void Handle(Count m) { total_ += m.by; }
  void Handle(Question m) { m.reply.Send(total_); }
  void Handle(std::string text) { log += text; }
  void Remind(absl::Time when) { TellAt(when, std::string("later")); }
  std::string log;

 private:
  int total_ = 0;
};

TEST(ActorTest, HandlesMessagesInTheOrderTold) {
  testing::FakeClock clock;
  ManualExecutor executor(&clock);
  Counter1 actor(executor);
  int answer = 0;
  actor.ref().Tell(Count{3});
  actor.ref().Tell(Question{Reply<int>([&](StatusOr<int> a) { answer = *a; })});
  actor.ref().Tell(Count{4});
  EXPECT_EQ(executor.pending(), 3u);
  while (executor.RunOne()) {
  }
  EXPECT_EQ(answer, 3);
}

TEST(ActorTest, AMessageToOneThatLeftIsDroppedAndItsReplyCancelled) {
  testing::FakeClock clock;
  ManualExecutor executor(&clock);
  Status status;
  Counter1::Ref ref;
  {
    Counter1 actor(executor);
    ref = actor.ref();
  }
  ref.Tell(Question{Reply<int>([&](StatusOr<int> a) { status = a.status(); })});
  while (executor.RunOne()) {
  }
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
}

// A ref may outlive the actor's whole thread: a stage that finishes a step of a
// controller that has just gone.
TEST(ActorTest, AMessageAfterTheExecutorIsGoneIsCancelled) {
  Status status;
  Counter1::Ref ref;
  {
    auto executor = std::make_unique<ThreadExecutor>("gone");
    auto actor = std::make_unique<Counter1>(*executor);
    ref = actor->ref();
    executor->Stop();
    actor = nullptr;
    executor = nullptr;
  }
  ref.Tell(Question{Reply<int>([&](StatusOr<int> a) { status = a.status(); })});
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
}

TEST(ActorTest, ATimerWaitsForItsTime) {
  testing::FakeClock clock;
  ManualExecutor executor(&clock);
  Counter1 actor(executor);
  actor.Remind(clock.Now() + absl::Seconds(2));
  EXPECT_FALSE(executor.RunOne());
  clock.Advance(absl::Seconds(2));
  EXPECT_TRUE(executor.RunOne());
  EXPECT_EQ(actor.log, "later");
}

TEST(ReplyTest, AnswersOnceAndCancelsWhenDropped) {
  int answers = 0;
  {
    Reply<int> reply([&](StatusOr<int> a) { ++answers; });
    Reply<int> moved = std::move(reply);
    moved.Send(1);
    moved.Send(2);
  }
  EXPECT_EQ(answers, 1);
}

TEST(ThreadExecutorTest, RunsTasksOfManyThreadsOneAtATime) {
  ThreadExecutor executor("test");
  std::atomic<int> inside = 0;
  std::atomic<bool> overlapped = false;
  absl::Notification done;
  constexpr int kThreads = 4;
  constexpr int kTasks = 200;
  int ran = 0;  // executor's thread only
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTasks; ++i) {
        executor.Post([&] {
          if (inside.fetch_add(1) != 0) overlapped = true;
          if (++ran == kThreads * kTasks) done.Notify();
          inside.fetch_sub(1);
        });
      }
    });
  }
  for (std::thread& t : threads) t.join();
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_FALSE(overlapped);
}

TEST(ThreadExecutorTest, StopRunsWhatWasPostedAndDropsTheRest) {
  ThreadExecutor executor("test");
  std::atomic<int> ran = 0;
  for (int i = 0; i < 10; ++i) executor.Post([&] { ++ran; });
  executor.Stop();
  executor.Post([&] { ++ran; });
  EXPECT_EQ(ran, 10);
}

TEST(ThreadExecutorTest, TasksThatNeverEndDoNotKeepATimerBack) {
  absl::Notification rang;
  std::function<void()> again;
  ThreadExecutor executor("test");
  again = [&] {
    if (!rang.HasBeenNotified()) executor.Post([&] { again(); });
  };
  executor.Post([&] { again(); });
  executor.PostAt(absl::Now(), [&] { rang.Notify(); });
  EXPECT_TRUE(rang.WaitForNotificationWithTimeout(absl::Seconds(5)));
  executor.Stop();
}

// An idle executor looks for timers once a second by itself. The least of some
// delays, since the machine may be busy; the first only finds it idle.
TEST(ThreadExecutorTest, ATimerOfAnotherThreadIsNotLate) {
  ThreadExecutor executor("test");
  absl::Duration least = absl::InfiniteDuration();
  for (int i = 0; i < 4; ++i) {
    absl::Notification ran;
    const absl::Time due = absl::Now() + absl::Milliseconds(2);
    executor.PostAt(due, [&] { ran.Notify(); });
    ran.WaitForNotification();
    if (i > 0) least = std::min(least, absl::Now() - due);
  }
  EXPECT_LT(least, absl::Milliseconds(500));
}

}  // namespace
}  // namespace baton
