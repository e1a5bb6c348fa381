// SPDX-License-Identifier: Apache-2.0
// Bandwidth of kernels/cuda/skinny_matmul.h against a read of memory and
// against cuBLASLt with its own choices, all in one run.
#include <cublasLt.h>

#include <cmath>
#include <span>

#include "kernels/cuda/skinny_matmul.h"
#include "tests/device/device_test.cuh"
#include "tests/device/matmul_check.h"

namespace baton::test {
namespace {

using cuda::SkinnyArgs;
using cuda::SkinnyMatmul;
using cuda::SkinnyTuning;
using cuda::SkinnyWeight;

constexpr int64_t kRowCounts[] = {1, 2, 4, 8, 16, 32, 64};
constexpr int64_t kPoolBytes = int64_t{4} << 30;  // of weights
constexpr int kChain = 24;                        // launches of a graph
constexpr int kRuns = 5;                          // replays; the median counts
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

// Reads all `count` groups of 16 bytes, kUnroll of them in flight per thread.
template <int kUnroll>
__global__ void __launch_bounds__(512)
    ReadKernel(const uint4* data, int64_t count, uint32_t* sink) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  uint32_t mix = 0;
  for (; i + (kUnroll - 1) * step < count; i += kUnroll * step) {
    uint4 v[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) v[j] = __ldcs(data + i + j * step);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      mix ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
  }
  for (; i < count; i += step) mix ^= __ldcs(data + i).x;
  if (mix == 0x12345678) *sink = mix;
}

// The rate of a plain read, GB/s: the median of several kernels.
double ReadRate(const DeviceArray<__nv_bfloat16>& pool, cudaStream_t stream) {
  const DeviceArray<uint32_t> sink(1);
  const int64_t bytes = pool.size() * 2;
  std::vector<double> rates;
  std::printf("read of %.1f GB:", static_cast<double>(bytes) * 1e-9);
  for (const int blocks : {1, 2, 4, 16, 64}) {  // per multiprocessor
    for (const int unroll : {4, 8}) {
      const double ms = MedianMs(stream, kRuns, [&] {
        const auto* data = reinterpret_cast<const uint4*>(pool.data());
        if (unroll == 4) {
          ReadKernel<4>
              <<<132 * blocks, 512, 0, stream>>>(data, bytes / 16, sink.data());
        } else {
          ReadKernel<8>
              <<<132 * blocks, 512, 0, stream>>>(data, bytes / 16, sink.data());
        }
        CHECK_CUDA(cudaGetLastError());
      });
      rates.push_back(static_cast<double>(bytes) * 1e-6 / ms);
      std::printf(" %dx%d:%.0f", blocks, unroll, rates.back());
    }
  }
  std::sort(rates.begin(), rates.end());
  std::printf(" GB/s\n");
  return rates[rates.size() / 2];
}

// A chain of products over copies of a weight; ms per product.
class Chain {
 public:
  Chain(Shape shape, const DeviceArray<__nv_bfloat16>& pool,
        const __nv_bfloat16* x, __nv_bfloat16* out, cudaStream_t stream)
      : shape_(shape), x_(x), out_(out), stream_(stream) {
    const int64_t size = shape.n * shape.k;
    const int64_t copies = std::clamp<int64_t>(pool.size() / size, 1, kChain);
    for (int64_t i = 0; i < copies; ++i) {
      const __nv_bfloat16* w = pool.data() + i * size;
      SkinnyWeight weight;
      CHECK_CUDA(MakeSkinnyWeight(w, shape.n, shape.k, shape.k, &weight));
      weights_.push_back(weight);
    }
  }

  // 0 where this tuning does not exist for this m.
  double Skinny(int64_t m, SkinnyTuning tuning) {
    const SkinnyArgs args = {.x = x_,
                             .m = m,
                             .ldx = shape_.k,
                             .out = out_,
                             .ldo = shape_.n,
                             .tuning = tuning};
    const cudaError_t error = SkinnyMatmul(weights_[0], args, stream_);
    if (error == cudaErrorInvalidValue) {
      static_cast<void>(cudaGetLastError());
      return 0;
    }
    CHECK_CUDA(error);
    return Time([&](const SkinnyWeight& weight) {
      CHECK_CUDA(SkinnyMatmul(weight, args, stream_));
    });
  }

  double CublasLt(int64_t m, cublasLtHandle_t handle, void* workspace) {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t w, x, out;
    cublasLtMatmulPreferenceOpaque_t preference;
    const cublasOperation_t transpose = CUBLAS_OP_T;
    CHECK_CUBLAS(
        cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(
        &product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose)));
    const auto n = static_cast<uint64_t>(shape_.n);
    const auto k = static_cast<uint64_t>(shape_.k);
    CHECK_CUBLAS(cublasLtMatrixLayoutInit(&w, CUDA_R_16BF, k, n, shape_.k));
    CHECK_CUBLAS(cublasLtMatrixLayoutInit(&x, CUDA_R_16BF, k,
                                          static_cast<uint64_t>(m), shape_.k));
    CHECK_CUBLAS(cublasLtMatrixLayoutInit(&out, CUDA_R_16BF, n,
                                          static_cast<uint64_t>(m), shape_.n));
    CHECK_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
    CHECK_CUBLAS(cublasLtMatmulPreferenceSetAttribute(
        &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
        sizeof(kWorkspaceBytes)));
    cublasLtMatmulHeuristicResult_t result = {};
    int count = 0;
    CHECK_CUBLAS(cublasLtMatmulAlgoGetHeuristic(
        handle, &product, &w, &x, &out, &out, &preference, 1, &result, &count));
    if (count == 0) return 0;
    const float one = 1, zero = 0;
    return Time([&](const SkinnyWeight& weight) {
      CHECK_CUBLAS(cublasLtMatmul(handle, &product, &one, weight.w, &w, x_, &x,
                                  &zero, out_, &out, out_, &out, &result.algo,
                                  workspace, kWorkspaceBytes, stream_));
    });
  }

 private:
  double Time(const std::function<void(const SkinnyWeight&)>& product) {
    product(weights_[0]);
    const cudaGraphExec_t graph = Capture(stream_, [&] {
      for (size_t i = 0; i < kChain; ++i) {
        product(weights_[i % weights_.size()]);
      }
    });
    const double ms = MedianMs(
        stream_, kRuns, [&] { CHECK_CUDA(cudaGraphLaunch(graph, stream_)); });
    CHECK_CUDA(cudaGraphExecDestroy(graph));
    return ms / kChain;
  }

  Shape shape_;
  const __nv_bfloat16* x_;
  __nv_bfloat16* out_;
  cudaStream_t stream_;
  std::vector<SkinnyWeight> weights_;
};

void PrintRates(const char* name, const Shape& shape,
                const std::vector<double>& ms, double read) {
  std::printf("  %-24s", name);
  for (const double t : ms) {
    const double bytes = 2.0 * static_cast<double>(shape.n * shape.k);
    const double rate = t > 0 ? bytes * 1e-6 / t : 0;
    if (t > 0) {
      std::printf("  %4.0f (%3.0f)", rate, 100 * rate / read);
    } else {
      std::printf("      -     ");
    }
  }
  std::printf("\n");
}

// All candidates of a shape, and which is best for each number of rows.
void BenchShape(const Shape& shape, std::span<const int64_t> row_counts,
                Chain& chain, cublasLtHandle_t handle, void* workspace,
                double read) {
  std::printf("\n%ld x %ld, %.1f us at the rate of a read\n  %-24s",
              static_cast<long>(shape.n), static_cast<long>(shape.k),
              2e-3 * static_cast<double>(shape.n * shape.k) / read, "");
  for (const int64_t m : row_counts) {
    std::printf("     m=%-2ld   ", static_cast<long>(m));
  }
  std::printf("\n");
  std::vector<std::vector<double>> all;
  for (const SkinnyCandidate& candidate : kSkinnyCandidates) {
    std::vector<double> ms;
    for (const int64_t m : row_counts) {
      ms.push_back(m <= candidate.max_m ? chain.Skinny(m, candidate.tuning)
                                        : 0);
    }
    PrintRates(candidate.name, shape, ms, read);
    all.push_back(ms);
  }
  std::vector<double> ms;
  for (const int64_t m : row_counts) {
    ms.push_back(chain.CublasLt(m, handle, workspace));
  }
  PrintRates("cuBLASLt", shape, ms, read);
  std::printf("  best:");
  for (size_t i = 0; i < row_counts.size(); ++i) {
    size_t best = 0;
    for (size_t c = 1; c < all.size(); ++c) {
      if (all[c][i] > 0 && all[c][i] < all[best][i]) best = c;
    }
    std::printf(" m=%ld %s (%.2f us, default %.2f);",
                static_cast<long>(row_counts[i]), kSkinnyCandidates[best].name,
                1e3 * all[best][i], 1e3 * all[0][i]);
  }
  std::printf("\n");
}

// All candidates over some shapes.
void BenchShapes(std::span<const Shape> shapes,
                 std::span<const int64_t> row_counts) {
  cudaStream_t stream = nullptr;
  CHECK_CUDA(cudaStreamCreate(&stream));
  const DeviceArray<__nv_bfloat16> pool(kPoolBytes / 2);
  FillRandom(pool.data(), 1, pool.size(), pool.size(), 2);
  int64_t n = 0, k = 0;
  for (const Shape& shape : shapes) {
    n = std::max(n, shape.n);
    k = std::max(k, shape.k);
  }
  const DeviceArray<__nv_bfloat16> x(64 * k), out(64 * n);
  FillRandom(x.data(), 1, x.size(), x.size(), 1);
  cublasLtHandle_t handle = nullptr;
  CHECK_CUBLAS(cublasLtCreate(&handle));
  const DeviceArray<std::byte> workspace(kWorkspaceBytes);
  const double read = ReadRate(pool, stream);

  std::printf(
      "GB/s of W in a chain of %d dependent launches (percent of %.0f GB/s)\n",
      kChain, read);
  for (const Shape& shape : shapes) {
    Chain chain(shape, pool, x.data(), out.data(), stream);
    BenchShape(shape, row_counts, chain, handle, workspace.data(), read);
  }
  CHECK_CUBLAS(cublasLtDestroy(handle));
}

}  // namespace

void BenchSkinny() { BenchShapes(kModelShapes, kRowCounts); }
void BenchSmall() {
  constexpr int64_t kFew[] = {1, 8};
  BenchShapes(kSmallShapes, kFew);
}

}  // namespace baton::test
