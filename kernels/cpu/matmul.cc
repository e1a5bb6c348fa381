// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/cpu/amx_matmul.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_shapes.h"
#include "runtime/base/thread_pool.h"

namespace baton::cpu {
namespace {

// Rows that share one pass over a block of weights; a multiple of the register
// blocks (6 and 4 rows) of the inner loops.
constexpr int64_t kChunkRows = 96;

// x itself, or a copy in `padded` with zeros where packed rows have them.
template <typename T>
ConstView PaddedInput(ConstView x, int leaves, std::vector<T>& padded) {
  const PackedRuns runs = PackedRunsOf(x.dim(1), leaves);
  const int64_t depth = runs.count * runs.depth;
  if (x.dim(1) == depth) return x;
  padded.assign(static_cast<size_t>(x.dim(0) * depth), T());
  for (int64_t row = 0; row < x.dim(0); ++row) {
    for (int64_t run = 0; run < runs.count; ++run) {
      std::copy_n(x.Row<T>(row) + run * runs.size, runs.size,
                  padded.data() + row * depth + run * runs.depth);
    }
  }
  return {reinterpret_cast<const std::byte*>(padded.data()),
          kDTypeOf<T>,
          {x.dim(0), depth}};
}

template <typename T>
void MatmulBlocks(const Matmul::Args& args, const InnerLoops<T>& loops,
                  ThreadPool& pool) {
  thread_local std::vector<T> padded;
  const ConstView x = PaddedInput<T>(args.x, args.weight.leaves, padded);
  const int64_t rows = x.dim(0);
  const int64_t chunks = (rows + kChunkRows - 1) / kChunkRows;
  const int64_t blocks = PadTo(args.weight.n, kPackRows) / kPackRows;
  pool.ParallelFor(blocks * chunks, 1, [&](int64_t unit, int64_t end, int) {
    thread_local std::vector<float> tile;
    for (; unit < end; ++unit) {
      const int64_t block = unit / chunks;
      const int64_t first = unit % chunks * kChunkRows;
      const int64_t count = std::min(kChunkRows, rows - first);
      tile.resize(static_cast<size_t>(count * kPackRows));
      loops.matmul({.x = x.Row<T>(first),
                    .x_stride = x.row_stride(),
                    .rows = count,
                    .block = PackedBlock<T>(args.weight, block),
                    .k = x.dim(1),
                    .leaves = args.weight.leaves,
                    .out = tile.data(),
                    .fetches_pages = FetchesPages()});
      StoreTile(loops, tile.data(), args.out, first, count, block);
    }
  });
}

template <typename T, CpuIsa kIsa>
Status Activate(const Matmul::Args& args, Stream& stream) {
  const MatmulActivation& a = args.activation;
  switch (a.kind) {
    case MatmulActivation::Kind::kNone:
      return OkStatus();
    case MatmulActivation::Kind::kRelu2:
      return Relu2Cpu<T, kIsa>({.x = args.out, .out = args.out}, stream);
    case MatmulActivation::Kind::kXielu:
      return XieluCpu<T, kIsa>({.x = args.out,
                                .out = args.out,
                                .alpha_p = a.alpha_p,
                                .alpha_n = a.alpha_n,
                                .beta = a.beta,
                                .eps = a.eps},
                               stream);
    case MatmulActivation::Kind::kSiluMul:
      return SiluMulCpu<T, kIsa>({.gate_up = args.product, .out = args.out},
                                 stream);
    case MatmulActivation::Kind::kGeluMul:
      return GeluMulCpu<T, kIsa>({.gate_up = args.product, .out = args.out},
                                 stream);
  }
  return Internal("matmul: no such activation");
}

}  // namespace

template <typename T, CpuIsa kIsa>
Status MatmulCpu(const Matmul::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR(CheckMatmul<T>(args));
  if (args.x.dim(0) == 0 || args.weight.n == 0) return OkStatus();
  Matmul::Args product = args;
  if (args.activation.IsGated()) product.out = args.product;
  if constexpr (kIsa == CpuIsa::kAmx && std::is_same_v<T, bf16>) {
    MatmulAmx(product, PoolOf(stream));
  } else {
    MatmulBlocks(product, LoopsOf<T>(kIsa), PoolOf(stream));
  }
  return Activate<T, kIsa>(args, stream);
}

BATON_INSTANTIATE_CPU(MatmulCpu, Matmul);

}  // namespace baton::cpu
