// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

namespace baton {

// A fixed set of threads for data-parallel loops inside one kernel. Work is
// taken in small chunks from a shared counter, so that a thread the scheduler
// takes away delays one chunk and not the loop; waiting spins for a short
// while, then yields, then sleeps.
//
// Owner thread: ParallelFor is called from one thread at a time. Which thread
// runs which chunk is not fixed: results must not depend on it.
class ThreadPool {
 public:
  // `threads` >= 1 counts the caller of ParallelFor.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const;

  // Calls body(begin, end, worker) for chunks of at most `grain` that cover
  // [0, count); worker is in [0, threads()). Returns when all are done.
  template <typename Body>
  void ParallelFor(int64_t count, int64_t grain, const Body& body) {
    Run(
        count, grain,
        [](const void* context, int64_t begin, int64_t end, int worker) {
          (*static_cast<const Body*>(context))(begin, end, worker);
        },
        &body);
  }

 private:
  using Chunk = void (*)(const void* context, int64_t begin, int64_t end,
                         int worker);
  void Run(int64_t count, int64_t grain, Chunk chunk, const void* context);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton
