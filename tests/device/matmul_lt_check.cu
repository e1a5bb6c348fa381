// SPDX-License-Identifier: Apache-2.0
// Values, bits and speed of kernels/cuda/lt_matmul.h.
#include <string>

#include "kernels/cuda/lt_matmul.h"
#include "tests/device/matmul_check.h"
#include "tests/device/matmul_reference.cuh"

namespace baton::test {
namespace {

using cuda::LtMatmul;
using cuda::LtOut;

template <typename T>
constexpr LtOut kOut = sizeof(T) == 2 ? LtOut::kBf16 : LtOut::kF32;

template <typename T>
int CheckValues(LtMatmul& lt, const Operands& operands,
                const Reference& reference) {
  const LtMatmul::Weight weight = {operands.w.data(), operands.n, operands.k,
                                   operands.ld};
  const cublasStatus_t prepared = lt.Prepare(weight, kOut<T>);
  if (prepared != CUBLAS_STATUS_SUCCESS) {
    std::printf("FAIL lt n=%ld k=%ld: Prepare: cublas %d\n",
                static_cast<long>(operands.n), static_cast<long>(operands.k),
                static_cast<int>(prepared));
    return 1;
  }
  // Rows of whole 16 bytes; of odd length where n itself is not whole.
  const int64_t whole = (operands.n + 7) / 8 * 8 + 8;
  const bool odd = operands.n * sizeof(T) % 16 != 0;
  int failures = 0;
  for (const int64_t ldo : {whole, odd ? operands.n + 3 : whole}) {
    DeviceArray<T> out((kMaxTokens + 1) * ldo);
    for (const int64_t m : {0, 1, 2, 7, 64, 130}) {
      out.Poison();
      const cublasStatus_t status = lt.Run({.weight = weight,
                                            .x = operands.x.data(),
                                            .m = m,
                                            .ldx = operands.ld,
                                            .out = out.data(),
                                            .ldo = ldo,
                                            .out_type = kOut<T>});
      const std::string label = "lt size=" + std::to_string(sizeof(T)) +
                                " n=" + std::to_string(operands.n) +
                                " k=" + std::to_string(operands.k) +
                                " m=" + std::to_string(m) +
                                " ldo=" + std::to_string(ldo);
      if (status != CUBLAS_STATUS_SUCCESS) {
        std::printf("FAIL %s: cublas %d\n", label.c_str(),
                    static_cast<int>(status));
        ++failures;
        continue;
      }
      failures += CheckOutput(label.c_str(), out.Download(), m, operands.n, ldo,
                              reference);
    }
  }
  return failures;
}

// Rows of m = 4096 against the same rows computed in smaller runs. Prints a
// line per shape: the number of elements that differ, by size of the runs.
template <typename T>
int CheckBits(LtMatmul& lt, Shape shape, const __nv_bfloat16* x,
              const __nv_bfloat16* w, DeviceArray<T>& whole,
              DeviceArray<T>& part) {
  constexpr int64_t kRows = 4096;
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  const LtMatmul::Weight weight = {w, shape.n, shape.k, shape.k};
  CHECK_CUBLAS(lt.Prepare(weight, kOut<T>));
  auto run = [&](int64_t first, int64_t m, const DeviceArray<T>& out) {
    CHECK_CUBLAS(lt.Run({.weight = weight,
                         .x = x + first * shape.k,
                         .m = m,
                         .ldx = shape.k,
                         .out = out.data() + first * shape.n,
                         .ldo = shape.n,
                         .out_type = kOut<T>}));
  };
  run(0, kRows, whole);
  const LtMatmul::Choice& choice = *lt.Find(shape.n, shape.k, kOut<T>);
  std::printf(
      "lt bits %6ld x %5ld f%d: %d of %d algorithms alike, took %d "
      "(%.3f ms, first %.3f ms at m=%ld); differing:",
      static_cast<long>(shape.n), static_cast<long>(shape.k),
      static_cast<int>(8 * sizeof(T)), choice.same_bits, choice.candidates,
      choice.chosen, choice.chosen_ms, choice.first_ms,
      static_cast<long>(choice.tuning_rows));
  int failures = 0;
  for (const int64_t m : {1, 7, 64, 192, 1000}) {
    part.Poison();
    int64_t different = 0;
    // A few runs from the start, and one that ends with the last row.
    const int64_t runs = std::min<int64_t>(kRows / m, 6);
    for (int64_t i = 0; i < runs; ++i) run(i * m, m, part);
    run(kRows - m, m, part);
    different += CountDifferent<Bits>(whole.data(), part.data(), runs * m,
                                      shape.n, shape.n);
    const int64_t last = (kRows - m) * shape.n;
    different += CountDifferent<Bits>(whole.data() + last, part.data() + last,
                                      m, shape.n, shape.n);
    std::printf(" m=%ld:%ld", static_cast<long>(m),
                static_cast<long>(different));
    failures += different != 0;
  }
  std::printf("%s\n", failures != 0 ? " FAIL" : "");
  return failures;
}

// TFLOP/s of the chosen algorithm.
double Speed(LtMatmul& lt, cudaStream_t stream, const LtMatmul::Args& args) {
  const double ms = MedianMs(stream, 5, [&] { CHECK_CUBLAS(lt.Run(args)); });
  return 2e-9 * static_cast<double>(args.m) *
         static_cast<double>(args.weight.n) *
         static_cast<double>(args.weight.k) / ms;
}

constexpr int64_t kLargest = 8192;  // rows
int64_t LargestN() {
  int64_t n = 0;
  for (const Shape& shape : kModelShapes) n = std::max(n, shape.n);
  return n;
}
int64_t LargestK() {
  int64_t k = 0;
  for (const Shape& shape : kModelShapes) k = std::max(k, shape.k);
  return k;
}
int64_t LargestWeight() {
  int64_t size = 0;
  for (const Shape& shape : kModelShapes) {
    size = std::max(size, shape.n * shape.k);
  }
  return size;
}

}  // namespace

int CheckLt() {
  cudaStream_t stream = nullptr;
  CHECK_CUDA(cudaStreamCreate(&stream));
  int failures = 0;
  const auto lt = LtMatmul::Create(stream);
  for (const int64_t n : {1, 17, 64, 100, 4096}) {
    for (const int64_t k : {8, 72, 256, 4096}) {
      const Operands operands(n, k);
      const Reference reference(operands);
      failures += CheckValues<__nv_bfloat16>(*lt, operands, reference);
      failures += CheckValues<float>(*lt, operands, reference);
    }
  }
  std::printf("lt values: %d failures\n", failures);

  DeviceArray<__nv_bfloat16> x(4096 * LargestK()), w(LargestWeight());
  FillRandom(x.data(), 1, x.size(), x.size(), 1);
  FillRandom(w.data(), 1, w.size(), w.size(), 2);
  DeviceArray<__nv_bfloat16> whole(4096 * LargestN()), part(4096 * LargestN());
  for (const Shape& shape : kModelShapes) {
    failures += CheckBits(*lt, shape, x.data(), w.data(), whole, part);
  }
  DeviceArray<float> whole32(4096 * LargestN()), part32(4096 * LargestN());
  failures +=
      CheckBits(*lt, {131072, 4096}, x.data(), w.data(), whole32, part32);
  failures += CheckBits(*lt, {4096, 4096}, x.data(), w.data(), whole32, part32);
  std::printf("lt: %d failures\n", failures);
  CHECK_CUDA(cudaStreamSynchronize(stream));
  return failures;
}

void BenchLt() {
  cudaStream_t stream = nullptr;
  CHECK_CUDA(cudaStreamCreate(&stream));
  const auto lt = LtMatmul::Create(stream);
  DeviceArray<__nv_bfloat16> x(kLargest * LargestK()), w(LargestWeight());
  FillRandom(x.data(), 1, x.size(), x.size(), 1);
  FillRandom(w.data(), 1, w.size(), w.size(), 2);
  const DeviceArray<__nv_bfloat16> out(kLargest * LargestN());
  std::printf("\ncuBLASLt, one algorithm per shape, TFLOP/s\n");
  std::printf("     n      k  m=64  m=256 m=1024 m=4096 m=8192\n");
  for (const Shape& shape : kModelShapes) {
    const LtMatmul::Weight weight = {w.data(), shape.n, shape.k, shape.k};
    CHECK_CUBLAS(lt->Prepare(weight, LtOut::kBf16));
    std::printf("%6ld  %5ld", static_cast<long>(shape.n),
                static_cast<long>(shape.k));
    for (const int64_t m : {64, 256, 1024, 4096, 8192}) {
      std::printf("  %5.0f", Speed(*lt, stream,
                                   {.weight = weight,
                                    .x = x.data(),
                                    .m = m,
                                    .ldx = shape.k,
                                    .out = out.data(),
                                    .ldo = shape.n}));
    }
    std::printf("\n");
  }
}

}  // namespace baton::test
