// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "kernels/cuda/sequence_rows.h"
#include "tests/device/check_support.cuh"

namespace baton::check {

// Sequences behind each other in a batch, the first of one row; each has a
// slot, not in order.
struct SequenceSet {
  std::vector<int> lengths;
  std::vector<int> slots;

  explicit SequenceSet(std::vector<int> of) : lengths(std::move(of)) {
    slots.resize(lengths.size());
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), std::mt19937(7));
  }
  [[nodiscard]] int rows() const {
    return std::accumulate(lengths.begin(), lengths.end(), 0);
  }
  [[nodiscard]] int FirstRow(size_t s) const {
    return std::accumulate(lengths.begin(), lengths.begin() + s, 0);
  }
  // Rows [begin, begin + chunk) of each sequence that has some.
  [[nodiscard]] std::vector<cuda::SequenceRows> Part(int begin,
                                                     int chunk) const {
    std::vector<cuda::SequenceRows> part;
    for (size_t s = 0; s < lengths.size(); ++s) {
      if (lengths[s] <= begin) continue;
      part.push_back({FirstRow(s) + begin, std::min(chunk, lengths[s] - begin),
                      begin, slots[s]});
    }
    return part;
  }
};

inline int64_t RowsOf(const std::vector<cuda::SequenceRows>& part) {
  int64_t rows = 0;
  for (const cuda::SequenceRows& s : part) rows += s.rows;
  return rows;
}

// Calls submit(sequences, rows) for chunk after chunk of all sequences.
using SubmitPart = std::function<void(const cuda::Sequences&, int64_t)>;
inline void InChunks(const SequenceSet& set, int chunk,
                     const SubmitPart& submit) {
  for (int begin = 0;; begin += chunk) {
    const std::vector<cuda::SequenceRows> part = set.Part(begin, chunk);
    if (part.empty()) return;
    const Device<cuda::SequenceRows> on_device(part);
    submit({on_device.data(), static_cast<int64_t>(part.size())}, RowsOf(part));
    CUDA_OK(cudaDeviceSynchronize());
  }
}

// The layout of a recorded visit: the second rows of the sequences that have
// one, then sequences of nobody, the last without a row. Their rows are the
// first of the batch.
inline std::vector<cuda::SequenceRows> RecordedPart(const SequenceSet& set) {
  std::vector<cuda::SequenceRows> part = set.Part(1, 1);
  for (const int rows : {1, 1, 0}) part.push_back({0, rows, 0, -1});
  return part;
}

inline const std::vector<int>& SetLengths() {
  static const std::vector<int> lengths = {1,  2,  3,  5,  7,  8,  9,  16,
                                           17, 31, 32, 33, 40, 64, 65, 150};
  return lengths;
}

}  // namespace baton::check
