// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "models/layers/linear.h"
#include "models/layers/weights.h"
#include "models/residual/stream.h"
#include "models/step.h"

namespace baton {

// Logits in f32. They have exactly `vocab` columns: rows that packing pads
// have no column, so they cannot win. A row's logits choose a token that is
// generated, whatever the row is: its kind is "generated" here. Of several
// ranks each has a run of the vocabulary, and the first gets all logits.
class LmHead {
 public:
  // `rows`: one per vocabulary entry.
  LmHead(const WeightScope& w, const FusedRows& rows, int64_t hidden)
      : vocab_(rows.rows), hidden_(hidden), linear_(w, {rows}, hidden) {}

  // Logits [rows.size(), vocab] of the batch rows named, ascending; on ranks
  // other than the first, without data.
  Logits operator()(Normed&& x, std::span<const int32_t> rows,
                    Step& step) const {
    const int64_t n = static_cast<int64_t>(rows.size());
    Tensor own = step.NewTensor(DType::kF32, {n, linear_.out()});
    if (n == x.view().dim(0)) {
      linear_.Into(x.view(), own.view(), {}, step);
    } else {
      const Scratch wanted = step.NewScratch(n, hidden_);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t row = rows[static_cast<size_t>(i)];
        step.Copy(wanted.view().Rows(i, i + 1), x.view().Rows(row, row + 1));
      }
      linear_.Into(wanted.view(), own.view(), {}, step);
    }
    if (step.tp().size() == 1) return Logits(std::move(own));
    Tensor all;
    if (step.tp().rank() == 0) all = step.NewTensor(DType::kF32, {n, vocab_});
    step.Gather(own.view(), all.view());
    return Logits(std::move(all));
  }
  template <typename T>
  auto operator()(T&&, std::span<const int32_t>, Step&) const {
    BATON_RESIDUAL_REFUSE(
        T, "residual.normed: the head reads what FinalNorm made");
  }

 private:
  int64_t vocab_;
  int64_t hidden_;
  Linear linear_;
};

}  // namespace baton
