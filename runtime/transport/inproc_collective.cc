// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/inproc_collective.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "runtime/base/check.h"
#include "runtime/base/thread_pool.h"

namespace baton {
namespace {

// Ranks do the same work and arrive within microseconds, unless they have to
// share cores; then sleeping lets the others run.
constexpr int kSpins = 2000;
constexpr int kYields = 100;

constexpr int64_t kRun = 1024;  // elements that are summed at a time

// sums[i] of all summands' [at, at + n), as a balanced tree; n <= kRun.
void AddTree(std::span<const float* const> summands, int64_t at, int64_t n,
             float* sums) {
  if (summands.size() == 1) {
    std::copy_n(summands[0] + at, n, sums);
    return;
  }
  float right[kRun];
  const size_t half = summands.size() / 2;
  AddTree(summands.first(half), at, n, sums);
  AddTree(summands.last(half), at, n, right);
  for (int64_t i = 0; i < n; ++i) sums[i] += right[i];
}

void Round(const float* sums, int64_t at, int64_t n, const View& out) {
  if (out.dtype() == DType::kF32) {
    std::copy_n(sums, n, out.Row<float>(0) + at);
    return;
  }
  bf16* to = out.Row<bf16>(0) + at;
  for (int64_t i = 0; i < n; ++i) to[i] = bf16(sums[i]);
}

}  // namespace

InprocRanks::InprocRanks(int size, absl::Duration patience)
    : patience_(patience), entries_(static_cast<size_t>(size)) {
  BATON_CHECK(size == 1 || size == 2 || size == 4 || size == 8);
  for (int rank = 0; rank < size; ++rank) ranks_.emplace_back(this, rank);
}

void InprocRanks::Abort(const Status& why) {
  absl::MutexLock lock(&mutex_);
  if (ended_.ok()) ended_ = why;
  changed_.SignalAll();
}

Status InprocRanks::Renew() {
  absl::MutexLock lock(&mutex_);
  arrived_ = 0;
  return std::exchange(ended_, OkStatus());
}

Status InprocRanks::Enter(int rank, const Entry& entry) {
  entries_[static_cast<size_t>(rank)] = entry;
  BATON_RETURN_IF_ERROR(Meet(Waiting::kPatiently));
  for (const Entry& other : entries_) {
    BATON_CHECK(other.in.shape() == entry.in.shape());
  }
  return OkStatus();
}

void InprocRanks::Leave() { BATON_CHECK(Meet(Waiting::kForever).ok()); }

Status InprocRanks::Meet(Waiting waiting) {
  uint64_t before = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (waiting == Waiting::kPatiently && !ended_.ok()) return ended_;
    before = meetings_.load(std::memory_order_relaxed);
    if (++arrived_ == size()) {
      arrived_ = 0;
      meetings_.store(before + 1, std::memory_order_release);
      changed_.SignalAll();
      return OkStatus();
    }
  }
  for (int i = 0; i < kSpins + kYields; ++i) {
    if (meetings_.load(std::memory_order_acquire) != before) return OkStatus();
    if (i >= kSpins) sched_yield();
  }
  const absl::Time deadline = waiting == Waiting::kPatiently
                                  ? absl::Now() + patience_
                                  : absl::InfiniteFuture();
  absl::MutexLock lock(&mutex_);
  while (meetings_.load(std::memory_order_relaxed) == before) {
    if (waiting == Waiting::kPatiently && !ended_.ok()) return ended_;
    if (changed_.WaitWithDeadline(&mutex_, deadline) && ended_.ok() &&
        meetings_.load(std::memory_order_relaxed) == before) {
      ended_ = DeadlineExceeded("a rank waited {} for the other ranks",
                                absl::FormatDuration(patience_));
      changed_.SignalAll();
    }
  }
  return OkStatus();
}

// A rank sums one of `size` equal runs of all elements, for everybody.
void InprocRanks::SumShare(int rank, Stream& stream) const {
  std::vector<const float*> summands;
  for (const Entry& entry : entries_) {
    BATON_CHECK(entry.in.contiguous() && entry.out.contiguous() &&
                entry.out.shape() == entry.in.shape());
    summands.push_back(entry.in.Row<float>(0));
  }
  const int64_t all = entries_[0].in.shape().NumElements();
  const int64_t begin = all * rank / size();
  const int64_t end = all * (rank + 1) / size();
  const int64_t runs = (end - begin + kRun - 1) / kRun;
  PoolOf(stream).ParallelFor(runs, 1, [&](int64_t run, int64_t last, int) {
    for (; run < last; ++run) {
      float sums[kRun];
      const int64_t at = begin + run * kRun;
      const int64_t n = std::min(kRun, end - at);
      AddTree(summands, at, n, sums);
      for (const Entry& entry : entries_) Round(sums, at, n, entry.out);
    }
  });
}

Status InprocRanks::Rank::AllReduce(ConstView partial, View out,
                                    Stream& stream) {
  BATON_RETURN_IF_ERROR(group_->Enter(rank_, {.in = partial, .out = out}));
  group_->SumShare(rank_, stream);
  group_->Leave();
  return OkStatus();
}

Status InprocRanks::Rank::AllGather(ConstView x, View out, Stream& stream) {
  BATON_RETURN_IF_ERROR(group_->Enter(rank_, {.in = x, .out = out}));
  const int64_t bytes = x.RowElements() * SizeOf(x.dtype());
  for (const Entry& entry : group_->entries_) {
    if (entry.out.data() == nullptr) continue;
    BATON_CHECK(entry.out.dtype() == x.dtype() &&
                entry.out.RowElements() == x.RowElements() * size());
    const int64_t stride = entry.out.row_stride() * SizeOf(x.dtype());
    const int64_t from = x.row_stride() * SizeOf(x.dtype());
    for (int64_t row = 0; row < x.dim(0); ++row) {
      std::memcpy(entry.out.data() + row * stride + rank_ * bytes,
                  x.data() + row * from, static_cast<size_t>(bytes));
    }
  }
  group_->Leave();
  return OkStatus();
}

}  // namespace baton
