// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/base/check.h"

namespace baton {
namespace {

// Waiting first spins (a loop follows within microseconds in the usual case),
// then gives the core to whoever else wants it.
constexpr int kSpins = 2000;
constexpr int kYields = 1000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Waits until `ready()` or the patience of spinning and yielding is used up.
template <typename Ready>
bool SpinThenYield(const Ready& ready) {
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return true;
    Pause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (ready()) return true;
    sched_yield();
  }
  return ready();
}

}  // namespace

// One loop at a time is open to the workers: `epoch` is odd while it is. A
// worker announces itself in `inside` and looks at `epoch` again before it
// touches the loop; the caller closes the epoch before it waits for `inside`
// to become zero. So a worker that comes late finds the door closed, and the
// caller waits only for workers that hold a chunk.
struct ThreadPool::State {
  explicit State(int count) : threads(count) {
    for (int worker = 1; worker < count; ++worker) {
      workers.emplace_back([this, worker] { Work(worker); });
    }
  }

  ~State() {
    {
      std::lock_guard lock(mutex);
      stop.store(true);
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void TakeChunks(int worker) {
    while (true) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      chunk(context, begin, std::min(begin + grain, count), worker);
    }
  }

  void Work(int worker) {
    uint64_t seen = 0;
    while (WaitForLoop(seen)) {
      inside.fetch_add(1);
      const uint64_t now = epoch.load();
      if (now % 2 == 1) TakeChunks(worker);
      seen = now;
      inside.fetch_sub(1);
    }
  }

  // Waits for an open loop other than `seen`. False: the pool ends.
  bool WaitForLoop(uint64_t seen) {
    const auto ready = [this, seen] {
      const uint64_t now = epoch.load();
      return (now % 2 == 1 && now != seen) || stop.load();
    };
    if (!SpinThenYield(ready)) {
      std::unique_lock lock(mutex);
      sleepers.fetch_add(1);
      wake.wait(lock, ready);
      sleepers.fetch_sub(1);
    }
    return !stop.load();
  }

  void Open() {
    epoch.fetch_add(1);
    if (sleepers.load() > 0) {
      std::lock_guard lock(mutex);
      wake.notify_all();
    }
  }

  void CloseAndWait() {
    epoch.fetch_add(1);
    while (!SpinThenYield([this] { return inside.load() == 0; })) {
    }
  }

  const int threads;
  // The open loop; written while no worker is inside.
  Chunk chunk = nullptr;
  const void* context = nullptr;
  int64_t count = 0;
  int64_t grain = 1;

  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<uint64_t> epoch{0};
  alignas(64) std::atomic<int> inside{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::thread> workers;
};

ThreadPool::ThreadPool(int threads) {
  BATON_CHECK(threads >= 1);
  state_ = std::make_unique<State>(threads);
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return state_->threads; }

void ThreadPool::Run(int64_t count, int64_t grain, Chunk chunk,
                     const void* context) {
  BATON_CHECK(grain >= 1);
  if (count <= 0) return;
  State& state = *state_;
  if (state.threads == 1 || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += grain) {
      chunk(context, begin, std::min(begin + grain, count), 0);
    }
    return;
  }
  state.chunk = chunk;
  state.context = context;
  state.count = count;
  state.grain = grain;
  state.next.store(0, std::memory_order_relaxed);
  state.Open();
  state.TakeChunks(0);
  state.CloseAndWait();
}

}  // namespace baton
