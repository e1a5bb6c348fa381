// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace baton {
namespace {

TEST(ThreadPoolTest, CoversEveryIndexOnce) {
  ThreadPool pool(4);
  for (const int64_t count : {0, 1, 7, 64, 1000}) {
    for (const int64_t grain : {1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int) {
        for (; begin < end; ++begin) ++hits[static_cast<size_t>(begin)];
      });
      for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1);
    }
  }
}

TEST(ThreadPoolTest, HandsOutChunksOfAtMostTheGrain) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    pool.ParallelFor(100, 8, [&](int64_t begin, int64_t end, int worker) {
      EXPECT_LE(end - begin, 8);
      EXPECT_GE(worker, 0);
      EXPECT_LT(worker, threads);
    });
  }
}

TEST(ThreadPoolTest, RunsOnTheCallerAloneWithOneThread) {
  ThreadPool pool(1);
  const std::thread::id caller = std::this_thread::get_id();
  pool.ParallelFor(10, 1, [&](int64_t, int64_t, int worker) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(worker, 0);
  });
}

TEST(ThreadPoolTest, GivesEachWorkerItsOwnNumber) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  for (int loop = 0; loop < 200; ++loop) {
    pool.ParallelFor(64, 1, [&](int64_t, int64_t, int worker) {
      auto& mine = inside[static_cast<size_t>(worker)];
      EXPECT_EQ(mine.fetch_add(1), 0);
      mine.fetch_sub(1);
    });
  }
}

TEST(ThreadPoolTest, ShowsTheCallerWhatWorkersWrote) {
  ThreadPool pool(3);
  std::vector<int64_t> squares(500);
  for (int64_t loop = 0; loop < 2000; ++loop) {
    const int64_t count = loop % 500 + 1;
    pool.ParallelFor(count, 2, [&](int64_t begin, int64_t end, int) {
      for (; begin < end; ++begin) {
        squares[static_cast<size_t>(begin)] = begin * loop;
      }
    });
    ASSERT_EQ(squares[static_cast<size_t>(count - 1)], (count - 1) * loop);
  }
}

TEST(ThreadPoolTest, FinishesWithMoreThreadsThanCores) {
  ThreadPool pool(16);
  std::atomic<int64_t> sum = 0;
  for (int loop = 0; loop < 50; ++loop) {
    pool.ParallelFor(100, 1,
                     [&](int64_t begin, int64_t, int) { sum += begin; });
  }
  EXPECT_EQ(sum.load(), 50 * 4950);
}

TEST(ThreadPoolTest, EndsWithoutEverRunning) {
  ThreadPool pool(8);
  EXPECT_EQ(pool.threads(), 8);
}

}  // namespace
}  // namespace baton
