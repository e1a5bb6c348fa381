// SPDX-License-Identifier: Apache-2.0
// Debian's Abseil is not instrumented, so ThreadSanitizer does not see what its
// mutexes order. Tests built with -fsanitize=thread link these definitions in
// place of the library's: the same behaviour over pthread mutexes, which the
// sanitizer knows. Readers are exclusive here.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

// Lives behind the one word that an absl::Mutex is; made at first use, since
// the constructors are inline.
struct State {
  std::mutex mutex;
  std::condition_variable unlocked;  // for Await
};

template <typename T, typename Owner>
T& StateOf(const Owner* owner) {
  static_assert(sizeof(Owner) == sizeof(std::atomic<T*>));
  auto& word = *reinterpret_cast<std::atomic<T*>*>(const_cast<Owner*>(owner));
  T* state = word.load(std::memory_order_acquire);
  if (state != nullptr) return *state;
  T* made = new T;
  if (word.compare_exchange_strong(state, made)) return *made;
  delete made;
  return *state;
}
State& Of(const Mutex* mutex) { return StateOf<State>(mutex); }
std::condition_variable& Of(const CondVar* changed) {
  return StateOf<std::condition_variable>(changed);
}

// Waits until notified or `deadline`, with the mutex held before and after;
// false at the deadline.
bool WaitUntil(std::condition_variable& condition, State& state,
               Time deadline) {
  std::unique_lock<std::mutex> lock(state.mutex, std::adopt_lock);
  bool notified = true;
  if (deadline == InfiniteFuture()) {
    condition.wait(lock);
  } else {
    const auto until = ToChronoTime(deadline);
    notified = condition.wait_until(lock, until) == std::cv_status::no_timeout;
  }
  lock.release();
  return notified;
}

}  // namespace

Mutex::~Mutex() { delete &Of(this); }
void Mutex::Lock() { Of(this).mutex.lock(); }
bool Mutex::TryLock() { return Of(this).mutex.try_lock(); }
void Mutex::Unlock() {
  State& state = Of(this);
  state.unlocked.notify_all();
  state.mutex.unlock();
}
void Mutex::ReaderLock() { Lock(); }
bool Mutex::ReaderTryLock() { return TryLock(); }
void Mutex::ReaderUnlock() { Unlock(); }
void Mutex::AssertHeld() const {}
void Mutex::AssertNotHeld() const {}
void Mutex::AssertReaderHeld() const {}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  State& state = Of(this);
  while (!condition.Eval()) {
    state.unlocked.notify_all();
    if (!WaitUntil(state.unlocked, state, deadline)) return condition.Eval();
  }
  return true;
}
bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  return AwaitWithDeadline(condition, Now() + timeout);
}
void Mutex::Await(const Condition& condition) {
  AwaitWithDeadline(condition, InfiniteFuture());
}
bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  Lock();
  return AwaitWithDeadline(condition, deadline);
}
bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  return LockWhenWithDeadline(condition, Now() + timeout);
}
void Mutex::LockWhen(const Condition& condition) {
  LockWhenWithDeadline(condition, InfiniteFuture());
}

CondVar::~CondVar() { delete &Of(this); }
bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  State& state = Of(mutex);
  state.unlocked.notify_all();
  return !WaitUntil(Of(this), state, deadline);
}
bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  return WaitWithDeadline(mutex, Now() + timeout);
}
void CondVar::Wait(Mutex* mutex) { WaitWithDeadline(mutex, InfiniteFuture()); }
void CondVar::Signal() { Of(this).notify_one(); }
void CondVar::SignalAll() { Of(this).notify_all(); }

ABSL_NAMESPACE_END
}  // namespace absl
