// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/head_kernel.cuh"
#include "kernels/cuda/head_matmul.h"

namespace baton::cuda {
namespace {

constexpr int64_t kMaxGrid = 65535;

using ManyHeadRows = HeadTile<4, 1, 2, 4, 4>;

// Blocks: columns, heads, rows.
template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    HeadKernel(HeadWeights weights, HeadMatmulArgs args) {
  extern __shared__ __align__(1024) char shared[];
  AllowNextGrid();
  HeadBlock<Tile>(weights, args,
                  {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                   static_cast<int>(blockIdx.z)},
                  shared);
}

template <typename Tile>
cudaError_t LaunchTiles(const HeadWeights& weights, const HeadMatmulArgs& args,
                        cudaStream_t stream) {
  const dim3 grid(Blocks(CeilDiv(weights.n, Tile::kColumns)),
                  Blocks(weights.heads),
                  Blocks(CeilDiv(args.rows, Tile::kRows)));
  return Launch(&HeadKernel<Tile>, grid, Tile::kThreads,
                HeadSharedBytes<Tile>(weights), stream, weights, args);
}

// A thread an output. Blocks: columns, heads, rows.
constexpr int kHeadPlainThreads = 64;

__global__ void __launch_bounds__(kHeadPlainThreads)
    HeadPlainKernel(HeadWeights weights, HeadMatmulArgs args) {
  EnterKernel();
  const int64_t head = blockIdx.y;
  const int64_t column =
      static_cast<int64_t>(blockIdx.x) * kHeadPlainThreads + threadIdx.x;
  if (column >= weights.n) return;
  const auto* w = static_cast<const uint16_t*>(weights.pointers[head]) +
                  column * weights.ldw;
  for (int64_t row = blockIdx.z; row < args.rows; row += gridDim.z) {
    const auto* x = static_cast<const uint16_t*>(args.x) + row * args.ldx +
                    head * args.head_stride;
    float sum = 0;
    for (int64_t k = 0; k < weights.k; ++k) {
      sum = __fmaf_rn(FromBf16(w[k]), FromBf16(Load2(x + k)), sum);
    }
    static_cast<uint16_t*>(
        args.out)[row * args.ldo + head * weights.n + column] = ToBf16(sum);
  }
}

}  // namespace

cudaError_t HeadMatmul(const HeadWeights& weights, const HeadMatmulArgs& args,
                       cudaStream_t stream) {
  if (weights.heads > kMaxGrid) return cudaErrorInvalidValue;
  if (args.rows == 0 || weights.heads == 0 || weights.n == 0) {
    return cudaSuccess;
  }
  constexpr int64_t kMaxRows = kMaxGrid * ManyHeadRows::kRows;
  if (!SuitsTensorCores(weights, args) || args.rows > kMaxRows) {
    const dim3 grid(Blocks(CeilDiv(weights.n, kHeadPlainThreads)),
                    Blocks(weights.heads),
                    Blocks(std::min(args.rows, kMaxGrid)));
    return Launch(&HeadPlainKernel, grid, kHeadPlainThreads, 0, stream, weights,
                  args);
  }
  if (args.rows <= FewHeadRows::kRows) {
    return LaunchTiles<FewHeadRows>(weights, args, stream);
  }
  if (args.rows <= SomeHeadRows::kRows) {
    return LaunchTiles<SomeHeadRows>(weights, args, stream);
  }
  return LaunchTiles<ManyHeadRows>(weights, args, stream);
}

}  // namespace baton::cuda
