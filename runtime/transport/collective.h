// SPDX-License-Identifier: Apache-2.0
// Sums and moves among the ranks of one stage. Every rank enters every call in
// the same order, with zero rows too. A rank that fails elsewhere enters no
// more: whoever runs the ranks tells the others.
#pragma once

#include <functional>
#include <span>

#include "runtime/base/status.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// Owner thread: the rank's.
class Collective {
 public:
  virtual ~Collective() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // `out` [rows, n]: the sum of the ranks' `partial` [rows, n] f32, which goes
  // on with the tree of matmul leaves (kernels/ops/matmul.h), (0+1)+(2+3), and
  // is rounded once to the dtype of `out`. Any Status that ended the group.
  virtual Status AllReduce(ConstView partial, View out, Stream& stream) = 0;
  // `out` [rows, size * n]: the ranks' `x` [rows, n] beside each other, in rank
  // order. A rank may want nothing and pass a view without data. Fails as
  // AllReduce.
  virtual Status AllGather(ConstView x, View out, Stream& stream) = 0;
  // Every rank enters it before and after it launches recorded calls, with
  // nothing to allocate between. Fails as AllReduce.
  virtual Status Meet() { return OkStatus(); }
};

// The ranks of one stage, in one process.
class RankGroup {
 public:
  virtual ~RankGroup() = default;
  // That rank's end. Owner thread: the rank's.
  [[nodiscard]] virtual Collective& rank(int rank) = 0;
  // Calls `submit`, which submits a visit to the ranks' streams. GPUs that
  // several groups share run visits one after the other, in one order on all of
  // them; else two groups whose kernels wait could each keep the other from
  // starting on one of its GPUs. Thread: any, with no rank inside a call.
  virtual Status InTurn(std::span<Stream* const> streams,
                        const std::function<Status()>& submit) {
    return submit();
  }
  // Ends the group: whoever waits for a rank, and whoever enters from now on,
  // gets `why`, unless the group has ended before. Thread: any.
  virtual void Abort(const Status& why) = 0;
  // Why it has ended; OK: it has not. If it can, it is as new again.
  // Thread: any, with no rank inside a call.
  [[nodiscard]] virtual Status Renew() = 0;
};

// A group of one rank. It has nothing to sum, and callers hand on what they
// have instead of asking (Step::Reduced, Step::Gathered). Internal: asked.
class SingleRankCollective final : public Collective {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status AllReduce(ConstView partial, View out, Stream& stream) override {
    return Internal("all-reduce of one rank");
  }
  Status AllGather(ConstView x, View out, Stream& stream) override {
    return Internal("all-gather of one rank");
  }
};

}  // namespace baton
