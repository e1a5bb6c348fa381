// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/ops/embedding.h"
#include "models/layers/weights.h"
#include "models/residual/stream.h"
#include "models/step.h"

namespace baton {

// Token ids to rows; the only way from ids to a Hidden. A rank looks up its
// columns of all rows.
class TokenEmbedding {
 public:
  TokenEmbedding(const WeightScope& w, std::string_view name, int64_t vocab,
                 int64_t hidden)
      : hidden_(hidden),
        table_(w.Table(name, vocab, hidden)),
        embedding_(w.Kernel<Embedding>()) {}

  // ids: [rows], checked; below zero, of `drawn` (ops/embedding.h).
  Hidden operator()(std::span<const int32_t> ids,
                    std::span<const int32_t> drawn, Step& step) const {
    Tensor rows = step.NewTensor(step.stream_dtype(),
                                 {static_cast<int64_t>(ids.size()), hidden_});
    if (step.tp().size() == 1) {
      LookUp(ids, drawn, rows.view(), step);
    } else {
      const Scratch own = step.NewScratch(step.stream_dtype(), rows.shape()[0],
                                          table_.shape()[1]);
      LookUp(ids, drawn, own.view(), step);
      step.Gather(own.view(), rows.view());
    }
    return {std::move(rows), step};
  }

 private:
  void LookUp(std::span<const int32_t> ids, std::span<const int32_t> drawn,
              View out, Step& step) const {
    step.Run<Embedding>(
        embedding_,
        {.ids = ids, .table = table_.view(), .out = out, .drawn = drawn});
  }

  int64_t hidden_;
  Tensor table_;  // [vocab, hidden], or the rank's columns of it
  KernelFn<Embedding> embedding_;
};

}  // namespace baton
