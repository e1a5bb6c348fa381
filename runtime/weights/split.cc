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

std::vector<TensorSplit::Run> TensorSplit::Rows(int64_t all, int rank,
                                                int ranks) const {
  switch (kind) {
    case Kind::kRows:
    case Kind::kSomeRows:
      return {Share(all, units, rank, ranks)};
    case Kind::kQueryKeyValue: {
      const int64_t queries = all / (units + 2 * kv_units) * units;
      const int64_t keys = (all - queries) / 2;
      const Run k = Share(keys, kv_units, rank, ranks);
      return {Share(queries, units, rank, ranks),
              {queries + k.begin, queries + k.end},
              {queries + keys + k.begin, queries + keys + k.end}};
    }
    case Kind::kOneOf: {
      const Run held = Share(units, units, rank, ranks);
      if (unit >= held.begin && unit < held.end) break;
      return {};
    }
    case Kind::kWhole:
    case Kind::kColumns:
      break;
  }
  return {{0, all}};
}

int64_t TensorSplit::NumRows(int64_t all, int rank, int ranks) const {
  int64_t rows = 0;
  for (const Run& run : Rows(all, rank, ranks)) rows += run.size();
  return rows;
}

TensorSplit::Run TensorSplit::Columns(int64_t all, int rank, int ranks) const {
  return kind == Kind::kColumns ? Share(all, units, rank, ranks) : Run{0, all};
}

}  // namespace baton
