// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/amx_matmul.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/matmul_shapes.h"
#include "kernels/cpu/scratch.h"
#include "runtime/base/thread_pool.h"

namespace baton::cpu {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kChunkRows = 256;  // rows that share a pass over a block

// Rows of one tile, [k/32][rows][32], zeros behind column k.
void CopyTile(ConstView x, bf16* to) {
  const int64_t k = x.dim(1);
  const int64_t rows = x.dim(0);
  for (int64_t row = 0; row < rows; ++row) {
    const bf16* from = x.Row<bf16>(row);
    bf16* place = to + row * kPackDepth;
    int64_t i = 0;
    for (; i + kPackDepth <= k; i += kPackDepth) {
      std::memcpy(place, from + i, kPackDepth * sizeof(bf16));
      place += rows * kPackDepth;
    }
    if (i < k) {
      std::fill_n(place, kPackDepth, bf16());
      std::memcpy(place, from + i, static_cast<size_t>(k - i) * sizeof(bf16));
    }
  }
}

const bf16* CopyTiles(ConstView x, bf16* tiles, ThreadPool& pool) {
  const int64_t depth = PadTo(x.dim(1), kPackDepth);
  const int64_t count = (x.dim(0) + kTileRows - 1) / kTileRows;
  pool.ParallelFor(count, 4, [&](int64_t tile, int64_t end, int) {
    for (; tile < end; ++tile) {
      const int64_t begin = tile * kTileRows;
      CopyTile(x.Rows(begin, std::min(begin + kTileRows, x.dim(0))),
               tiles + begin * depth);
    }
  });
  return tiles;
}

}  // namespace

void MatmulAmx(const Matmul::Args& args, ThreadPool& pool) {
  thread_local Scratch tiles;
  const int64_t rows = args.x.dim(0);
  const int64_t depth = PadTo(args.weight.k, kPackDepth);
  const bf16* x =
      CopyTiles(args.x, tiles.Get<bf16>(PadTo(rows, kTileRows) * depth), pool);

  const int64_t chunks = (rows + kChunkRows - 1) / kChunkRows;
  const int64_t chunk_rows = PadTo((rows + chunks - 1) / chunks, 32);
  const int64_t blocks = PadTo(args.weight.n, kPackRows) / kPackRows;
  pool.ParallelFor(blocks * chunks, 1, [&](int64_t u, int64_t end, int) {
    thread_local Scratch scratch;
    const int64_t sums = AmxScratch(chunk_rows);
    float* memory = scratch.Get<float>(sums + chunk_rows * kPackRows);
    for (; u < end; ++u) {
      const int64_t block = u / chunks;
      const int64_t first = u % chunks * chunk_rows;
      const int64_t count = std::min(chunk_rows, rows - first);
      if (count <= 0) continue;
      float* out = memory + sums;
      AmxMatmul({.x = x + first * depth,
                 .rows = count,
                 .block = PackedBlock<bf16>(args.weight, block),
                 .k = depth,
                 .leaves = args.weight.leaves,
                 .scratch = memory,
                 .out = out});
      StoreTile(kAvx512BF16, out, args.out, first, count, block);
    }
  });
}

}  // namespace baton::cpu
