// SPDX-License-Identifier: Apache-2.0
// Values and bits of kernels/cuda/skinny_matmul.h.
#include <string>

#include "kernels/cuda/row_kernels.h"
#include "kernels/cuda/skinny_matmul.h"
#include "tests/device/matmul_check.h"
#include "tests/device/matmul_reference.cuh"

namespace baton::test {
namespace {

using cuda::kSkinnyMaxRows;
using cuda::SkinnyActivation;
using cuda::SkinnyArgs;
using cuda::SkinnyMatmul;
using cuda::SkinnyOut;
using cuda::SkinnyWeight;

constexpr int64_t kGuard = 5;  // columns behind n
constexpr int64_t kRowCounts[] = {0, 1, 2, 7, 8, 9, 16, 17, 33, 64};

SkinnyWeight WeightOf(const void* w, int64_t n, int64_t k, int64_t ld) {
  SkinnyWeight weight;
  CHECK_CUDA(MakeSkinnyWeight(w, n, k, ld, &weight));
  return weight;
}

std::string Label(const char* what, int64_t n, int64_t k, int64_t m,
                  const SkinnyCandidate& candidate) {
  return std::string(what) + " n=" + std::to_string(n) +
         " k=" + std::to_string(k) + " m=" + std::to_string(m) + " (" +
         candidate.name + ")";
}

template <typename T>
int CheckValues(const Operands& operands, const SkinnyWeight& weight,
                const Reference& reference, cudaStream_t stream) {
  const int64_t ldo = operands.n + kGuard;
  DeviceArray<T> out((kSkinnyMaxRows + 1) * ldo);
  int failures = 0;
  for (const int64_t m : kRowCounts) {
    for (const SkinnyCandidate& candidate : kSkinnyCandidates) {
      if (!Takes(candidate, m, weight)) continue;
      if (sizeof(T) == 2 && candidate.tuning.teams != 0) continue;
      out.Poison();
      CHECK_CUDA(SkinnyMatmul(
          weight,
          {.x = operands.x.data(),
           .m = m,
           .ldx = operands.ld,
           .out = out.data(),
           .ldo = ldo,
           .out_type = sizeof(T) == 2 ? SkinnyOut::kBf16 : SkinnyOut::kF32,
           .tuning = candidate.tuning},
          stream));
      const std::string label = Label(sizeof(T) == 2 ? "skinny bf16" : "skinny",
                                      operands.n, operands.k, m, candidate);
      failures += CheckOutput(label.c_str(), out.Download(), m, operands.n, ldo,
                              reference);
    }
  }
  return failures;
}

// Every row of a batch of 64 against the same row in smaller batches.
int CheckBits(const Operands& operands, const SkinnyWeight& weight,
              cudaStream_t stream) {
  const int64_t n = operands.n;
  DeviceArray<float> whole(kSkinnyMaxRows * n), part(kSkinnyMaxRows * n);
  auto run = [&](int64_t first, int64_t m, const cuda::SkinnyTuning& tuning,
                 const DeviceArray<float>& out) {
    CHECK_CUDA(SkinnyMatmul(weight,
                            {.x = operands.x.data() + first * operands.ld,
                             .m = m,
                             .ldx = operands.ld,
                             .out = out.data() + first * n,
                             .ldo = n,
                             .out_type = SkinnyOut::kF32,
                             .tuning = tuning},
                            stream));
  };
  run(0, kSkinnyMaxRows, {}, whole);
  int failures = 0;
  for (const SkinnyCandidate& candidate : kSkinnyCandidates) {
    for (const int64_t m : {1, 2, 5, 8, 9, 16, 24, 32, 33, 64}) {
      if (!Takes(candidate, m, weight)) continue;
      part.Poison();
      // In runs of m; the last run may be shorter.
      for (int64_t first = 0; first < kSkinnyMaxRows; first += m) {
        run(first, std::min(m, kSkinnyMaxRows - first), candidate.tuning, part);
      }
      const int64_t different = CountDifferent<uint32_t>(
          whole.data(), part.data(), kSkinnyMaxRows, n, n);
      if (different == 0) continue;
      ++failures;
      std::printf("FAIL %s: %ld of %ld elements differ from m=64\n",
                  Label("skinny bits", n, operands.k, m, candidate).c_str(),
                  static_cast<long>(different),
                  static_cast<long>(kSkinnyMaxRows * n));
    }
  }
  return failures;
}

// Activations against the kernels that follow a product otherwise: same bits.
int CheckActivations(int64_t m, int64_t k, cudaStream_t stream) {
  const Operands operands(1000, k);
  const int64_t n = operands.n;
  const SkinnyWeight weight =
      WeightOf(operands.w.data(), n, operands.k, operands.ld);
  const XieluConstants xielu = XieluConstantsOf(0.2f, 0.6f, 0.5f, -1e-6f);
  const DeviceArray<__nv_bfloat16> product(m * n), want(m * n), fused(m * n);
  auto run = [&](SkinnyActivation activation,
                 const DeviceArray<__nv_bfloat16>& out) {
    CHECK_CUDA(SkinnyMatmul(weight,
                            {.x = operands.x.data(),
                             .m = m,
                             .ldx = operands.ld,
                             .out = out.data(),
                             .ldo = n,
                             .activation = activation,
                             .xielu = xielu},
                            stream));
  };
  const cuda::ActivationArgs args = {.x = product.data(),
                                     .x_stride = n,
                                     .out = want.data(),
                                     .out_stride = n,
                                     .rows = m,
                                     .ffn = n};
  int failures = 0;
  auto compare = [&](const char* name) {
    const int64_t different =
        CountDifferent<uint16_t>(want.data(), fused.data(), m, n, n);
    if (different == 0) return;
    ++failures;
    std::printf("FAIL %s m=%ld: %ld elements differ from separate kernels\n",
                name, static_cast<long>(m), static_cast<long>(different));
  };
  run(SkinnyActivation::kNone, product);
  CHECK_CUDA(Relu2Rows(args, stream));
  run(SkinnyActivation::kRelu2, fused);
  compare("relu2");
  CHECK_CUDA(XieluRows(args, xielu, stream));
  run(SkinnyActivation::kXielu, fused);
  compare("xielu");
  return failures;
}

// Rows of x that the copy engine cannot bring.
int CheckUnaligned(cudaStream_t stream) {
  const Operands operands(100, 72);
  const Reference reference(operands);
  const SkinnyWeight weight =
      WeightOf(operands.w.data(), operands.n, operands.k, operands.ld);
  constexpr int64_t kStride = 75;
  const DeviceArray<__nv_bfloat16> x(1 + kSkinnyMaxRows * kStride);
  CHECK_CUDA(cudaMemcpy2D(x.data() + 1, kStride * 2, operands.x.data(),
                          static_cast<size_t>(operands.ld) * 2,
                          static_cast<size_t>(operands.k) * 2, kSkinnyMaxRows,
                          cudaMemcpyDeviceToDevice));
  const int64_t ldo = operands.n + kGuard;
  DeviceArray<float> out((kSkinnyMaxRows + 1) * ldo);
  int failures = 0;
  for (const int64_t m : {1, 8, 64}) {
    out.Poison();
    CHECK_CUDA(SkinnyMatmul(weight,
                            {.x = x.data() + 1,
                             .m = m,
                             .ldx = kStride,
                             .out = out.data(),
                             .ldo = ldo,
                             .out_type = SkinnyOut::kF32},
                            stream));
    failures += CheckOutput("skinny unaligned", out.Download(), m, operands.n,
                            ldo, reference);
  }
  return failures;
}

// A chain in which each product reads what the one before it wrote, replayed as
// a graph with overlapping launches, against one kernel at a time.
int CheckChain(int64_t m, const SkinnyCandidate& candidate,
               cudaStream_t stream) {
  constexpr int64_t kSize = 2048;
  constexpr int kLength = 24;
  const Operands operands(kSize, kSize);
  const SkinnyWeight weight =
      WeightOf(operands.w.data(), kSize, kSize, operands.ld);
  DeviceArray<__nv_bfloat16> steps(2 * kSkinnyMaxRows * kSize);
  __nv_bfloat16* const buffers[] = {steps.data(),
                                    steps.data() + kSkinnyMaxRows * kSize};
  DeviceArray<__nv_bfloat16> want(m * kSize);
  auto step = [&](int i) {
    CHECK_CUDA(SkinnyMatmul(weight,
                            {.x = i == 0 ? operands.x.data() : buffers[i % 2],
                             .m = m,
                             .ldx = i == 0 ? operands.ld : kSize,
                             .out = buffers[(i + 1) % 2],
                             .ldo = kSize,
                             .tuning = candidate.tuning},
                            stream));
  };
  for (int i = 0; i < kLength; ++i) {
    step(i);
    CHECK_CUDA(cudaStreamSynchronize(stream));
  }
  CHECK_CUDA(cudaMemcpy(want.data(), buffers[kLength % 2],
                        static_cast<size_t>(m * kSize) * 2,
                        cudaMemcpyDeviceToDevice));
  const cudaGraphExec_t graph = Capture(stream, [&] {
    for (int i = 0; i < kLength; ++i) step(i);
  });
  int failures = 0;
  for (int replay = 0; replay < 50 && failures == 0; ++replay) {
    if (replay % 10 == 0) steps.Poison();
    CHECK_CUDA(cudaGraphLaunch(graph, stream));
    const int64_t different = CountDifferent<uint16_t>(
        want.data(), buffers[kLength % 2], m, kSize, kSize);
    if (different == 0) continue;
    ++failures;
    std::printf("FAIL chain m=%ld (%s) replay=%d: %ld elements differ\n",
                static_cast<long>(m), candidate.name, replay,
                static_cast<long>(different));
  }
  CHECK_CUDA(cudaGraphExecDestroy(graph));
  return failures;
}

// Gated activations in every layout against the kernels behind a product: same
// bits, and nothing written beside them.
int CheckGates(int64_t ffn, int64_t k, int64_t m, cudaStream_t stream) {
  const int64_t n = 2 * ffn;
  const int64_t ldo = ffn + kGuard;
  const Operands operands(n, k);
  const SkinnyWeight weight = WeightOf(operands.w.data(), n, k, operands.ld);
  const DeviceArray<__nv_bfloat16> product(m * n);
  DeviceArray<__nv_bfloat16> want((m + 1) * ldo), fused((m + 1) * ldo);
  SkinnyArgs args = {.x = operands.x.data(),
                     .m = m,
                     .ldx = operands.ld,
                     .out = product.data(),
                     .ldo = n};
  CHECK_CUDA(SkinnyMatmul(weight, args, stream));
  const cuda::ActivationArgs apart = {.x = product.data(),
                                      .x_stride = n,
                                      .out = want.data(),
                                      .out_stride = ldo,
                                      .rows = m,
                                      .ffn = ffn};
  int failures = 0;
  for (const auto activation :
       {SkinnyActivation::kSiluMul, SkinnyActivation::kGeluMul}) {
    const bool is_silu = activation == SkinnyActivation::kSiluMul;
    CHECK_CUDA(is_silu ? SiluMulRows(apart, stream)
                       : GeluMulRows(apart, stream));
    for (const SkinnyCandidate& candidate : kSkinnyCandidates) {
      if (!Takes(candidate, m, weight)) continue;
      fused.Poison();
      args.out = fused.data();
      args.ldo = ldo;
      args.activation = activation;
      args.tuning = candidate.tuning;
      CHECK_CUDA(SkinnyMatmul(weight, args, stream));
      const int64_t different =
          CountDifferent<uint16_t>(want.data(), fused.data(), m + 1, ldo, ldo);
      if (different == 0) continue;
      ++failures;
      std::printf(
          "FAIL %s: %ld elements differ from separate kernels\n",
          Label(is_silu ? "silu_mul" : "gelu_mul", n, k, m, candidate).c_str(),
          static_cast<long>(different));
    }
  }
  return failures;
}

int CheckShape(int64_t n, int64_t k, cudaStream_t stream) {
  const Operands operands(n, k);
  const Reference reference(operands);
  const SkinnyWeight weight = WeightOf(operands.w.data(), n, k, operands.ld);
  if (weight.plain != (k % 8 != 0)) {
    std::printf("FAIL k=%ld: plain is %d\n", static_cast<long>(k),
                weight.plain);
    return 1;
  }
  const int failures =
      CheckValues<float>(operands, weight, reference, stream) +
      CheckValues<__nv_bfloat16>(operands, weight, reference, stream) +
      CheckBits(operands, weight, stream);
  if (failures != 0) {
    std::printf("skinny n=%ld k=%ld%s: %d failures\n", static_cast<long>(n),
                static_cast<long>(k), weight.plain ? " (plain)" : "", failures);
  }
  return failures;
}

}  // namespace

int CheckSkinnyFew() {
  cudaStream_t stream = nullptr;
  CHECK_CUDA(cudaStreamCreate(&stream));
  int failures = 0;
  // The plain kernel, less than a box of rows, boxes and a part of one. Of the
  // Hopper kernel as many groups for all teams: where they differ, racecheck of
  // CUDA 13.0 loses count of the teams' barriers, and reports what is stored
  // before a __syncthreads as racing with what is loaded behind it.
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{100, 13}, {17, 1024}, {200, 1024}}) {
    const Operands operands(n, k);
    const SkinnyWeight weight = WeightOf(operands.w.data(), n, k, operands.ld);
    failures +=
        CheckValues<float>(operands, weight, Reference(operands), stream);
  }
  for (const int64_t m : {1, 11, 64}) {
    failures += CheckActivations(m, 1024, stream);
    failures += CheckGates(100, 1024, m, stream);
  }
  failures += CheckUnaligned(stream);
  CHECK_CUDA(cudaStreamDestroy(stream));
  return failures;
}

int CheckSkinny() {
  cudaStream_t stream = nullptr;
  CHECK_CUDA(cudaStreamCreate(&stream));
  int failures = 0;
  for (const int64_t n : {1, 17, 64, 100, 4096, 6144}) {
    for (const int64_t k : {8, 64, 72, 200, 256, 4096, 10752}) {
      failures += CheckShape(n, k, stream);
    }
  }
  for (const int64_t k : {1, 13, 77, 1001}) {  // the plain kernel
    failures += CheckShape(100, k, stream);
  }
  // One row whose x leaves room for few stages, or for none.
  for (const int64_t k : {43008, 65536}) failures += CheckShape(33, k, stream);
  failures += CheckUnaligned(stream);
  for (const int64_t m : {1, 8, 11, 32, 64}) {
    failures += CheckActivations(m, 256, stream);
    for (const int64_t ffn : {1, 16, 100, 500, 4096}) {
      failures += CheckGates(ffn, 256, m, stream);
      failures += CheckGates(ffn, 2048, m, stream);
    }
    for (const SkinnyCandidate& candidate : kSkinnyCandidates) {
      if (m <= candidate.max_m) failures += CheckChain(m, candidate, stream);
    }
  }
  std::printf("skinny: %d failures\n", failures);
  CHECK_CUDA(cudaStreamDestroy(stream));
  return failures;
}

}  // namespace baton::test
