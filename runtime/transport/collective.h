// SPDX-License-Identifier: Apache-2.0
// Sums and moves among the ranks of one stage. Every rank enters every call in
// the same order, with zero rows too.
#pragma once

#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// Owner thread: the stage's.
class Collective {
 public:
  virtual ~Collective() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // In place: `x` becomes the sum over the ranks, which continues the tree of
  // matmul leaves (kernels/ops/matmul.h). Internal: the transport failed.
  virtual Status AllReduce(View x, Stream& stream) = 0;
  // `out` [rows / size, n]: this rank's rows of the sum of `x` [rows, n].
  virtual Status ReduceScatter(ConstView x, View out, Stream& stream) = 0;
  // `out` [rows * size, n]: every rank's `x` [rows, n], in rank order.
  virtual Status AllGather(ConstView x, View out, Stream& stream) = 0;
};

// A group of one rank: a sum is its only summand. The scattering and gathering
// callers move the value instead of copying it (models/residual/boundary.cc).
class SingleRankCollective final : public Collective {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status AllReduce(View x, Stream& stream) override { return OkStatus(); }
  Status ReduceScatter(ConstView x, View out, Stream& stream) override {
    return Alias(x, out);
  }
  Status AllGather(ConstView x, View out, Stream& stream) override {
    return Alias(x, out);
  }

 private:
  static Status Alias(ConstView x, View out) {
    BATON_CHECK(x.data() == out.data());
    return OkStatus();
  }
};

}  // namespace baton
