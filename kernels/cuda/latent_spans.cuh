// SPDX-License-Identifier: Apache-2.0
// What a block leaves of a span of a row that is cut, and the kernel that
// combines the spans.
#pragma once

#include "kernels/cuda/latent_attention.h"
#include "kernels/cuda/mma.cuh"

namespace baton::cuda {

inline constexpr int kLatentHeads = 32;  // of a block
// Of a span: sums [32][512], then [32] largest score and sum of weights.
inline constexpr int kLatentResult =
    kLatentHeads * (static_cast<int>(kLatent) + 2);

struct LatentWork {
  LatentAttentionArgs args;
  float scale_log2;  // scale * log2(e)
};

__device__ __forceinline__ float* LatentResultOf(
    const LatentAttentionArgs& args, int64_t row, int64_t unit, int64_t span) {
  const int64_t units = (args.heads + kLatentHeads - 1) / kLatentHeads;
  return static_cast<float*>(args.scratch) +
         ((row * units + unit) * args.max_spans + span) * kLatentResult;
}

inline constexpr int kCombineLatentThreads = static_cast<int>(kLatent) / 4;

// The spans of a row that is cut, in order. Blocks: heads, rows.
static __global__ void __launch_bounds__(kCombineLatentThreads)
    CombineLatentsKernel(const __grid_constant__ LatentWork work) {
  const LatentAttentionArgs& args = work.args;
  EnterKernel();
  const int head = static_cast<int>(blockIdx.x);
  const int64_t row = blockIdx.y;
  const int tokens = LoadInt(args.positions + row) + 1;
  if (LoadInt(args.row_sequence + row) < 0) return;
  const int span_tokens = LatentSpanTokens(tokens);
  const int spans = (tokens + span_tokens - 1) / span_tokens;
  if (spans == 1) return;  // stored already
  const int in_unit = head % kLatentHeads;
  const float* result = LatentResultOf(args, row, head / kLatentHeads, 0);
  const float* softmax = result + kLatentHeads * kLatent + 2 * in_unit;
  const auto of_span = [&](int s) {
    return __ldcg(
        reinterpret_cast<const float2*>(softmax + int64_t{s} * kLatentResult));
  };
  float best = -kInfinity;
  for (int s = 0; s < spans; ++s) best = fmaxf(best, of_span(s).x);
  float sum = 0;
  float total[4] = {};
  const int d = static_cast<int>(threadIdx.x) * 4;
#pragma unroll 4
  for (int s = 0; s < spans; ++s) {
    const float2 one = of_span(s);
    const float4 x = __ldcg(reinterpret_cast<const float4*>(
        result + int64_t{s} * kLatentResult + in_unit * kLatent + d));
    const float factor = Exp2((one.x - best) * work.scale_log2);
    sum = fmaf(one.y, factor, sum);
    total[0] = fmaf(x.x, factor, total[0]);
    total[1] = fmaf(x.y, factor, total[1]);
    total[2] = fmaf(x.z, factor, total[2]);
    total[3] = fmaf(x.w, factor, total[3]);
  }
  auto* out = static_cast<uint16_t*>(args.out) + row * args.out_stride +
              head * kLatent + d;
  *reinterpret_cast<uint2*>(out) = {PackBf16(total[0] / sum, total[1] / sum),
                                    PackBf16(total[2] / sum, total[3] / sum)};
}

}  // namespace baton::cuda
