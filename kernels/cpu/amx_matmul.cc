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

// Rows of one tile, [k/32][rows][32], zeros where packed rows have them.
void CopyTile(ConstView x, const PackedRuns& runs, bf16* to) {
  const int64_t rows = x.dim(0);
  for (int64_t row = 0; row < rows; ++row) {
    const bf16* from = x.Row<bf16>(row);
    bf16* place = to + row * kPackDepth;
    for (int64_t run = 0; run < runs.count; ++run) {
      int64_t i = 0;
      for (; i + kPackDepth <= runs.size; i += kPackDepth) {
        std::memcpy(place, from + i, kPackDepth * sizeof(bf16));
        place += rows * kPackDepth;
      }
      if (i < runs.size) {
        std::fill_n(place, kPackDepth, bf16());
        std::copy(from + i, from + runs.size, place);
        place += rows * kPackDepth;
      }
      from += runs.size;
    }
  }
}

const bf16* CopyTiles(ConstView x, const PackedRuns& runs, bf16* tiles,
                      ThreadPool& pool) {
  const int64_t depth = runs.count * runs.depth;
  const int64_t count = (x.dim(0) + kTileRows - 1) / kTileRows;
  pool.ParallelFor(count, 4, [&](int64_t tile, int64_t end, int) {
    for (; tile < end; ++tile) {
      const int64_t begin = tile * kTileRows;
      CopyTile(x.Rows(begin, std::min(begin + kTileRows, x.dim(0))), runs,
               tiles + begin * depth);
    }
  });
  return tiles;
}

}  // namespace

void MatmulAmx(const Matmul::Args& args, ThreadPool& pool) {
  thread_local Scratch tiles;
  const int64_t rows = args.x.dim(0);
  const PackedRuns runs = PackedRunsOf(args.weight.k, args.weight.leaves);
  const int64_t depth = runs.count * runs.depth;
  const bf16* x = CopyTiles(
      args.x, runs, tiles.Get<bf16>(PadTo(rows, kTileRows) * depth), pool);

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
