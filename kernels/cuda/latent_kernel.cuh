// SPDX-License-Identifier: Apache-2.0
// The tensor-core kernel of attention over latents of 512 + 64. A block takes a
// span of one row and 32 heads of it, which share every latent: scores
// [32 heads, 64 tokens] with 576 of depth, then sums [32 heads, 512] of
// weighted latents. Pages are copied to shared memory as they are, a tile of 64
// tokens ahead of the one that is worked on.
#pragma once

#include "kernels/cuda/latent_tile.cuh"

namespace baton::cuda {

// ---- Scores ----------------------------------------------------------------

// A warp's quarter of the queries, as A: two tiles of 16 heads.
struct LatentQueries {
  uint32_t a[2][kPartSteps][4];
};

__device__ __forceinline__ void ReadQueries(const LatentShared& block, int part,
                                            LatentQueries& q) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const int row = 16 * t + lane % 16;
#pragma unroll
    for (int s = 0; s < kPartSteps; ++s) {
      const int chunk = 2 * (part * kPartSteps + s) + lane / 16;
      LoadMatrices(q.a[t][s],
                   SharedOffset(&block.q[row][TurnedChunk(row, chunk)]));
    }
  }
}

// The warp's part of the scores of its 32 tokens, to shared memory.
__device__ __forceinline__ void LatentScores(const LatentQueries& q, int part,
                                             int first_token, const char* tile,
                                             LatentShared& block) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto* rows = reinterpret_cast<const uint4*>(tile);
  float score[2][4][4] = {};
#pragma unroll
  for (int s = 0; s < kPartSteps; ++s) {
    const int chunk = 2 * (part * kPartSteps + s) + lane / 8 % 2;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int token = first_token + 16 * n + lane / 16 * 8 + lane % 8;
      uint32_t b[4];
      LoadMatrices(b, SharedOffset(rows + token * kLatentChunks +
                                   TurnedChunk(token, chunk)));
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        Mma(score[t][2 * n], q.a[t][s], b[0], b[1]);
        Mma(score[t][2 * n + 1], q.a[t][s], b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < 2; ++t) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int head = 16 * t + lane / 4;
      const int token = first_token + 8 * n + lane % 4 * 2;
      *reinterpret_cast<float2*>(&block.scores[part][head][token]) = {
          score[t][n][0], score[t][n][1]};
      *reinterpret_cast<float2*>(&block.scores[part][head + 8][token]) = {
          score[t][n][2], score[t][n][3]};
    }
  }
}

// ---- Softmax ---------------------------------------------------------------

// Eight threads a head; each has tokens 32 i + 4 (thread % 8) + e of a tile.
struct LatentSoftmax {
  float largest = -kInfinity;  // raw score
  float sum = 0;
};

__device__ __forceinline__ float HeadMax(float x) {
#pragma unroll
  for (int width = 1; width < 8; width *= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, width));
  }
  return x;
}
__device__ __forceinline__ float HeadSum(float x) {
#pragma unroll
  for (int width = 1; width < 8; width *= 2) {
    x += __shfl_xor_sync(kAllLanes, x, width);
  }
  return x;
}

__device__ __forceinline__ void LatentWeigh(float scale_log2, int visible,
                                            LatentSoftmax& state,
                                            LatentShared& block) {
  const int head = static_cast<int>(threadIdx.x) / 8;
  const int first = static_cast<int>(threadIdx.x) % 8 * 4;
  float score[2][4] = {};
  float best = -kInfinity;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int part = 0; part < kDepthParts; ++part) {
      const float4 four = *reinterpret_cast<const float4*>(
          &block.scores[part][head][32 * i + first]);
      score[i][0] += four.x;
      score[i][1] += four.y;
      score[i][2] += four.z;
      score[i][3] += four.w;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (32 * i + first + e >= visible) score[i][e] = -kInfinity;
      best = fmaxf(best, score[i][e]);
    }
  }
  best = fmaxf(state.largest, HeadMax(best));
  const float factor = Exp2((state.largest - best) * scale_log2);
  const float shift = best * scale_log2;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      score[i][e] = Exp2(fmaf(score[i][e], scale_log2, -shift));
      sum += score[i][e];
    }
    *reinterpret_cast<uint2*>(&block.weights[head][32 * i + first]) = {
        PackBf16(score[i][0], score[i][1]), PackBf16(score[i][2], score[i][3])};
  }
  state.sum = fmaf(state.sum, factor, HeadSum(sum));
  state.largest = best;
  if (threadIdx.x % 8 == 0) block.factor[head] = factor;
}

// ---- Sums ------------------------------------------------------------------

// Sums of 32 heads over a warp's 64 of the latents.
struct LatentSums {
  float out[2][8][4];
};

__device__ __forceinline__ void AddLatents(int warp, const char* tile,
                                           const LatentShared& block,
                                           LatentSums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto* rows = reinterpret_cast<const uint4*>(tile);
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const float low = block.factor[16 * t + lane / 4];
    const float high = block.factor[16 * t + lane / 4 + 8];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      sums.out[t][u][0] *= low;
      sums.out[t][u][1] *= low;
      sums.out[t][u][2] *= high;
      sums.out[t][u][3] *= high;
    }
  }
#pragma unroll
  for (int s = 0; s < kLatentTile / 16; ++s) {
    uint32_t a[2][4];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      LoadMatrices(
          a[t],
          SharedOffset(
              &block.weights[16 * t + lane % 16][16 * s + lane / 16 * 8]));
    }
    const int token = 16 * s + lane % 16;
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int chunk = 8 * warp + 2 * u + lane / 16;
      uint32_t b[4];
      LoadTransposed(b, SharedOffset(rows + token * kLatentChunks +
                                     TurnedChunk(token, chunk)));
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        Mma(sums.out[t][2 * u], a[t], b[0], b[1]);
        Mma(sums.out[t][2 * u + 1], a[t], b[2], b[3]);
      }
    }
  }
}

__device__ __forceinline__ void StoreLatents(const LatentAttentionArgs& args,
                                             const LatentPlace& place, int warp,
                                             const LatentSums& sums,
                                             const LatentShared& block) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float* result = LatentResultOf(args, place.row, blockIdx.y, place.span);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = i / 2 * 16 + i % 2 * 8 + lane / 4;
    if (head >= place.heads) continue;
    const float2 softmax = block.softmax[head];
    auto* out = static_cast<uint16_t*>(args.out) + place.row * args.out_stride +
                (place.first_head + head) * kLatent;
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const int d = 64 * warp + 8 * u + lane % 4 * 2;
      const float x = sums.out[i / 2][u][i % 2 * 2];
      const float y = sums.out[i / 2][u][i % 2 * 2 + 1];
      if (place.spans == 1) {
        *reinterpret_cast<uint32_t*>(out + d) =
            PackBf16(x / softmax.y, y / softmax.y);
      } else {
        *reinterpret_cast<float2*>(result + head * kLatent + d) = {x, y};
      }
    }
    if (place.spans > 1 && warp == 0 && lane % 4 == 0) {
      *reinterpret_cast<float2*>(result + kLatentHeads * kLatent + 2 * head) =
          softmax;
    }
  }
}

// Brings the queries and sends for the first tile; the numbers of the pages of
// the second.
__device__ __forceinline__ int BeginLatents(const LatentAttentionArgs& args,
                                            const LatentPlace& place, int warp,
                                            LatentShared& block) {
  if (threadIdx.x == 0) StagesInit(block.arrived[0], 4);
  CopyLatentQueries(args, place, block);
  CommitCopies();
  const int page_id = LatentPageId(place, 0);
  __syncthreads();
  if (warp == 0) CopyLatents(args.pages, 0, page_id, block);
  AwaitCopies();
  __syncthreads();
  return LatentPageId(place, 1);
}

// Blocks: spans of rows, then units of heads.
static __global__ void __launch_bounds__(kLatentThreads, 1)
    LatentKernel(const __grid_constant__ LatentWork work) {
  extern __shared__ __align__(1024) char shared[];
  auto& block = *reinterpret_cast<LatentShared*>(shared);
  const LatentAttentionArgs& args = work.args;
  EnterKernel();
  LatentPlace place;
  if (!FindLatentPlace(args, place)) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int part = warp % kDepthParts;
  const int half = warp / kDepthParts;
  const int tiles = (place.end - place.begin + kLatentTile - 1) / kLatentTile;
  int page_id = BeginLatents(args, place, warp, block);
  LatentQueries q;
  ReadQueries(block, part, q);

  LatentSoftmax softmax;
  LatentSums sums = {};
  for (int j = 0; j < tiles; ++j) {
    char* tile = block.tiles[j % 2][0];
    const int visible = place.end - place.begin - j * kLatentTile;
    StageAwait(&block.arrived[j % 2][0], j / 2);
    StageAwait(&block.arrived[j % 2][1], j / 2);
    if (visible < kLatentTile) ClearBehind(visible, tile);
    __syncthreads();
    if (warp == 0 && j + 1 < tiles) {
      CopyLatents(args.pages, j + 1, page_id, block);
      page_id = LatentPageId(place, j + 2);
    }
    LatentScores(q, part, half * kLatentTile / 2, tile, block);
    __syncthreads();
    LatentWeigh(work.scale_log2, visible, softmax, block);
    __syncthreads();
    AddLatents(warp, tile, block, sums);
  }
  if (threadIdx.x % 8 == 0) {
    block.softmax[threadIdx.x / 8] = {softmax.largest, softmax.sum};
  }
  __syncthreads();
  StoreLatents(args, place, warp, sums, block);
}

}  // namespace baton::cuda
