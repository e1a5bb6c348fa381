// SPDX-License-Identifier: Apache-2.0
// What the matmul kernels of all instruction sets share: the checks, and how a
// finished tile reaches the output.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/inner.h"
#include "kernels/ops/matmul.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {

// Leaves of one size, as many as the tree takes.
[[nodiscard]] inline bool LeavesFit(int64_t k, int leaves) {
  return (leaves == 1 || leaves == 2 || leaves == 4 || leaves == 8) &&
         k % leaves == 0;
}

template <typename T>
[[nodiscard]] Status CheckMatmul(const Matmul::Args& args) {
  ShapeMatch match("matmul");
  match.Match("x", args.x, {"tokens", "k"})
      .Match("out", args.out, {"tokens", "columns"})
      .IsType("x", args.x, kDTypeOf<T>);
  if (args.activation.IsGated()) {
    match.Match("product", args.product, {"tokens", "n"})
        .IsType("product", args.product, kDTypeOf<T>)
        .IsType("out", args.out, kDTypeOf<T>);
  }
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t n = args.activation.IsGated() ? match["n"] : match["columns"];
  return match.Require(args.weight.dtype == kDTypeOf<T>, "weight must be as x")
      .Require(args.weight.k == match["k"], "x must be as wide as the weight")
      .Require(args.weight.n == n, "out must be as wide as the weight")
      .Require(!args.activation.IsGated() || n == 2 * match["columns"],
               "product must be twice as wide as out")
      .Require(match["k"] > 0, "k must be positive")
      .Require(LeavesFit(args.weight.k, args.weight.leaves),
               "leaves must cut k into equal parts")
      .Require(
          args.out.dtype() == kDTypeOf<T> || args.out.dtype() == DType::kF32,
          "out must be of the dtype of x, or f32")
      .status();
}

// Block of 64 outputs, k padded.
template <typename T>
[[nodiscard]] const T* PackedBlock(const PackedMatrix& weight, int64_t block) {
  return reinterpret_cast<const T*>(weight.data) +
         block * kPackRows * PackedDepth(weight.k, weight.leaves);
}

// Writes tile [rows][64] to rows from `first_row` of the block's columns.
template <typename T>
void StoreTile(const InnerLoops<T>& loops, const float* tile, const View& out,
               int64_t first_row, int64_t rows, int64_t block) {
  const int64_t column = block * kPackRows;
  const int64_t columns = std::min(kPackRows, out.dim(1) - column);
  const bool wide = out.dtype() == DType::kF32;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = tile + row * kPackRows;
    if (wide) {
      std::memcpy(out.Row<float>(first_row + row) + column, from,
                  static_cast<size_t>(columns) * sizeof(float));
    } else {
      loops.narrow(from, out.Row<T>(first_row + row) + column, columns);
    }
  }
}

}  // namespace baton::cpu
