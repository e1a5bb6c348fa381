// SPDX-License-Identifier: Apache-2.0
// Slots of states, and sequences in pieces, for tests of ops that keep states.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/ops/delta_attention.h"
#include "tests/kernels/kernel_testing.h"

namespace baton {

using Doubles = std::vector<double>;

inline double D(const Tensor& t, int64_t row, int64_t i) {
  return static_cast<double>(At(t.view(), row, i));
}

inline double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

// A pool of slots, all poisoned but those that are cleared.
class Slots {
 public:
  Slots(int64_t slots, int64_t bytes)
      : memory_(Poisoned(DType::kF32, {slots, bytes / 4 + 3})) {}
  [[nodiscard]] StateSlots states() const {
    return {memory_.view().data(), memory_.shape()[0], memory_.shape()[1] * 4};
  }
  void Clear(int32_t slot) {
    std::memset(memory_.view().Rows(slot, slot + 1).data(), 0,
                static_cast<size_t>(memory_.shape()[1] * 4));
  }
  [[nodiscard]] ConstView Slot(int64_t slot) const {
    return memory_.view().Rows(slot, slot + 1);
  }

 private:
  Tensor memory_;
};

// Runs rows [first, first + rows) of what `run` is given, one sequence in
// `slot`, in pieces of `chunk`.
template <typename Run>
void InChunks(int64_t tokens, int64_t chunk, int32_t slot, const Run& run) {
  for (int64_t first = 0; first < tokens; first += chunk) {
    const int64_t rows = std::min(chunk, tokens - first);
    SequenceSpan span = {0, rows, first, {}};
    span.state_slot = slot;
    const AttentionBatch batch = {{&span, 1}, {}, {}};
    run(first, first + rows, &batch);
  }
}

}  // namespace baton
