// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops/batch.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cuda {

// The batch is on the device, and is of `rows` rows.
inline void MatchRows(ShapeMatch& match, const AttentionBatch* batch,
                      int64_t rows) {
  match.Require(batch != nullptr && batch->device != nullptr,
                "the batch is on the device");
  if (!match.status().ok()) return;
  match.Require(static_cast<int64_t>(batch->positions.size()) == rows,
                "one row per position");
}
// The same; pages of `dtype` hold bf16.
inline void MatchBatch(ShapeMatch& match, const AttentionBatch* batch,
                       int64_t rows, DType dtype) {
  MatchRows(match, batch, rows);
  match.Require(dtype == DType::kBF16, "the pages hold bf16");
}

// Whether all rows are generated, one a sequence. Of recorded visits the host
// knows no sequences: they are of such rows.
[[nodiscard]] inline bool HasOneRowEach(const AttentionBatch& batch) {
  const auto rows = static_cast<int64_t>(batch.positions.size());
  return batch.device->num_sequences == rows &&
         std::all_of(batch.runs.begin(), batch.runs.end(),
                     [](const RowRun& run) {
                       return run.kind == RowKind::kGenerated;
                     }) &&
         std::all_of(batch.sequences.begin(), batch.sequences.end(),
                     [](const SequenceSpan& span) { return span.rows == 1; });
}

}  // namespace baton::cuda
