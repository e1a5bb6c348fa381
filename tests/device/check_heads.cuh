// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/head_matmul.h"
#include "tests/device/check_support.cuh"

namespace baton::check {

struct HeadCase {
  int64_t heads, n, k, gap;  // gap: columns of a head behind its k
};

// Operands of a case; NaN in the gaps of x, zeros behind k of W.
struct HeadOperands {
  static constexpr int64_t kRows = 300;
  const HeadCase& c;
  int64_t head_stride, ldx, ldo, ldw;
  std::vector<Bf16> x, w;

  explicit HeadOperands(const HeadCase& of)
      : c(of),
        head_stride(c.k + c.gap),
        ldx(c.heads * head_stride + 8),
        ldo(c.heads * c.n + 6),
        ldw((c.k + 7) / 8 * 8),
        x(RandomBf16(kRows * ldx, 1)),
        w(RandomBf16(c.heads * c.n * ldw, 2)) {
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t column = static_cast<int64_t>(i) % ldx;
      const bool is_gap =
          column >= c.heads * head_stride || column % head_stride >= c.k;
      if (is_gap) x[i] = 0xffff;
    }
    for (size_t i = 0; i < w.size(); ++i) {
      if (static_cast<int64_t>(i) % ldw >= c.k) w[i] = 0;
    }
  }

  void ExpectValues(const std::string& what,
                    const std::vector<Bf16>& got) const {
    std::vector<double> want(kRows * c.heads * c.n);
    std::vector<double> tolerance(want.size());
    std::vector<Bf16> dense(want.size());
    Parallel(kRows * c.heads, [&](int64_t i) {
      const int64_t row = i / c.heads;
      const int64_t head = i % c.heads;
      const Bf16* from = x.data() + row * ldx + head * head_stride;
      for (int64_t j = 0; j < c.n; ++j) {
        const Bf16* of = w.data() + (head * c.n + j) * ldw;
        double sum = 0, magnitude = 0;
        for (int64_t d = 0; d < c.k; ++d) {
          const double product = double(ToFloat(from[d])) * ToFloat(of[d]);
          sum += product;
          magnitude += std::abs(product);
        }
        const int64_t at = i * c.n + j;
        want[at] = sum;
        tolerance[at] = kHalfUlp * std::abs(sum) + 1e-6 * magnitude;
        dense[at] = got[row * ldo + head * c.n + j];
      }
    });
    ExpectClose(what, dense, want, tolerance);
  }
};

// Bits of a row: the same whatever the number of rows.
inline void CheckHeadCase(const HeadCase& c) {
  const std::string what = Name(
      "head_matmul heads %d n %d k %d gap %d", static_cast<int>(c.heads),
      static_cast<int>(c.n), static_cast<int>(c.k), static_cast<int>(c.gap));
  const HeadOperands operands(c);
  constexpr int64_t kRows = HeadOperands::kRows;
  const int64_t ldo = operands.ldo;
  const Device<Bf16> x(operands.x);
  const Device<Bf16> w(operands.w);
  std::vector<const void*> pointers;
  for (int64_t h = 0; h < c.heads; ++h) {
    pointers.push_back(w.data() + h * c.n * operands.ldw);
  }
  const Device<const void*> dpointers(pointers);
  Device<Bf16> out(kRows * ldo);
  const auto run = [&](int64_t first, int64_t rows) {
    CUDA_OK(cuda::HeadMatmul(
        {dpointers.data(), c.heads, c.n, c.k, operands.ldw},
        {x.data() + first * operands.ldx, operands.ldx, operands.head_stride,
         out.data() + first * ldo, ldo, rows},
        nullptr));
  };
  run(0, kRows);
  const std::vector<Bf16> got = out.Download();
  operands.ExpectValues(what, got);
  bool padding = out.GuardsHold();
  for (int64_t row = 0; row < kRows; ++row) {
    padding &= IsPoison(got, row * ldo + c.heads * c.n, ldo - c.heads * c.n);
  }
  Expect(padding, what + " guards");
  for (const int64_t rows : {1, 7, 16, 17, 64, 65, 128, 129}) {
    out.Poison();
    const int64_t end = std::min(kRows, 20 * rows);
    for (int64_t first = 0; first < end; first += rows) {
      run(first, std::min(rows, end - first));
    }
    Expect(SameBits(out.Download(), 0, got, 0, end * ldo),
           what + Name(" %d rows at a time", static_cast<int>(rows)));
  }
}

inline void CheckHeads() {
  for (const HeadCase& c : {HeadCase{32, 512, 128, 64},
                            {32, 128, 512, 0},
                            {3, 36, 20, 12},
                            {5, 24, 8, 6},
                            {2, 70, 72, 8},
                            {3, 28, 36, 0},
                            {2, 33, 200, 8}}) {
    CheckHeadCase(c);
  }
}

}  // namespace baton::check
