// SPDX-License-Identifier: Apache-2.0
// A product on random data with an fp64 reference of some of its outputs.
#pragma once

#include <cmath>

#include "tests/device/device_test.cuh"

namespace baton::test {

inline constexpr int64_t kMaxTokens = 130;

// x [kMaxTokens, k] and w [n, k] on the device; NaN behind column k.
struct Operands {
  Operands(int64_t n_, int64_t k_)
      : n(n_), k(k_), ld((k_ + 7) / 8 * 8 + 8), x(kMaxTokens * ld), w(n_ * ld) {
    FillRandom(x.data(), kMaxTokens, k, ld, 1);
    FillRandom(w.data(), n, k, ld, 2);
  }

  int64_t n, k;
  int64_t ld;  // of both, elements
  DeviceArray<__nv_bfloat16> x, w;
};

// y of some rows of W, in fp64.
class Reference {
 public:
  explicit Reference(const Operands& operands) : k_(operands.k) {
    const int64_t step = std::max<int64_t>(1, operands.n / 20);
    for (int64_t row = 0; row < operands.n; row += step) rows_.push_back(row);
    rows_.push_back(operands.n - 1);
    std::vector<float> x(static_cast<size_t>(kMaxTokens * k_));
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = RandomAt(1, static_cast<int64_t>(i));
    }
    std::vector<float> w(static_cast<size_t>(k_));
    for (const int64_t row : rows_) {
      for (int64_t c = 0; c < k_; ++c) {
        w[static_cast<size_t>(c)] = RandomAt(2, row * k_ + c);
      }
      for (int64_t token = 0; token < kMaxTokens; ++token) {
        const float* at = x.data() + token * k_;
        double sum = 0;
        for (int64_t c = 0; c < k_; ++c) {
          sum += static_cast<double>(at[c]) * w[static_cast<size_t>(c)];
        }
        sums_.push_back(sum);
      }
    }
  }

  [[nodiscard]] const std::vector<int64_t>& rows() const { return rows_; }
  // y[token, rows()[i]].
  [[nodiscard]] double At(size_t i, int64_t token) const {
    return sums_[i * kMaxTokens + static_cast<size_t>(token)];
  }
  // Allowed for fp32 accumulation: rounding is relative to sums of the size of
  // the final one or of their spread, sqrt(k) / 3.
  [[nodiscard]] double Tolerance(double value) const {
    return std::ldexp(std::abs(value) + std::sqrt(static_cast<double>(k_)),
                      -17) +
           std::ldexp(static_cast<double>(k_), -22);
  }

 private:
  int64_t k_;
  std::vector<int64_t> rows_;
  std::vector<double> sums_;
};

inline float ToFloat(float v) { return v; }
inline float ToFloat(__nv_bfloat16 v) { return __bfloat162float(v); }

// Checks out [>= m + 1 rows, row stride ldo], which was poisoned: rows below m
// are complete and near the reference, all else is untouched. Prints the first
// fault and returns the number of faults.
template <typename T>
int CheckOutput(const char* what, const std::vector<T>& out, int64_t m,
                int64_t n, int64_t ldo, const Reference& reference) {
  int faults = 0;
  auto fault = [&](const char* why, int64_t token, int64_t row, double got,
                   double want) {
    if (faults++ == 0) {
      std::printf("FAIL %s: %s at [%ld, %ld]: %g, want %g\n", what, why,
                  static_cast<long>(token), static_cast<long>(row), got, want);
    }
  };
  const auto tokens = static_cast<int64_t>(out.size()) / ldo;
  T poison;
  std::memset(&poison, 0xff, sizeof(T));
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t row = 0; row < ldo; ++row) {
      const T& v = out[static_cast<size_t>(token * ldo + row)];
      const bool untouched = std::memcmp(&v, &poison, sizeof(T)) == 0;
      if (token < m && row < n) {
        if (untouched) fault("unwritten", token, row, ToFloat(v), 0);
      } else if (!untouched) {
        fault("overwritten", token, row, ToFloat(v), 0);
      }
    }
  }
  for (size_t i = 0; i < reference.rows().size(); ++i) {
    const int64_t row = reference.rows()[i];
    for (int64_t token = 0; token < m; ++token) {
      const double got = ToFloat(out[static_cast<size_t>(token * ldo + row)]);
      const double want = reference.At(i, token);
      const double rounding =
          sizeof(T) == 2 ? std::ldexp(std::abs(want), -8) : 0;
      if (!(std::abs(got - want) <= reference.Tolerance(want) + rounding)) {
        fault("wrong", token, row, got, want);
      }
    }
  }
  return faults == 0 ? 0 : 1;
}

}  // namespace baton::test
