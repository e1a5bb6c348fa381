// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process: each reads what the others have.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/transport/collective.h"

namespace baton {

// A group of ranks. A call has two meetings of all: behind the first every
// rank's rows are there, and each works out its share for everybody; behind the
// second all have what they came for. Only the first can fail: between the two
// nobody may leave, since the others use its memory.
class InprocRanks final : public RankGroup {
 public:
  // `size`: 1, 2, 4 or 8. `patience`: how long a rank waits for the others.
  InprocRanks(int size, absl::Duration patience);
  InprocRanks(const InprocRanks&) = delete;
  InprocRanks& operator=(const InprocRanks&) = delete;

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  // Its streams are those of CPUs.
  [[nodiscard]] Collective& rank(int rank) override {
    return ranks_[static_cast<size_t>(rank)];
  }

  void Abort(const Status& why) override;
  [[nodiscard]] Status Renew() override;
  // Only meets: each rank's thread once. Fails as a call does.
  [[nodiscard]] Status Meet() { return Meet(Waiting::kPatiently); }

 private:
  class Rank final : public Collective {
   public:
    Rank(InprocRanks* group, int rank) : group_(group), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return group_->size(); }
    Status AllReduce(ConstView partial, View out, Stream& stream) override;
    Status AllGather(ConstView x, View out, Stream& stream) override;

   private:
    InprocRanks* group_;
    int rank_;
  };
  // What a rank has come with.
  struct Entry {
    ConstView in;
    View out;
  };
  enum class Waiting { kPatiently, kForever };

  // A call's first meeting, with what the rank has, and its second.
  Status Enter(int rank, const Entry& entry);
  void Leave();
  Status Meet(Waiting waiting);
  void SumShare(int rank, Stream& stream) const;

  const absl::Duration patience_;
  std::vector<Rank> ranks_;
  // An entry is written before the first meeting and read behind it.
  std::vector<Entry> entries_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  int arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  Status ended_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> meetings_{0};  // written under the mutex
};

}  // namespace baton
