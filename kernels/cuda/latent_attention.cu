// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numbers>

#include "kernels/cuda/latent_attention.h"
#include "kernels/cuda/latent_kernel.cuh"
#include "kernels/cuda/latent_plain.cuh"

namespace baton::cuda {
namespace {

constexpr int64_t kMaxGridY = 65535;
constexpr int kWriteThreads = 128;

// Sixteen bytes a thread, or one element.
template <bool kVectors>
__global__ void __launch_bounds__(kWriteThreads)
    LatentWriteKernel(LatentWriteArgs args) {
  EnterKernel();
  const int64_t row = blockIdx.x;
  const int64_t position = LoadInt(args.positions + row);
  const int64_t sequence = LoadInt(args.row_sequence + row);
  if (sequence < 0) return;
  const LatentPages& pages = args.pages;
  const int64_t id = LoadInt(pages.page_table + sequence * pages.page_stride +
                             position / kPageTokens);
  auto* page = reinterpret_cast<uint16_t*>(static_cast<char*>(pages.pool) +
                                           id * pages.page_bytes);
  const auto* from =
      static_cast<const uint16_t*>(args.rows) + row * args.stride;
  const int64_t width = pages.Width();
  constexpr int kElements = kVectors ? 8 : 1;
  for (int64_t d = static_cast<int64_t>(threadIdx.x) * kElements; d < width;
       d += kWriteThreads * kElements) {
    uint16_t* to = page + LatentAt(width, position % kPageTokens, d);
    if constexpr (kVectors) {
      *reinterpret_cast<uint4*>(to) = Load16(from + d);
    } else {
      *to = Load2(from + d);
    }
  }
}

float ScaleLog2(float scale) {
  return static_cast<float>(static_cast<double>(scale) *
                            std::numbers::log2e_v<double>);
}

bool SuitsTensorCores(const LatentAttentionArgs& args) {
  const LatentPages& pages = args.pages;
  return pages.latent == kLatent && pages.shared == kLatentShared &&
         IsAligned(args.q_latent, 16) && args.q_latent_stride % 8 == 0 &&
         IsAligned(args.q_shared, 16) && args.q_shared_stride % 8 == 0 &&
         args.head_stride % 8 == 0 && IsAligned(args.out, 8) &&
         args.out_stride % 4 == 0 && IsAligned(pages.pool, 16) &&
         pages.page_bytes % 16 == 0;
}

}  // namespace

int64_t LatentScratchBytes(int64_t rows, int64_t heads, int64_t max_spans) {
  return rows * CeilDiv(heads, kLatentHeads) * max_spans * kLatentResult *
         static_cast<int64_t>(sizeof(float));
}

cudaError_t LatentWrite(const LatentWriteArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  const LatentPages& pages = args.pages;
  const bool vectors = pages.Width() % 8 == 0 && IsAligned(args.rows, 16) &&
                       args.stride % 8 == 0 && IsAligned(pages.pool, 16) &&
                       pages.page_bytes % 16 == 0;
  const dim3 grid(Blocks(args.count));
  return vectors ? Launch(&LatentWriteKernel<true>, grid, kWriteThreads, 0,
                          stream, args)
                 : Launch(&LatentWriteKernel<false>, grid, kWriteThreads, 0,
                          stream, args);
}

cudaError_t LatentAttention(const LatentAttentionArgs& args,
                            cudaStream_t stream) {
  const LatentPages& pages = args.pages;
  if (pages.latent < 1 || pages.latent > kMaxLatent || pages.shared < 0 ||
      pages.Width() > kMaxLatentWidth || args.heads > kMaxGridY ||
      !(args.scale > 0)) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0 || args.heads == 0) return cudaSuccess;
  const LatentWork work = {args, ScaleLog2(args.scale)};
  if (!SuitsTensorCores(args)) {
    return Launch(&LatentPlainKernel,
                  dim3(Blocks(args.rows), Blocks(args.heads)),
                  kLatentPlainThreads, 0, stream, work);
  }
  const int64_t spans = std::max<int64_t>(args.max_spans, 1);
  const dim3 grid(Blocks(args.rows * spans),
                  Blocks(CeilDiv(args.heads, kLatentHeads)));
  const cudaError_t error = Launch(&LatentKernel, grid, kLatentThreads,
                                   sizeof(LatentShared), stream, work);
  if (error != cudaSuccess || spans == 1) return error;
  for (int64_t first = 0; first < args.rows; first += kMaxGridY) {
    LatentWork part = work;
    part.args.rows = std::min(args.rows - first, kMaxGridY);
    part.args.out = static_cast<uint16_t*>(args.out) + first * args.out_stride;
    part.args.positions += first;
    part.args.row_sequence += first;
    part.args.scratch = static_cast<char*>(args.scratch) +
                        LatentScratchBytes(first, args.heads, args.max_spans);
    const cudaError_t combined = Launch(
        &CombineLatentsKernel, dim3(Blocks(args.heads), Blocks(part.args.rows)),
        kCombineLatentThreads, 0, stream, part);
    if (combined != cudaSuccess) return combined;
  }
  return cudaSuccess;
}

}  // namespace baton::cuda
