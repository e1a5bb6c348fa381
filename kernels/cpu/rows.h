// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/thread_pool.h"
#include "runtime/tensor/device.h"

namespace baton::cpu {

// Calls body(row) for every row, on the stream's threads; rows of
// `row_elements` elements are handed out in runs that are worth a hand-over.
template <typename Body>
void ForRows(Stream& stream, int64_t rows, int64_t row_elements,
             const Body& body) {
  constexpr int64_t kWorth = 16384;  // elements
  const int64_t grain =
      std::max<int64_t>(1, kWorth / std::max<int64_t>(1, row_elements));
  PoolOf(stream).ParallelFor(rows, grain,
                             [&body](int64_t begin, int64_t end, int) {
                               for (int64_t row = begin; row < end; ++row)
                                 body(row);
                             });
}

}  // namespace baton::cpu
