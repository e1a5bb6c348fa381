// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/ops/batch.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cuda {

// The batch is on the device, and is of `rows` rows; pages of `dtype` hold
// bf16.
inline void MatchBatch(ShapeMatch& match, const AttentionBatch* batch,
                       int64_t rows, DType dtype) {
  match.Require(batch != nullptr && batch->device != nullptr,
                "the batch is on the device");
  if (!match.status().ok()) return;
  match
      .Require(static_cast<int64_t>(batch->positions.size()) == rows,
               "one row per position")
      .Require(dtype == DType::kBF16, "the pages hold bf16");
}

}  // namespace baton::cuda
