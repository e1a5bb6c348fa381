// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_shapes.h"
#include "kernels/ops/matmul.h"
#include "runtime/base/thread_pool.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {
namespace {

// Packs rows [begin, end) of args.rows, which lie in one block of outputs.
// K runs in short strips so that the lines of the block stay in the cache
// while all of its rows write to them.
template <typename T, typename From>
void PackRows(const PackMatrix::Args& args, int64_t begin, int64_t end) {
  constexpr int64_t kStrip = 64;
  constexpr int64_t kPair = std::is_same_v<T, bf16> ? 2 : 1;
  const int64_t first = args.first_row + begin;
  const PackedRuns runs = PackedRunsOf(args.k, args.leaves);
  T* block = reinterpret_cast<T*>(args.packed) +
             first / kPackRows * kPackRows * PackedDepth(args.k, args.leaves);
  for (int64_t run = 0; run < runs.count; ++run) {
    for (int64_t strip = 0; strip < runs.size; strip += kStrip) {
      const int64_t strip_end = std::min(strip + kStrip, runs.size);
      for (int64_t row = begin; row < end; ++row) {
        const From* from = args.rows.template Row<From>(row) + run * runs.size;
        T* to = block + run * runs.depth * kPackRows +
                (args.first_row + row) % kPackRows * kPair;
        for (int64_t k = strip; k < strip_end; ++k) {
          T& place = to[k / kPair * kPackRows * kPair + k % kPair];
          if constexpr (std::is_same_v<T, From>) {
            place = from[k];
          } else {
            place = T(static_cast<float>(from[k]));
          }
        }
      }
    }
  }
}

}  // namespace

template <typename T>
Status PackMatrixCpu(const PackMatrix::Args& args, Stream& stream) {
  ShapeMatch match("pack_matrix");
  match.Match("rows", args.rows, {"rows", "k"});
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t rows = match["rows"];
  match.Require(match["k"] == args.k, "rows must be as wide as the matrix")
      .Require(args.dtype == kDTypeOf<T>, "dtype must be the kernel's")
      .Require(args.first_row >= 0 && args.first_row + rows <= args.n,
               "rows must lie inside the matrix")
      .Require(LeavesFit(args.k, args.leaves),
               "leaves must cut k into equal parts")
      .Require(
          args.rows.dtype() == kDTypeOf<T> ||
              (args.rows.dtype() == DType::kBF16 && kDTypeOf<T> == DType::kF32),
          "rows must be of the packed dtype, or bf16 for f32");
  BATON_RETURN_IF_ERROR(match.status());
  if (rows == 0) return OkStatus();

  const int64_t first_block = args.first_row / kPackRows;
  const int64_t blocks =
      (args.first_row + rows - 1) / kPackRows - first_block + 1;
  const bool widen = args.rows.dtype() != kDTypeOf<T>;
  PoolOf(stream).ParallelFor(blocks, 1, [&](int64_t b, int64_t b_end, int) {
    for (; b < b_end; ++b) {
      const int64_t begin = (first_block + b) * kPackRows - args.first_row;
      const int64_t from = std::max<int64_t>(begin, 0);
      const int64_t to = std::min(begin + kPackRows, rows);
      if (widen) {
        PackRows<T, bf16>(args, from, to);
      } else {
        PackRows<T, T>(args, from, to);
      }
    }
  });
  return OkStatus();
}

template Status PackMatrixCpu<float>(const PackMatrix::Args&, Stream&);
template Status PackMatrixCpu<bf16>(const PackMatrix::Args&, Stream&);

}  // namespace baton::cpu
