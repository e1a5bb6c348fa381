// SPDX-License-Identifier: Apache-2.0
// What a visit tells kernels on a device that is not the host: ids, positions,
// page tables and the rest, in one block of memory that goes there as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ops/batch.h"
#include "kernels/ops/sample.h"
#include "models/decoder.h"

namespace baton {

// Pages that no sequence has.
struct SparePages {
  PageId page = 0;
  PageId window_page = 0;
};

// Where a visit's arrays lie in one block of memory.
class VisitBlock {
 public:
  struct Sizes {
    int64_t rows = 0;
    int64_t sequences = 0;
    int64_t page_stride = 0;  // pages a sequence has room for
    bool windows = false;     // some layers keep a window of positions
    int64_t tiles = 0;        // of prompt rows
    int64_t logit_rows = 0;
  };
  // As small as the visit is.
  [[nodiscard]] static Sizes SizesOf(const VisitArgs& args, bool windows);
  explicit VisitBlock(const Sizes& sizes);

  [[nodiscard]] int64_t bytes() const { return bytes_; }
  // Writes the arrays to host memory. Rows, sequences and logit rows that the
  // visit does not have are token 0 at position 0 on spare pages, without a
  // slot, greedy, and without a place in `results`.
  void Fill(const VisitArgs& args, const SparePages& spare,
            const SampledRows& results, std::byte* host) const;
  [[nodiscard]] DeviceBatch Batch(std::byte* block, int64_t longest) const;
  [[nodiscard]] std::span<const int32_t> Ids(std::byte* block) const;
  [[nodiscard]] std::span<const SamplingRow> Sampling(std::byte* block) const;
  [[nodiscard]] const SampledRows* Results(std::byte* block) const;

 private:
  void FillTable(const AttentionBatch& batch,
                 std::span<const PageId> SequenceSpan::*pages, PageId spare,
                 PageId* table) const;

  Sizes sizes_;
  int64_t ids_ = 0, positions_ = 0, row_sequence_ = 0, page_table_ = 0;
  int64_t window_table_ = 0, sequences_ = 0;
  int64_t tiles_ = 0, sampling_ = 0, results_ = 0;  // offsets
  int64_t bytes_ = 0;
};

}  // namespace baton
