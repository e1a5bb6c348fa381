// SPDX-License-Identifier: Apache-2.0
// Skinny products of a matrix whose k two ranks may share: values, and the bits
// of the sum of what both ranks have.
#include <string>

#include "kernels/cuda/skinny_matmul.h"
#include "tests/device/matmul_check.h"
#include "tests/device/matmul_reference.cuh"

namespace baton::test {
namespace {

using cuda::kSkinnyMaxRows;
using cuda::SkinnyWeight;

// The columns of one rank, as it has them.
struct Half {
  Half(const Operands& all, int rank)
      : k(all.k / 2),
        x(kSkinnyMaxRows * k),
        w(all.n * k),
        sums(kSkinnyMaxRows * all.n) {
    Copy(all.x.data() + rank * k, all.ld, kSkinnyMaxRows, x.data());
    Copy(all.w.data() + rank * k, all.ld, all.n, w.data());
    CHECK_CUDA(MakeSkinnyWeight(w.data(), all.n, k, k, &weight, 1));
  }
  void Copy(const __nv_bfloat16* from, int64_t ld, int64_t rows,
            __nv_bfloat16* to) const {
    const auto row = static_cast<size_t>(k) * 2;
    CHECK_CUDA(cudaMemcpy2D(to, row, from, static_cast<size_t>(ld) * 2, row,
                            static_cast<size_t>(rows),
                            cudaMemcpyDeviceToDevice));
  }

  int64_t k;
  DeviceArray<__nv_bfloat16> x, w;
  DeviceArray<float> sums;
  SkinnyWeight weight;
};

void Multiply(const SkinnyWeight& weight, const __nv_bfloat16* x, int64_t ldx,
              int64_t m, const cuda::SkinnyTuning& tuning,
              const DeviceArray<float>& out) {
  CHECK_CUDA(SkinnyMatmul(weight,
                          {.x = x,
                           .m = m,
                           .ldx = ldx,
                           .out = out.data(),
                           .ldo = weight.n,
                           .out_type = cuda::SkinnyOut::kF32,
                           .tuning = tuning},
                          nullptr));
}

std::string Label(const SkinnyWeight& weight, int64_t m,
                  const SkinnyCandidate& candidate) {
  return "halves n=" + std::to_string(weight.n) +
         " k=" + std::to_string(weight.k) + " m=" + std::to_string(m) + " (" +
         candidate.name + ")";
}

// kPlain: by the kernel of GPUs without a copy engine.
enum class Path { kCopies, kPlain };

// One rank alone.
struct Whole {
  Whole(int64_t n, int64_t half, Path path)
      : operands(n, 2 * half),
        reference(operands),
        out((kSkinnyMaxRows + 1) * n) {
    CHECK_CUDA(MakeSkinnyWeight(operands.w.data(), n, operands.k, operands.ld,
                                &weight, 2));
    weight.plain |= path == Path::kPlain;
  }
  // Computes m rows.
  int Check(int64_t m, const SkinnyCandidate& candidate) {
    out.Poison();
    Multiply(weight, operands.x.data(), operands.ld, m, candidate.tuning, out);
    return CheckOutput(Label(weight, m, candidate).c_str(), out.Download(), m,
                       weight.n, weight.n, reference);
  }

  Operands operands;
  Reference reference;
  SkinnyWeight weight;
  DeviceArray<float> out;
};

// Elements of m rows in which the sum of both halves is not the whole.
int64_t CountOther(const Whole& whole, const Half& a, const Half& b,
                   int64_t m) {
  const std::vector<float> both = whole.out.Download();
  const std::vector<float> left = a.sums.Download();
  const std::vector<float> right = b.sums.Download();
  int64_t count = 0;
  for (int64_t i = 0; i < m * whole.weight.n; ++i) {
    const auto at = static_cast<size_t>(i);
    const float sum = left[at] + right[at];
    count += std::memcmp(&sum, &both[at], sizeof(sum)) != 0;
  }
  return count;
}

int CheckSums(int64_t n, int64_t half, Path path) {
  Whole whole(n, half, path);
  Half halves[] = {{whole.operands, 0}, {whole.operands, 1}};
  int failures = 0;
  for (const int64_t m : {1, 2, 7, 8, 9, 16, 33, 64}) {
    for (const SkinnyCandidate& candidate : kSkinnyCandidates) {
      if (!Takes(candidate, m, whole.weight)) continue;
      failures += whole.Check(m, candidate);
      for (Half& part : halves) {
        part.weight.plain |= path == Path::kPlain;
        Multiply(part.weight, part.x.data(), half, m, candidate.tuning,
                 part.sums);
      }
      const int64_t other = CountOther(whole, halves[0], halves[1], m);
      if (other == 0) continue;
      ++failures;
      std::printf("FAIL %s: %ld elements are not the sum of both\n",
                  Label(whole.weight, m, candidate).c_str(),
                  static_cast<long>(other));
    }
  }
  return failures;
}

}  // namespace

int CheckHalves() {
  int failures = 0;
  for (const int64_t half :
       {8, 24, 32, 48, 64, 96, 128, 200, 256, 320, 520, 1032, 5376}) {
    for (const int64_t n : {17, 200}) {
      failures += CheckSums(n, half, Path::kCopies);
    }
    failures += CheckSums(40, half, Path::kPlain);
  }
  std::printf("halves: %d failures\n", failures);
  return failures;
}

int CheckHalvesFew() {
  // As many groups for all teams (CheckSkinnyFew says why), which a rank with
  // half of the leaves has not.
  Whole whole(40, 504, Path::kCopies);
  int failures = 0;
  for (const int64_t m : {1, 9, 64}) {
    for (const SkinnyCandidate& candidate : kSkinnyCandidates) {
      if (Takes(candidate, m, whole.weight)) {
        failures += whole.Check(m, candidate);
      }
    }
  }
  return failures + CheckSums(40, 24, Path::kPlain);
}

}  // namespace baton::test
