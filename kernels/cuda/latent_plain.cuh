// SPDX-License-Identifier: Apache-2.0
// Attention over latents of other sizes: a block per row and head, tokens in
// blocks of 128 from position 0. For small models; it claims no speed.
#pragma once

#include "kernels/cuda/latent_spans.cuh"

namespace baton::cuda {

inline constexpr int kLatentPlainThreads = 128;

// The sequence of a row, token by token.
struct LatentReader {
  const LatentPages& pages;
  const int32_t* table;

  __device__ __forceinline__ float At(int token, int64_t d) const {
    const int64_t id = LoadInt(table + token / kPageTokens);
    const auto* page = reinterpret_cast<const uint16_t*>(
        static_cast<const char*>(pages.pool) + id * pages.page_bytes);
    return FromBf16(
        Load2(page + LatentAt(pages.Width(), token % kPageTokens, d)));
  }
};

// All threads: the query of a head, own columns then shared ones. No barrier.
__device__ inline void LoadLatentQuery(const LatentAttentionArgs& args,
                                       int64_t row, int64_t head, float* q) {
  const int64_t latent = args.pages.latent;
  const auto* own = static_cast<const uint16_t*>(args.q_latent) +
                    row * args.q_latent_stride + head * latent;
  const auto* shared = static_cast<const uint16_t*>(args.q_shared) +
                       row * args.q_shared_stride + head * args.head_stride;
  for (int64_t d = threadIdx.x; d < args.pages.Width();
       d += kLatentPlainThreads) {
    q[d] = FromBf16(d < latent ? Load2(own + d) : Load2(shared + d - latent));
  }
}

// Blocks: rows, then heads.
static __global__ void __launch_bounds__(kLatentPlainThreads)
    LatentPlainKernel(const __grid_constant__ LatentWork work) {
  __shared__ float q[kMaxLatentWidth];
  __shared__ float weights[kLatentPlainThreads];
  __shared__ float scratch[2][kLatentPlainThreads / kWarp];
  constexpr int kDims = static_cast<int>(kMaxLatent) / kLatentPlainThreads;
  const LatentAttentionArgs& args = work.args;
  const LatentPages& pages = args.pages;
  EnterKernel();
  const int64_t row = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int position = LoadInt(args.positions + row);
  const int sequence = LoadInt(args.row_sequence + row);
  if (sequence < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const auto latent = static_cast<int>(pages.latent);
  const auto width = static_cast<int>(pages.Width());
  const LatentReader tokens = {pages,
                               pages.page_table + sequence * pages.page_stride};
  LoadLatentQuery(args, row, head, q);
  __syncthreads();
  float total[kDims] = {};
  float sum = 0;
  float largest = -kInfinity;
  for (int begin = 0; begin <= position; begin += kLatentPlainThreads) {
    const int count = min(kLatentPlainThreads, position + 1 - begin);
    float score = -kInfinity;
    if (thread < count) {
      float dot = 0;
      for (int d = 0; d < width; ++d) {
        dot = fmaf(q[d], tokens.At(begin + thread, d), dot);
      }
      score = dot * work.scale_log2;
    }
    const float best = fmaxf(largest, BlockMax(score, scratch[0]));
    const float factor = exp2f(largest - best);
    largest = best;
    const float weight = exp2f(score - best);
    weights[thread] = weight;
    sum = sum * factor + BlockSum(weight, scratch[1]);
    for (int i = 0; i < kDims; ++i) {
      const int d = thread + i * kLatentPlainThreads;
      if (d >= latent) break;
      float weighted = 0;
      for (int t = 0; t < count; ++t) {
        weighted = fmaf(weights[t], tokens.At(begin + t, d), weighted);
      }
      total[i] = fmaf(total[i], factor, weighted);
    }
    __syncthreads();
  }
  auto* out =
      static_cast<uint16_t*>(args.out) + row * args.out_stride + head * latent;
  for (int i = 0; i < kDims; ++i) {
    const int d = thread + i * kLatentPlainThreads;
    if (d >= latent) break;
    out[d] = ToBf16(total[i] / sum);
  }
}

}  // namespace baton::cuda
