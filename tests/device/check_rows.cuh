// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/row_kernels.h"
#include "tests/device/check_rows_support.cuh"
#include "tests/device/check_wide_stream.cuh"

namespace baton::check {

inline void CheckNorms(int64_t rows, int64_t hidden, int64_t pad) {
  const std::string what =
      Name("norm rows %d hidden %d pad %d", static_cast<int>(rows),
           static_cast<int>(hidden), static_cast<int>(pad));
  const int64_t stride = hidden + pad;
  const Matrix x(rows, hidden, stride, 1, 2.0f);
  const Matrix update(rows, hidden, stride, 2);
  const std::vector<Bf16> weight = RandomBf16(hidden, 3);
  const Device<Bf16> dx(x.values);
  const Device<Bf16> dw(weight);
  Device<Bf16> dout(rows * stride);
  CUDA_OK(cuda::RmsNormRows(
      {dx.data(), stride, dw.data(), dout.data(), stride, rows, hidden, 1e-5f},
      nullptr));
  const std::vector<Bf16> out = dout.Download();
  ExpectRows("rms_" + what, out, rows, hidden, stride, [&](int64_t row) {
    std::vector<double> v(hidden);
    for (int64_t i = 0; i < hidden; ++i) v[i] = x.At(row, i);
    return NormOf(v, weight, 1e-5f);
  });
  Expect(dout.GuardsHold(), "rms_" + what + " guards");
  // The last row alone, one element off any alignment: the same bits.
  Device<Bf16> alone(stride + 1);
  CUDA_OK(cudaMemcpy(alone.data() + 1, x.values.data() + (rows - 1) * stride,
                     hidden * 2, cudaMemcpyHostToDevice));
  CUDA_OK(cuda::RmsNormRows({alone.data() + 1, stride, dw.data(),
                             alone.data() + 1, stride, 1, hidden, 1e-5f},
                            nullptr));
  Expect(SameBits(alone.Download(), 1, out, (rows - 1) * stride, hidden),
         "rms_" + what + " alone, in place, unaligned");

  const Device<Bf16> stream(x.values);
  const Device<Bf16> dupdate(update.values);
  CUDA_OK(cuda::AddRmsNormRows(
      {stream.data(), stride, dupdate.data(), stride, dw.data(), dupdate.data(),
       stride, rows, hidden, 1e-5f},
      nullptr));
  const std::vector<Bf16> sum = stream.Download();
  const std::vector<Bf16> normed = dupdate.Download();
  bool sums = true;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> v(hidden);
    for (int64_t i = 0; i < hidden; ++i) {
      const Bf16 s = ToBf16(x.At(row, i) + update.At(row, i));
      sums &= sum[row * stride + i] == s;
      v[i] = ToFloat(s);
    }
    const std::vector<double> want = NormOf(v, weight, 1e-5f);
    std::vector<double> tolerance(hidden);
    for (int64_t i = 0; i < hidden; ++i) {
      tolerance[i] = kHalfUlp * std::abs(want[i]) + 1e-6;
    }
    ExpectClose(
        "add_rms_" + what,
        {normed.begin() + row * stride, normed.begin() + row * stride + hidden},
        want, tolerance);
  }
  Expect(sums, "add_rms_" + what + " sums exact");
  Expect(stream.GuardsHold() && dupdate.GuardsHold(),
         "add_rms_" + what + " guards");

  const Device<Bf16> added(x.values);
  const Device<Bf16> again(update.values);
  CUDA_OK(cuda::AddRows(
      {added.data(), stride, again.data(), stride, rows, hidden}, nullptr));
  const std::vector<Bf16> plain = added.Download();
  bool same = true;
  for (int64_t row = 0; row < rows; ++row) {
    same &= SameBits(plain, row * stride, sum, row * stride, hidden);
    same &= SameBits(plain, row * stride + hidden, x.values,
                     row * stride + hidden, pad);
  }
  Expect(same && added.GuardsHold(), "add " + what);
}

// The norm of an update is rounded, then added: the bits of both kernels. T is
// the stream's type.
template <typename T>
void CheckNormAdd(const std::vector<T>& stream, cuda::StreamType type,
                  int64_t rows, int64_t hidden, int64_t pad) {
  const std::string what = Name(
      "rms_norm_add of %d bytes rows %d hidden %d", static_cast<int>(sizeof(T)),
      static_cast<int>(rows), static_cast<int>(hidden));
  const int64_t stride = hidden + pad;
  const Device<Bf16> update(RandomBf16(rows * stride, 51, 2.0f));
  const Device<Bf16> weight(RandomBf16(hidden, 52));
  const Device<Bf16> normed(rows * stride);
  const Device<T> apart(stream);
  CUDA_OK(cuda::RmsNormRows({update.data(), stride, weight.data(),
                             normed.data(), stride, rows, hidden, 1e-5f},
                            nullptr));
  CUDA_OK(cuda::AddRows(
      {apart.data(), stride, normed.data(), stride, rows, hidden, type},
      nullptr));
  const std::vector<T> want = apart.Download();
  const Device<T> together(stream);
  cuda::RmsNormAddArgs args = {update.data(),   stride, weight.data(),
                               together.data(), stride, rows,
                               hidden,          1e-5f,  type};
  CUDA_OK(cuda::RmsNormAddRows(args, nullptr));
  Expect(SameBits(together.Download(), 0, want, 0, rows * stride) &&
             together.GuardsHold(),
         what);
  // The last row alone, one element off any alignment.
  const int64_t last = (rows - 1) * stride;
  std::vector<T> one = {T()};
  one.insert(one.end(), stream.begin() + last, stream.end());
  const Device<T> alone(one);
  args.update = update.data() + last;
  args.residual = alone.data() + 1;
  args.rows = 1;
  CUDA_OK(cuda::RmsNormAddRows(args, nullptr));
  Expect(SameBits(alone.Download(), 1, want, last, hidden), what + " alone");
}
inline void CheckNormAdds(int64_t rows, int64_t hidden, int64_t pad) {
  const int64_t count = rows * (hidden + pad);
  CheckNormAdd(RandomBf16(count, 53), cuda::StreamType::kBf16, rows, hidden,
               pad);
  CheckNormAdd(RandomF32(count, 54, 1.0f), kWide, rows, hidden, pad);
}

inline void CheckActivations(int64_t rows, int64_t ffn, int64_t pad) {
  const std::string what =
      Name(" rows %d ffn %d pad %d", static_cast<int>(rows),
           static_cast<int>(ffn), static_cast<int>(pad));
  const int64_t in_stride = 2 * ffn + pad;
  const int64_t stride = ffn + pad;
  const Matrix x(rows, 2 * ffn, in_stride, 4, 3.0f);
  const Device<Bf16> dx(x.values);
  Device<Bf16> out(rows * stride);
  const cuda::ActivationArgs args = {dx.data(), in_stride, out.data(),
                                     stride,    rows,      ffn};
  const auto compare = [&](const std::string& name, auto f) {
    ExpectRows(name + what, out.Download(), rows, ffn, stride,
               [&](int64_t row) {
                 std::vector<double> y(ffn);
                 for (int64_t i = 0; i < ffn; ++i) {
                   y[i] = f(double(x.At(row, i)), double(x.At(row, ffn + i)));
                 }
                 return y;
               });
    Expect(out.GuardsHold(), name + what + " guards");
    out.Poison();
  };
  CUDA_OK(cuda::SiluMulRows(args, nullptr));
  compare("silu_mul",
          [](double g, double u) { return g / (1 + std::exp(-g)) * u; });
  CUDA_OK(cuda::GeluMulRows(args, nullptr));
  compare("gelu_mul", [](double g, double u) {
    return g / 2 * std::erfc(-g / std::sqrt(2.0)) * u;
  });
  CUDA_OK(cuda::Relu2Rows(args, nullptr));
  compare("relu2", [](double v, double) { return v > 0 ? v * v : 0.0; });
  struct {
    float alpha_p, alpha_n, beta, eps;
  } const p = {0.3f, -0.7f, 0.5f, -1e-6f};
  CUDA_OK(cuda::XieluRows(
      args, XieluConstantsOf(p.alpha_p, p.alpha_n, p.beta, p.eps), nullptr));
  const double positive = std::log1p(std::exp(double(p.alpha_p)));
  const double negative = p.beta + std::log1p(std::exp(double(p.alpha_n)));
  compare("xielu", [&](double v, double) {
    if (v > 0) return positive * v * v + p.beta * v;
    return (std::expm1(std::min(v, double(p.eps))) - v) * negative + p.beta * v;
  });
}

// Gates lie behind other columns, as the projection of all leaves them.
inline void CheckGateHeads(int64_t rows, int64_t heads, int64_t head_dim,
                           int64_t pad) {
  const std::string what =
      Name("gate_heads rows %d heads %d of %d pad %d", static_cast<int>(rows),
           static_cast<int>(heads), static_cast<int>(head_dim),
           static_cast<int>(pad));
  const int64_t size = heads * head_dim;
  const int64_t stride = size + pad;
  const int64_t gate_stride = 3 + heads;
  const Matrix x(rows, size, stride, 31);
  const Matrix gate(rows, gate_stride, gate_stride, 32, 3.0f);
  const Device<Bf16> dx(x.values);
  const Device<Bf16> dgate(gate.values);
  CUDA_OK(cuda::GateHeadsRows(
      {dx.data(), stride, dgate.data() + 3, gate_stride, rows, heads, head_dim},
      nullptr));
  const std::vector<Bf16> got = dx.Download();
  bool padding = true;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> want(size);
    std::vector<double> tolerance(size);
    for (int64_t i = 0; i < size; ++i) {
      const double z = gate.At(row, 3 + i / head_dim);
      want[i] = x.At(row, i) / (1 + std::exp(-z));
      tolerance[i] = kHalfUlp * std::abs(want[i]) + 1e-6;
    }
    ExpectClose(what,
                {got.begin() + row * stride, got.begin() + row * stride + size},
                want, tolerance);
    padding &=
        SameBits(got, row * stride + size, x.values, row * stride + size, pad);
  }
  Expect(padding && dx.GuardsHold(), what + " padding");
  // The last row alone, one element off any alignment: the same bits.
  const int64_t last = (rows - 1) * stride;
  std::vector<Bf16> one = {0};
  one.insert(one.end(), x.values.begin() + last, x.values.end());
  const Device<Bf16> alone(one);
  CUDA_OK(cuda::GateHeadsRows(
      {alone.data() + 1, stride, dgate.data() + (rows - 1) * gate_stride + 3,
       gate_stride, 1, heads, head_dim},
      nullptr));
  Expect(SameBits(alone.Download(), 1, got, last, size), what + " alone");
}

inline void CheckLookUp(int64_t rows, int64_t hidden, int64_t pad) {
  const int64_t entries = 37;
  const int64_t stride = hidden + pad;
  const Matrix table(entries, hidden, stride, 5);
  const Device<Bf16> dtable(table.values);
  std::vector<int32_t> tokens = {5, 36, 0};
  std::vector<int32_t> index(rows);
  std::vector<int32_t> from(rows);
  for (int64_t i = 0; i < rows; ++i) {
    index[i] = i % 4 == 1 ? -1 - static_cast<int>(i) % 3
                          : static_cast<int>(i * 11 % entries);
    from[i] = index[i] < 0 ? tokens[-1 - index[i]] : index[i];
  }
  const Device<int32_t> dtokens(tokens);
  const Device<int32_t> dindex(index);
  const Device<Bf16> out(rows * stride);
  CUDA_OK(cuda::LookUpRows({dindex.data(), dtokens.data(), dtable.data(),
                            stride, out.data(), stride, rows, hidden},
                           nullptr));
  const std::vector<Bf16> got = out.Download();
  bool same = true;
  for (int64_t i = 0; i < rows; ++i) {
    same &= SameBits(got, i * stride, table.values, from[i] * stride, hidden);
    same &= IsPoison(got, i * stride + hidden, pad);
  }
  Expect(same && out.GuardsHold(),
         Name("look_up rows %d hidden %d", static_cast<int>(rows),
              static_cast<int>(hidden)));
}

inline void CheckRows() {
  for (const int64_t hidden : {1, 8, 48, 100, 1003, 4096, 5120, 8200, 20000}) {
    for (const int64_t rows : {1, 3, 17}) {
      for (const int64_t pad : {0, 8}) {
        CheckNorms(rows, hidden, pad);
        CheckNormAdds(rows, hidden, pad);
        CheckActivations(rows, hidden, pad);
        CheckLookUp(rows, hidden, pad);
        CheckWideStream(rows, hidden, pad);
      }
    }
  }
  for (const int64_t rows : {1, 9, 64}) {
    CheckGateHeads(rows, 16, 256, 0);
    CheckGateHeads(rows, 4, 64, 8);
    CheckGateHeads(rows, 6, 24, 2);
    CheckGateHeads(rows, 5, 10, 1);
  }
  // Zero rows touch nothing.
  CUDA_OK(cuda::RmsNormRows({nullptr, 8, nullptr, nullptr, 8, 0, 8, 1e-5f},
                            nullptr));
  CUDA_OK(cuda::AddRows({nullptr, 8, nullptr, 8, 0, 8}, nullptr));
  CUDA_OK(cuda::RmsNormAddRows({nullptr, 8, nullptr, nullptr, 8, 0, 8, 1e-5f},
                               nullptr));
  CUDA_OK(cuda::GateHeadsRows({nullptr, 8, nullptr, 2, 0, 2, 4}, nullptr));
  CUDA_OK(cuda::LookUpRows({nullptr, nullptr, nullptr, 8, nullptr, 8, 0, 8},
                           nullptr));
  CUDA_OK(cudaDeviceSynchronize());
}

}  // namespace baton::check
