// SPDX-License-Identifier: Apache-2.0
// What a warp does with a page of keys and values of a KV head, for up to 8
// query heads of it. Scores are computed transposed, [16 tokens of a page,
// 8 heads], and so is the output, [dims, 8 heads], so that the 8 columns of the
// instruction are heads and no row of it is idle.
#pragma once

#include "kernels/cuda/decode_combine.cuh"
#include "kernels/cuda/mma.cuh"

namespace baton::cuda {

// Queries of a unit, as B: of dims [32 j + 8 q, + 8) the lane holds all, and
// the two steps of block j take words (0, 1) and (2, 3) of both operands.
template <int kHeadDim>
__device__ __forceinline__ void LoadQueries(const DecodeWork& work, int row,
                                            int unit,
                                            uint4 (&q)[kHeadDim / 32]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head = UnitHead(work, unit) + lane / 4;
  const bool is_head = lane / 4 < UnitHeads(work, unit);
  const uint16_t* from =
      work.q + row * work.q_stride + head * kHeadDim + lane % 4 * 8;
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    q[j] = is_head ? Load16(from + j * 32) : uint4{0, 0, 0, 0};
  }
}

// What a warp knows of its heads 2q and 2q + 1. `sum` is this lane's part.
template <int kHeadDim>
struct DecodeState {
  float largest[2] = {-kInfinity, -kInfinity};
  float sum[2] = {};
  float out[kHeadDim / 16][4] = {};  // C of 16 dims: heads 2q, 2q + 1
};

// A page's tokens [begin, end) are those that the row sees, one at the least.
struct SeenTokens {
  int begin, end;

  __device__ __forceinline__ bool IsAll() const {
    return begin == 0 && end == kPage;
  }
  __device__ __forceinline__ bool Has(int token) const {
    return token >= begin && token < end;
  }
  // A mask of a word of two bf16, of this token and the next one.
  __device__ __forceinline__ uint32_t Pair(int token) const {
    return (Has(token) ? 0xffffu : 0u) | (Has(token + 1) ? 0xffff0000u : 0u);
  }
};

// All lanes of a warp: values of tokens that the row does not see become zeros.
// What was never written must not meet a weight of zero: it may be NaN.
template <int kHeadDim>
__device__ __forceinline__ void ClearUnseen(char* values,
                                            const SeenTokens& seen) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int pair = lane % 8 * 2;
  const uint32_t keep = seen.Pair(pair);
  for (int dim = lane / 8; dim < kHeadDim; dim += kWarp / 8) {
    *reinterpret_cast<uint32_t*>(values + dim * 2 * kPage + 2 * pair) &= keep;
  }
  __syncwarp();
}

// Token (0 to 15) that row g of the scores stands for; row g + 8 is two more.
// So the four weights of a lane belong to tokens [4 q, 4 q + 4) of the values.
__device__ __forceinline__ int RowToken(int g) { return g / 2 * 4 + g % 2; }

// Of heads 2q and 2q + 1: scores of two tokens each, and the largest of the
// page.
struct PageScores {
  float score[4];
  float best[2];
};

template <int kHeadDim>
__device__ __forceinline__ PageScores
ScorePage(const DecodeWork& work, const char* keys, const SeenTokens& seen,
          const uint4 (&q)[kHeadDim / 32]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int token = RowToken(lane / 4);
  const char* low = keys + token * (2 * kHeadDim) + lane % 4 * 16;
  const char* high = low + 2 * (2 * kHeadDim);
  float even[4] = {};
  float odd[4] = {};
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    const uint4 k = *reinterpret_cast<const uint4*>(low + j * 64);
    const uint4 l = *reinterpret_cast<const uint4*>(high + j * 64);
    Mma(even, {k.x, l.x, k.y, l.y}, q[j].x, q[j].y);
    Mma(odd, {k.z, l.z, k.w, l.w}, q[j].z, q[j].w);
  }
  PageScores page;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float score = __fmul_rn(even[i] + odd[i], work.scale_log2);
    page.score[i] = seen.Has(token + i / 2 * 2) ? score : -kInfinity;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float best = fmaxf(page.score[i], page.score[i + 2]);
#pragma unroll
    for (int width = 4; width < kWarp; width *= 2) {
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, width));
    }
    page.best[i] = best;
  }
  return page;
}

// A page's weights, as B, and each lane's part of their sum; what was added
// before it has to be multiplied by `factor`. Of heads 2q and 2q + 1.
struct PageWeights {
  uint32_t low, high;
  float factor[2];
  float sum[2];
};

// `largest`: the largest score before.
__device__ __forceinline__ PageWeights WeighPage(const PageScores& page,
                                                 const float (&largest)[2]) {
  PageWeights weights;
  float weight[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float best = fmaxf(page.best[i], largest[i]);
    weights.factor[i] = Exp2(largest[i] - best);
    weight[i] = Exp2(page.score[i] - best);
    weight[i + 2] = Exp2(page.score[i + 2] - best);
    weights.sum[i] = weight[i] + weight[i + 2];
  }
  weights.low = Transpose(PackBf16(weight[0], weight[1]));
  weights.high = Transpose(PackBf16(weight[2], weight[3]));
  return weights;
}

// Adds a page to what the warp knows, but for the largest score. Values of
// tokens that the row does not see are zeros.
template <int kHeadDim>
__device__ __forceinline__ void AddPage(const char* values,
                                        const PageWeights& weights,
                                        DecodeState<kHeadDim>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    state.sum[i] = fmaf(state.sum[i], weights.factor[i], weights.sum[i]);
  }
  const char* from = values + lane / 4 * 32 + lane % 4 * 8;
#pragma unroll
  for (int t = 0; t < kHeadDim / 16; ++t) {
    const uint2 v = *reinterpret_cast<const uint2*>(from + t * 512);
    const uint2 w = *reinterpret_cast<const uint2*>(from + t * 512 + 256);
#pragma unroll
    for (int i = 0; i < 4; ++i) state.out[t][i] *= weights.factor[i % 2];
    Mma(state.out[t], {v.x, w.x, v.y, w.y}, weights.low, weights.high);
  }
}

// Over the lanes of the same heads.
__device__ __forceinline__ float SumOfLanes(float sum) {
#pragma unroll
  for (int width = 4; width < kWarp; width *= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, width);
  }
  return sum;
}

// The warp's state to memory: [kUnitHeads][kStateStride] and [kUnitHeads].
template <int kHeadDim>
__device__ __forceinline__ void PutState(const DecodeState<kHeadDim>& state,
                                         float* out, float2* softmax) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = lane % 4 * 2 + i;
    const float sum = SumOfLanes(state.sum[i]);
    if (lane / 4 == 0) softmax[head] = {state.largest[i], sum};
    float* to = out + head * DecodeShape<kHeadDim>::kStateStride + lane / 4;
#pragma unroll
    for (int t = 0; t < kHeadDim / 16; ++t) {
      to[t * 16] = state.out[t][i];
      to[t * 16 + 8] = state.out[t][i + 2];
    }
  }
}

}  // namespace baton::cuda
