// SPDX-License-Identifier: Apache-2.0
// Matrices of rows, the norm of one in double, and comparison row by row.
#pragma once

#include <functional>

#include "tests/device/check_support.cuh"

namespace baton::check {

// A matrix with a padded row stride.
struct Matrix {
  int64_t rows, columns, stride;
  std::vector<Bf16> values;

  Matrix(int64_t r, int64_t c, int64_t s, uint32_t seed, float scale = 1.0f)
      : rows(r),
        columns(c),
        stride(s),
        values(RandomBf16(r * s, seed, scale)) {}
  [[nodiscard]] float At(int64_t row, int64_t column) const {
    return ToFloat(values[row * stride + column]);
  }
};

inline std::vector<double> NormOf(const std::vector<double>& x,
                                  const std::vector<Bf16>& weight, float eps) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  const double factor =
      1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    y[i] = ToFloat(weight[i]) * x[i] * factor;
  return y;
}

// Compares rows of `got` (padded by `stride`) with want(row), and the padding
// with what was there.
inline void ExpectRows(
    const std::string& what, const std::vector<Bf16>& got, int64_t rows,
    int64_t columns, int64_t stride,
    const std::function<std::vector<double>(int64_t)>& want) {
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<Bf16> slice(got.begin() + row * stride,
                                  got.begin() + row * stride + columns);
    const std::vector<double> expected = want(row);
    std::vector<double> tolerance(expected.size());
    for (size_t i = 0; i < tolerance.size(); ++i) {
      tolerance[i] = kHalfUlp * std::abs(expected[i]) + 4e-6;
    }
    ExpectClose(what + Name(" row %d", static_cast<int>(row)), slice, expected,
                tolerance);
    Expect(IsPoison(got, row * stride + columns, stride - columns),
           what + " padding");
  }
}

}  // namespace baton::check
