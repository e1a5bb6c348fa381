// SPDX-License-Identifier: Apache-2.0
// A residual stream of f32 beside bf16: norms, sums and look-ups.
#pragma once

#include "kernels/cuda/row_kernels.h"
#include "tests/device/check_rows_support.cuh"

namespace baton::check {

inline constexpr cuda::StreamType kWide = cuda::StreamType::kF32;

inline std::vector<float> RandomF32(int64_t count, uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

inline bool SameFloats(const std::vector<float>& a, int64_t a_at,
                       const std::vector<float>& b, int64_t b_at,
                       int64_t count) {
  return std::memcmp(a.data() + a_at, b.data() + b_at,
                     static_cast<size_t>(count) * sizeof(float)) == 0;
}

// The norm of f32 rows, in double.
inline std::vector<double> NormOfRow(const std::vector<float>& x, int64_t at,
                                     const std::vector<Bf16>& weight) {
  return NormOf(
      {x.begin() + at, x.begin() + at + static_cast<int64_t>(weight.size())},
      weight, 1e-5f);
}

inline void CheckWideNorm(int64_t rows, int64_t hidden, int64_t pad) {
  const std::string what =
      Name("wide rms_norm rows %d hidden %d pad %d", static_cast<int>(rows),
           static_cast<int>(hidden), static_cast<int>(pad));
  const int64_t stride = hidden + pad;
  const std::vector<float> x = RandomF32(rows * stride, 41, 2.0f);
  const std::vector<Bf16> weight = RandomBf16(hidden, 43);
  const Device<float> dx(x);
  const Device<Bf16> dw(weight);
  const Device<Bf16> dout(rows * stride);
  cuda::RmsNormArgs args = {dx.data(), stride, dw.data(), dout.data(), stride,
                            rows,      hidden, 1e-5f,     kWide};
  CUDA_OK(cuda::RmsNormRows(args, nullptr));
  const std::vector<Bf16> out = dout.Download();
  ExpectRows(what, out, rows, hidden, stride,
             [&](int64_t row) { return NormOfRow(x, row * stride, weight); });
  Expect(dout.GuardsHold(), what + " guards");
  // The last row alone, one element off any alignment: the same bits.
  const int64_t last = (rows - 1) * stride;
  std::vector<float> one = {0};
  one.insert(one.end(), x.begin() + last, x.end());
  const Device<float> alone(one);
  const Device<Bf16> dalone(stride);
  args.x = alone.data() + 1;
  args.out = dalone.data();
  args.rows = 1;
  CUDA_OK(cuda::RmsNormRows(args, nullptr));
  Expect(SameBits(dalone.Download(), 0, out, last, hidden), what + " alone");
}

inline void CheckWideSums(int64_t rows, int64_t hidden, int64_t pad) {
  const std::string what =
      Name("wide add rows %d hidden %d pad %d", static_cast<int>(rows),
           static_cast<int>(hidden), static_cast<int>(pad));
  const int64_t stride = hidden + pad;
  const std::vector<float> x = RandomF32(rows * stride, 44, 2.0f);
  const Matrix update(rows, hidden, stride, 45);
  const std::vector<Bf16> weight = RandomBf16(hidden, 46);
  std::vector<float> sums = x;  // padding stays
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < hidden; ++i) {
      sums[row * stride + i] += update.At(row, i);
    }
  }
  const Device<Bf16> dw(weight);
  const Device<float> added(x);
  const Device<Bf16> dupdate(update.values);
  CUDA_OK(cuda::AddRows(
      {added.data(), stride, dupdate.data(), stride, rows, hidden, kWide},
      nullptr));
  Expect(SameFloats(added.Download(), 0, sums, 0, rows * stride) &&
             added.GuardsHold(),
         what + " exact");

  const Device<float> stream(x);
  const Device<Bf16> dout(rows * stride);
  CUDA_OK(cuda::AddRmsNormRows(
      {stream.data(), stride, dupdate.data(), stride, dw.data(), dout.data(),
       stride, rows, hidden, 1e-5f, kWide},
      nullptr));
  Expect(SameFloats(stream.Download(), 0, sums, 0, rows * stride) &&
             stream.GuardsHold(),
         what + " and norm: sums exact");
  const std::vector<Bf16> normed = dout.Download();
  ExpectRows(
      what + " and norm", normed, rows, hidden, stride,
      [&](int64_t row) { return NormOfRow(sums, row * stride, weight); });
  // In place of the update, the last row alone: the same bits.
  const int64_t last = (rows - 1) * stride;
  const Device<float> one({x.begin() + last, x.end()});
  CUDA_OK(cuda::AddRmsNormRows(
      {one.data(), stride, dupdate.data() + last, stride, dw.data(),
       dupdate.data() + last, stride, 1, hidden, 1e-5f, kWide},
      nullptr));
  Expect(SameBits(dupdate.Download(), last, normed, last, hidden),
         what + " and norm alone");
}

inline void CheckWideLookUp(int64_t rows, int64_t hidden, int64_t pad) {
  const int64_t stride = hidden + pad;
  const Matrix table(5, hidden, stride, 47);
  const Device<Bf16> dtable(table.values);
  std::vector<int32_t> index(rows);
  std::vector<float> want(rows * stride);
  for (int64_t row = 0; row < rows; ++row) {
    index[row] = static_cast<int>(row * 3 % 5);
    for (int64_t i = 0; i < hidden; ++i) {
      want[row * stride + i] = table.At(index[row], i);
    }
  }
  const Device<int32_t> dindex(index);
  const Device<float> out(want.size());
  CUDA_OK(cuda::LookUpRows({dindex.data(), nullptr, dtable.data(), stride,
                            out.data(), stride, rows, hidden, kWide},
                           nullptr));
  const std::vector<float> got = out.Download();
  bool same = true;
  for (int64_t row = 0; row < rows; ++row) {
    same &= SameFloats(got, row * stride, want, row * stride, hidden);
    for (int64_t i = hidden; i < stride; ++i) {
      same &= std::isnan(got[row * stride + i]);
    }
  }
  Expect(same && out.GuardsHold(),
         Name("wide look_up rows %d hidden %d", static_cast<int>(rows),
              static_cast<int>(hidden)));
}

inline void CheckWideStream(int64_t rows, int64_t hidden, int64_t pad) {
  CheckWideNorm(rows, hidden, pad);
  CheckWideSums(rows, hidden, pad);
  CheckWideLookUp(rows, hidden, pad);
}

}  // namespace baton::check
