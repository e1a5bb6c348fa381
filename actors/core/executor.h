// SPDX-License-Identifier: Apache-2.0
// Where an actor's handlers run. An executor runs one task at a time, in the
// order posted.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/base/clock.h"

namespace baton {

class Executor {
 public:
  using Task = absl::AnyInvocable<void()>;
  virtual ~Executor() = default;
  // Thread: any. After Stop() a task is not taken: it dies with the caller's.
  virtual void Post(Task&& task) = 0;
  // Runs the task at or after `when`, by the executor's clock, however many
  // tasks are posted meanwhile. Thread: any.
  virtual void PostAt(absl::Time when, Task&& task) = 0;
  [[nodiscard]] virtual absl::Time Now() const = 0;
};

// Something an executor's thread moves forward while it has no task: a stage's
// data plane. Called on the executor's thread, but Interrupt() on any.
class Poller {
 public:
  virtual ~Poller() = default;
  virtual bool Progress() = 0;
  virtual void Wait(absl::Duration timeout) = 0;
  virtual void Interrupt() = 0;
};

// One thread. Joins in the destructor.
class ThreadExecutor : public Executor {
 public:
  // `poller` may be null; it outlives the executor.
  explicit ThreadExecutor(std::string name, Poller* poller = nullptr);
  ~ThreadExecutor() override;

  void Post(Task&& task) override;
  void PostAt(absl::Time when, Task&& task) override;
  [[nodiscard]] absl::Time Now() const override { return absl::Now(); }
  // Runs what is posted already, drops the rest, joins. Not from its thread.
  void Stop();

 private:
  struct Timer {
    absl::Time when;
    uint64_t order;
    Task task;
  };
  void Loop();
  bool RunOne();
  // When to look again, if nothing is posted before.
  [[nodiscard]] absl::Time NextLook() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Poller* const poller_;
  absl::Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<Timer> timers_ ABSL_GUARDED_BY(mutex_);  // a heap, soonest first
  uint64_t next_order_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool sleeping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Tests: tasks run when the test says so, on its thread.
class ManualExecutor : public Executor {
 public:
  explicit ManualExecutor(const Clock* clock) : clock_(clock) {}

  void Post(Task&& task) override { tasks_.push_back(std::move(task)); }
  void PostAt(absl::Time when, Task&& task) override {
    timers_.push_back({when, std::move(task)});
  }
  [[nodiscard]] absl::Time Now() const override { return clock_->Now(); }

  // Runs the oldest task, or else a timer that is due; false if neither.
  bool RunOne();
  [[nodiscard]] size_t pending() const { return tasks_.size(); }

 private:
  struct Timer {
    absl::Time when;
    Task task;
  };
  const Clock* clock_;
  std::deque<Task> tasks_;
  std::vector<Timer> timers_;
};

}  // namespace baton
