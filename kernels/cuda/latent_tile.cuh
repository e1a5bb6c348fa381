// SPDX-License-Identifier: Apache-2.0
// Where a block of the tensor-core kernel of attention over latents is, and how
// queries and pages get to its shared memory.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/latent_spans.cuh"

namespace baton::cuda {

inline constexpr int kLatentTile = 64;  // tokens
inline constexpr int kLatentWarps = 8;
inline constexpr int kLatentThreads = kLatentWarps * kWarp;
inline constexpr int kLatentWidth = static_cast<int>(kLatent + kLatentShared);
inline constexpr int kLatentChunks = kLatentWidth / 8;  // of 16 bytes
inline constexpr int kLatentPageBytes = 16 * kLatentWidth * 2;
inline constexpr int kLatentTilePages = kLatentTile / 16;
// Scores: warps share the depth in quarters and the tokens in halves.
inline constexpr int kDepthParts = 4;
inline constexpr int kPartSteps = kLatentWidth / 16 / kDepthParts;
inline constexpr int kScoreStride = kLatentTile + 8;   // no bank conflicts
inline constexpr int kWeightStride = kLatentTile + 8;  // bf16
struct LatentShared {
  char tiles[2][kLatentTilePages][kLatentPageBytes];
  union {
    uint4 q[kLatentHeads][kLatentChunks];  // before the first tile
    float scores[kDepthParts][kLatentHeads][kScoreStride];
  };
  uint16_t weights[kLatentHeads][kWeightStride];
  float factor[kLatentHeads];
  float2 softmax[kLatentHeads];  // largest raw score, sum of weights
  uint64_t arrived[2][2];        // halves of both tiles
};

// The block's place, as every thread sees it.
struct LatentPlace {
  int64_t row;
  int first_head, heads;
  int begin, end;        // tokens of the span
  int span, spans;       // of the row
  const int32_t* table;  // pages of the sequence
};

// Chunk c of a row that lies as in pages.
__device__ __forceinline__ int TurnedChunk(int row, int chunk) {
  return chunk ^ row % 8;
}

// False: there is nothing to do.
__device__ __forceinline__ bool FindLatentPlace(const LatentAttentionArgs& args,
                                                LatentPlace& place) {
  const int64_t item = blockIdx.x;
  const bool is_cut = args.max_spans > 0;
  place.row = is_cut ? item / args.max_spans : args.rows - 1 - item;
  place.span = is_cut ? static_cast<int>(item % args.max_spans) : 0;
  const int tokens = LoadInt(args.positions + place.row) + 1;
  const int sequence = LoadInt(args.row_sequence + place.row);
  const int span_tokens = is_cut ? LatentSpanTokens(tokens) : tokens;
  place.begin = place.span * span_tokens;
  place.end = min(place.begin + span_tokens, tokens);
  place.spans = (tokens + span_tokens - 1) / span_tokens;
  place.table = args.pages.page_table + sequence * args.pages.page_stride;
  place.first_head = static_cast<int>(blockIdx.y) * kLatentHeads;
  place.heads =
      min(kLatentHeads, static_cast<int>(args.heads) - place.first_head);
  return sequence >= 0 && place.begin < tokens;
}

// ---- Copies ----------------------------------------------------------------

// Lane i gets page i % 4 of a tile. Past the last page: the last one.
__device__ __forceinline__ int LatentPageId(const LatentPlace& place,
                                            int tile) {
  const int page = place.begin / 16 + tile * kLatentTilePages +
                   static_cast<int>(threadIdx.x) % kLatentTilePages;
  return LoadInt(place.table + min(page, (place.end - 1) / 16));
}

// One warp.
__device__ __forceinline__ void CopyLatents(const LatentPages& pages, int tile,
                                            int page_id, LatentShared& block) {
  const char* page[kLatentTilePages];
#pragma unroll
  for (int p = 0; p < kLatentTilePages; ++p) {
    page[p] = static_cast<const char*>(pages.pool) +
              __shfl_sync(kAllLanes, page_id, p) * pages.page_bytes;
  }
  const int buffer = tile % 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    StageFill(&block.arrived[buffer][half], block.tiles[buffer][2 * half],
              page[2 * half], page[2 * half + 1], kLatentPageBytes);
  }
}

// Tokens behind the span become zeros: they may never have been written.
__device__ __forceinline__ void ClearBehind(int visible, char* tile) {
  for (int i = visible * kLatentChunks + static_cast<int>(threadIdx.x);
       i < kLatentTile * kLatentChunks; i += kLatentThreads) {
    reinterpret_cast<uint4*>(tile)[i] = {0, 0, 0, 0};
  }
}

// Heads that there are not get zeros.
__device__ __forceinline__ void CopyLatentQueries(
    const LatentAttentionArgs& args, const LatentPlace& place,
    LatentShared& block) {
  constexpr int kOwn = static_cast<int>(kLatent) / 8;
  const auto* latent = static_cast<const uint16_t*>(args.q_latent) +
                       place.row * args.q_latent_stride;
  const auto* shared = static_cast<const uint16_t*>(args.q_shared) +
                       place.row * args.q_shared_stride;
  for (int i = static_cast<int>(threadIdx.x); i < kLatentHeads * kLatentChunks;
       i += kLatentThreads) {
    const int row = i / kLatentChunks;
    const int chunk = i % kLatentChunks;
    const bool is_head = row < place.heads;
    const int64_t head = place.first_head + (is_head ? row : 0);
    CopyAsync(SharedOffset(&block.q[row][TurnedChunk(row, chunk)]),
              chunk < kOwn
                  ? latent + head * kLatent + chunk * 8
                  : shared + head * args.head_stride + (chunk - kOwn) * 8,
              is_head ? 16 : 0);
  }
}

}  // namespace baton::cuda
