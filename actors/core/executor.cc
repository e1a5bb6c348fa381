// SPDX-License-Identifier: Apache-2.0
#include "actors/core/executor.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace baton {
namespace {

constexpr absl::Duration kLongest = absl::Seconds(1);

}  // namespace

ThreadExecutor::ThreadExecutor(std::string name, Poller* poller)
    : poller_(poller) {
  thread_ = std::thread([this, name = name.substr(0, 15)] {
    pthread_setname_np(pthread_self(), name.c_str());
    Loop();
  });
}

ThreadExecutor::~ThreadExecutor() { Stop(); }

void ThreadExecutor::Post(Task&& task) {
  bool interrupt = false;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
    interrupt = sleeping_;
  }
  if (interrupt && poller_ != nullptr) poller_->Interrupt();
}

void ThreadExecutor::PostAt(absl::Time when, Task&& task) {
  bool interrupt = false;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    timers_.push_back({when, next_order_++, std::move(task)});
    std::push_heap(timers_.begin(), timers_.end(), [](auto& a, auto& b) {
      return std::pair(a.when, a.order) > std::pair(b.when, b.order);
    });
    interrupt = sleeping_;
  }
  if (interrupt && poller_ != nullptr) poller_->Interrupt();
}

void ThreadExecutor::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (poller_ != nullptr) poller_->Interrupt();
  if (thread_.joinable()) thread_.join();
}

bool ThreadExecutor::RunOne() {
  Task task;
  {
    absl::MutexLock lock(&mutex_);
    // A due timer first: tasks may never run out.
    if (!stopping_ && !timers_.empty() && timers_.front().when <= absl::Now()) {
      std::pop_heap(timers_.begin(), timers_.end(), [](auto& a, auto& b) {
        return std::pair(a.when, a.order) > std::pair(b.when, b.order);
      });
      task = std::move(timers_.back().task);
      timers_.pop_back();
    } else if (!tasks_.empty()) {
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
  }
  if (!task) return false;
  task();
  return true;
}

absl::Time ThreadExecutor::NextLook() const {
  const absl::Time latest = absl::Now() + kLongest;
  return timers_.empty() ? latest : std::min(timers_.front().when, latest);
}

void ThreadExecutor::Loop() {
  while (true) {
    const bool ran = RunOne();
    const bool polled = poller_ != nullptr && poller_->Progress();
    if (ran || polled) continue;
    absl::Time until;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_ && tasks_.empty()) return;
      until = NextLook();
      if (poller_ == nullptr) {
        auto ready = [this, until]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stopping_ || !tasks_.empty() || NextLook() < until;
        };
        mutex_.AwaitWithDeadline(absl::Condition(&ready), until);
        continue;
      }
      if (stopping_ || !tasks_.empty()) continue;
      sleeping_ = true;
    }
    poller_->Wait(std::max(until - absl::Now(), absl::ZeroDuration()));
    absl::MutexLock lock(&mutex_);
    sleeping_ = false;
  }
}

bool ManualExecutor::RunOne() {
  Task task;
  if (!tasks_.empty()) {
    task = std::move(tasks_.front());
    tasks_.pop_front();
  } else {
    auto due =
        std::find_if(timers_.begin(), timers_.end(),
                     [&](const Timer& t) { return t.when <= clock_->Now(); });
    if (due == timers_.end()) return false;
    task = std::move(due->task);
    timers_.erase(due);
  }
  task();
  return true;
}

}  // namespace baton
