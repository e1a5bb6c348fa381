// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/weights/weight_source.h"

namespace baton {
namespace {

// Units [first, first + count) of `units` that `ranks` share; where they are
// fewer, neighbours have the same one.
TensorSplit::Run Share(int64_t all, int64_t units, int rank, int ranks) {
  const int64_t count = std::max<int64_t>(1, units / ranks);
  const int64_t first = rank * units / ranks;
  return {first * (all / units), (first + count) * (all / units)};
}

}  // namespace

TensorSplit::Run TensorSplit::Rows(int64_t all, int rank, int ranks) const {
  const bool cut = kind == Kind::kRows || kind == Kind::kSomeRows;
  return cut ? Share(all, units, rank, ranks) : Run{0, all};
}

TensorSplit::Run TensorSplit::Columns(int64_t all, int rank, int ranks) const {
  return kind == Kind::kColumns ? Share(all, units, rank, ranks) : Run{0, all};
}

}  // namespace baton
