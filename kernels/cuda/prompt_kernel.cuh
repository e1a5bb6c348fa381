// SPDX-License-Identifier: Apache-2.0
// The tensor-core kernel of prompt rows: a block takes a tile of 128 rows of
// one query head and walks over keys in tiles of 64, which arrive in shared
// memory a tile ahead.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/prompt_attention.h"

namespace baton::cuda {

struct PromptWork {
  const uint16_t* q;  // [rows, q_heads, head_dim]
  int64_t q_stride;
  uint16_t* out;  // [rows, q_heads, head_dim]
  int64_t out_stride;
  const PromptTile* tiles;
  KvPages pages;
  int group;         // query heads of a KV head
  float scale_log2;  // scale * log2(e)
};

template <int kHeadDim>
struct PromptShape {
  static constexpr int kRows = static_cast<int>(kPromptTileRows);
  static constexpr int kKeys = 64;
  static constexpr int kPages = kKeys / static_cast<int>(kPageTokens);
  // 16-row tiles of a warp; more share what is read from shared memory.
  static constexpr int kRowTiles = kHeadDim == 256 ? 1 : 2;
  static constexpr int kWarps = kRows / 16 / kRowTiles;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kBlocksPerProcessor = kHeadDim == 256 ? 1 : 2;
  static constexpr int kChunks = kHeadDim / 8;  // of 16 bytes, of a head vector
};

// Rows of 16-byte chunks; chunk c of row r lies at c ^ (r % 8), so that eight
// rows of one chunk are in different banks.
template <int kHeadDim>
struct PromptShared {
  using Shape = PromptShape<kHeadDim>;
  uint4 q[Shape::kRows][Shape::kChunks];
  uint4 keys[2][Shape::kKeys][Shape::kChunks];
  uint4 values[2][kHeadDim][Shape::kKeys / 8];  // [dim][tokens]
};

// The block's tile, as every thread sees it.
struct PromptPlace {
  int first_row, rows, first_position;
  int last;              // position of the last row
  const int32_t* table;  // pages of the sequence
  int64_t block_at;      // bytes from a page to its KV head's keys
};

// Whether the key is before what the row at `position` sees. A kernel of its
// own for pages with a window: without one there are no registers left for it.
template <bool kWindow>
__device__ __forceinline__ bool IsPast(const KvPages& pages, int key,
                                       int position) {
  return kWindow && position - key >= pages.window;
}

// Keeps the compiler from computing what depends on the number once for all
// tiles, which takes registers that are not there.
__device__ __forceinline__ uint32_t Opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Lane i gets page i % 4 of a tile of keys. Past the last page: the last one,
// of which nothing is read.
__device__ __forceinline__ int LoadPageId(const PromptPlace& place, int tile) {
  constexpr int kPages = PromptShape<64>::kPages;
  const int page = tile * kPages + static_cast<int>(threadIdx.x) % kPages;
  return LoadInt(place.table +
                 min(page, place.last / static_cast<int>(kPageTokens)));
}

// Starts the copies of a tile of keys and values. Tokens past the last row's
// become zeros, since they may never have been written, and so do pages before
// every row's window, which may be another sequence's by now.
template <int kHeadDim, bool kWindow>
__device__ __forceinline__ void CopyTile(const PromptWork& work,
                                         const PromptPlace& place, int tile,
                                         int page_id,
                                         PromptShared<kHeadDim>& block) {
  using Shape = PromptShape<kHeadDim>;
  constexpr int kPerPage = static_cast<int>(kPageTokens) * Shape::kChunks;
  static_assert(kPerPage % Shape::kThreads == 0);
  const int thread = static_cast<int>(
      kHeadDim == 256 || kWindow ? Opaque(threadIdx.x) : threadIdx.x);
  const int buffer = tile % 2;
  const int64_t values_at =
      work.pages.kv_heads * kPageTokens * kHeadDim * 2;  // bytes
#pragma unroll
  for (int p = 0; p < Shape::kPages; ++p) {
    const int64_t id = __shfl_sync(kAllLanes, page_id, p);
    const char* page = static_cast<const char*>(work.pages.pool) +
                       id * work.pages.page_bytes + place.block_at;
    // Visible tokens of this page, below 1 or above 16 for none or all.
    constexpr int kPage = static_cast<int>(kPageTokens);
    const int begin = tile * Shape::kKeys + p * kPage;
    const bool is_past =
        IsPast<kWindow>(work.pages, begin + kPage - 1, place.first_position);
    const int visible = is_past ? 0 : place.last + 1 - begin;
#pragma unroll
    for (int n = 0; n < kPerPage / Shape::kThreads; ++n) {
      const int i = thread + n * Shape::kThreads;
      const int token = i / Shape::kChunks;
      const int chunk = i % Shape::kChunks;
      const int row = p * static_cast<int>(kPageTokens) + token;
      CopyAsync(SharedOffset(&block.keys[buffer][row][chunk ^ (row % 8)]),
                page + i * 16, token < visible ? 16 : 0);
    }
#pragma unroll
    for (int n = 0; n < kPerPage / Shape::kThreads; ++n) {
      const int i = thread + n * Shape::kThreads;
      const int dim = i / 2;
      const int half = i % 2;
      const int tokens = min(max(visible - 8 * half, 0), 8);
      CopyAsync(
          SharedOffset(&block.values[buffer][dim][(2 * p + half) ^ (dim % 8)]),
          page + values_at + i * 16, 2 * tokens);
    }
  }
}

template <int kHeadDim>
__device__ __forceinline__ void CopyQueries(const PromptWork& work,
                                            const PromptPlace& place, int head,
                                            PromptShared<kHeadDim>& block) {
  using Shape = PromptShape<kHeadDim>;
  const uint16_t* from =
      work.q + place.first_row * work.q_stride + head * kHeadDim;
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * Shape::kChunks;
       i += Shape::kThreads) {
    const int row = i / Shape::kChunks;
    const int chunk = i % Shape::kChunks;
    const int source = min(row, place.rows - 1);
    CopyAsync(SharedOffset(&block.q[row][chunk ^ (row % 8)]),
              from + source * work.q_stride + chunk * 8,
              row < place.rows ? 16 : 0);
  }
}

// A warp's rows: C registers of its row tiles; index 2 t + h is row
// 16 t + g + 8 h of the warp.
template <int kHeadDim>
struct PromptState {
  static constexpr int kTiles = PromptShape<kHeadDim>::kRowTiles;
  float largest[2 * kTiles];  // raw score
  float sum[2 * kTiles];      // this lane's part
  float out[kTiles][kHeadDim / 8][4];
};

// Scores of a warp's rows for a tile of keys. kTiles x 8 C registers.
template <int kHeadDim>
__device__ __forceinline__ void PromptScores(
    const PromptShared<kHeadDim>& block, int buffer, int warp_row,
    float (&score)[PromptShape<kHeadDim>::kRowTiles][8][4]) {
  using Shape = PromptShape<kHeadDim>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int turn = lane % 8;  // row % 8 of every row this lane points at
  // Chunk 2 s + i of a row is at its chunk i ^ turn, with 2 s flipped.
  const uint32_t q_at =
      Opaque(SharedOffset(&block.q[warp_row + lane % 16][(lane / 16) ^ turn]));
  const uint32_t key_at = Opaque(SharedOffset(
      &block.keys[buffer][lane / 16 * 8 + turn][(lane / 8 % 2) ^ turn]));
#pragma unroll
  for (int s = 0; s < kHeadDim / 16; ++s) {
    uint32_t a[Shape::kRowTiles][4];
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
      LoadMatrices(a[t], (q_at ^ (s * 32)) + t * 16 * Shape::kChunks * 16);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t b[4];
      LoadMatrices(b, (key_at ^ (s * 32)) + n * 16 * Shape::kChunks * 16);
#pragma unroll
      for (int t = 0; t < Shape::kRowTiles; ++t) {
        Mma(score[t][2 * n], a[t], b[0], b[1]);
        Mma(score[t][2 * n + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// Scores become weights, and the state is scaled to the new largest score. A
// row that sees no key of the tile keeps its state bit for bit, also that of
// before its first key.
template <int kHeadDim, bool kWindow>
__device__ __forceinline__ void PromptWeigh(
    float (&score)[PromptShape<kHeadDim>::kRowTiles][8][4], float scale_log2,
    PromptState<kHeadDim>& state) {
#pragma unroll
  for (int i = 0; i < 2 * PromptShape<kHeadDim>::kRowTiles; ++i) {
    const int t = i / 2;
    const int h = i % 2 * 2;
    float best = fmaxf(score[t][0][h], score[t][0][h + 1]);
#pragma unroll
    for (int n = 1; n < 8; ++n) {
      best = fmaxf(best, fmaxf(score[t][n][h], score[t][n][h + 1]));
    }
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2));
    best = fmaxf(best, state.largest[i]);
    const float origin = kWindow && best == -kInfinity ? 0.0f : best;
    const float factor = Exp2((state.largest[i] - origin) * scale_log2);
    state.largest[i] = best;
    const float shift = origin * scale_log2;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = h; e < h + 2; ++e) {
        score[t][n][e] = Exp2(fmaf(score[t][n][e], scale_log2, -shift));
        sum += score[t][n][e];
      }
    }
    state.sum[i] = fmaf(state.sum[i], factor, sum);
#pragma unroll
    for (int u = 0; u < kHeadDim / 8; ++u) {
      state.out[t][u][h] *= factor;
      state.out[t][u][h + 1] *= factor;
    }
  }
}

template <int kHeadDim>
__device__ __forceinline__ void PromptValues(
    const PromptShared<kHeadDim>& block, int buffer,
    const float (&weight)[PromptShape<kHeadDim>::kRowTiles][8][4],
    PromptState<kHeadDim>& state) {
  using Shape = PromptShape<kHeadDim>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int turn = lane % 8;
  const uint32_t value_at = Opaque(SharedOffset(
      &block.values[buffer][lane / 16 * 8 + turn][(lane / 8 % 2) ^ turn]));
#pragma unroll
  for (int s = 0; s < 4; ++s) {  // 16 tokens
    uint32_t a[Shape::kRowTiles][4];
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
      const float(&low)[4] = weight[t][2 * s];
      const float(&high)[4] = weight[t][2 * s + 1];
      a[t][0] = PackBf16(low[0], low[1]);
      a[t][1] = PackBf16(low[2], low[3]);
      a[t][2] = PackBf16(high[0], high[1]);
      a[t][3] = PackBf16(high[2], high[3]);
    }
#pragma unroll
    for (int u = 0; u < kHeadDim / 16; ++u) {
      uint32_t b[4];
      LoadMatrices(b, (value_at ^ (s * 32)) + u * 16 * (Shape::kKeys / 8) * 16);
#pragma unroll
      for (int t = 0; t < Shape::kRowTiles; ++t) {
        Mma(state.out[t][2 * u], a[t], b[0], b[1]);
        Mma(state.out[t][2 * u + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// Hides keys after each row's own position, and those before its window.
template <int kRowTiles, bool kWindow>
__device__ __forceinline__ void PromptMask(const KvPages& pages,
                                           int first_position, int first_key,
                                           float (&score)[kRowTiles][8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = first_position + 16 * t + lane / 4 + i / 2 * 8;
        const int key = first_key + 8 * n + lane % 4 * 2 + i % 2;
        if (key > position || IsPast<kWindow>(pages, key, position)) {
          score[t][n][i] = -kInfinity;
        }
      }
    }
  }
}

template <int kHeadDim>
__device__ __forceinline__ void PromptStore(
    const PromptWork& work, const PromptPlace& place, int warp_row, int head,
    const PromptState<kHeadDim>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 2 * PromptShape<kHeadDim>::kRowTiles; ++i) {
    float sum = state.sum[i];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    const int row = warp_row + i / 2 * 16 + i % 2 * 8 + lane / 4;
    if (row >= place.rows) continue;
    uint16_t* to = work.out + (place.first_row + row) * work.out_stride +
                   head * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int u = 0; u < kHeadDim / 8; ++u) {
      const float(&out)[4] = state.out[i / 2][u];
      *reinterpret_cast<uint32_t*>(to + u * 8) =
          PackBf16(out[i % 2 * 2] / sum, out[i % 2 * 2 + 1] / sum);
    }
  }
}

template <int kHeadDim, bool kWindow>
__global__ void __launch_bounds__(PromptShape<kHeadDim>::kThreads,
                                  PromptShape<kHeadDim>::kBlocksPerProcessor)
    PromptKernel(PromptWork work) {
  using Shape = PromptShape<kHeadDim>;
  extern __shared__ __align__(1024) char shared[];
  auto& block = *reinterpret_cast<PromptShared<kHeadDim>*>(shared);
  EnterKernel();
  const uint4 tile = Load16(work.tiles + blockIdx.y);
  const int head = static_cast<int>(blockIdx.x);
  PromptPlace place;
  place.first_row = static_cast<int>(tile.x);
  place.rows = static_cast<int>(tile.y);
  place.first_position = static_cast<int>(tile.z);
  if (place.rows <= 0) return;
  place.last = place.first_position + place.rows - 1;
  place.table =
      work.pages.page_table + static_cast<int>(tile.w) * work.pages.page_stride;
  place.block_at = head / work.group * kPageTokens * kHeadDim * 2;

  const int first_tile =
      kWindow ? work.pages.FirstSeen(place.first_position) / Shape::kKeys : 0;
  const int tiles = place.last / Shape::kKeys + 1;
  const int warp_row =
      static_cast<int>(threadIdx.x) / kWarp * 16 * Shape::kRowTiles;
  const int warp_position = place.first_position + warp_row;
  // The last key any row of this warp sees; none if it has no rows.
  const int warp_last =
      warp_row < place.rows
          ? min(warp_position + 16 * Shape::kRowTiles - 1, place.last)
          : -1;
  int page_id = LoadPageId(place, first_tile);
  CopyQueries<kHeadDim>(work, place, head, block);
  CopyTile<kHeadDim, kWindow>(work, place, first_tile, page_id, block);
  CommitCopies();
  page_id = LoadPageId(place, first_tile + 1);

  PromptState<kHeadDim> state = {};
#pragma unroll
  for (float& largest : state.largest) {
    largest = -kInfinity;
  }
  for (int j = first_tile; j < tiles; ++j) {
    AwaitCopies();
    __syncthreads();
    if (j + 1 < tiles) {
      CopyTile<kHeadDim, kWindow>(work, place, j + 1, page_id, block);
      CommitCopies();
      page_id = LoadPageId(place, j + 2);
    }
    const int key = j * Shape::kKeys;
    const int next = key + Shape::kKeys;
    if (key > warp_last ||
        IsPast<kWindow>(work.pages, next - 1, warp_position)) {
      continue;
    }
    float score[Shape::kRowTiles][8][4] = {};
    PromptScores<kHeadDim>(block, j % 2, warp_row, score);
    if (next > warp_position ||
        IsPast<kWindow>(work.pages, key,
                        warp_position + 16 * Shape::kRowTiles - 1)) {
      PromptMask<Shape::kRowTiles, kWindow>(work.pages, warp_position, key,
                                            score);
    }
    PromptWeigh<kHeadDim, kWindow>(score, work.scale_log2, state);
    PromptValues<kHeadDim>(block, j % 2, score, state);
  }
  if (warp_last >= 0) {
    PromptStore<kHeadDim>(work, place, warp_row, head, state);
  }
}

}  // namespace baton::cuda
