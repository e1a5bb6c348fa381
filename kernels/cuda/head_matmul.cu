// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/head_kernel.cuh"
#include "kernels/cuda/head_matmul.h"

namespace baton::cuda {
namespace {

constexpr int64_t kMaxGrid = 65535;

template <int kRowWarps, int kColumnWarps, int kRowTiles, int kColumnTiles,
          int kStages>
cudaError_t LaunchTiles(const HeadWeights& weights, const HeadMatmulArgs& args,
                        cudaStream_t stream) {
  using Tile =
      HeadTile<kRowWarps, kColumnWarps, kRowTiles, kColumnTiles, kStages>;
  const int64_t stages =
      std::clamp<int64_t>(CeilDiv(weights.k, Tile::kDepth), 1, kStages);
  const dim3 grid(Blocks(CeilDiv(weights.n, Tile::kColumns)),
                  Blocks(weights.heads),
                  Blocks(CeilDiv(args.rows, Tile::kRows)));
  return Launch(
      &HeadKernel<kRowWarps, kColumnWarps, kRowTiles, kColumnTiles, kStages>,
      grid, Tile::kThreads, stages * sizeof(HeadStage<Tile>), stream, weights,
      args);
}

bool SuitsTensorCores(const HeadWeights& weights, const HeadMatmulArgs& args) {
  return weights.k % 8 == 0 && weights.ldw % 8 == 0 && weights.n % 2 == 0 &&
         IsAligned(args.x, 16) && args.ldx % 8 == 0 &&
         args.head_stride % 8 == 0 && IsAligned(args.out, 4) &&
         args.ldo % 2 == 0 && args.rows <= kMaxGrid * 128;
}

}  // namespace

cudaError_t HeadMatmul(const HeadWeights& weights, const HeadMatmulArgs& args,
                       cudaStream_t stream) {
  if (weights.heads > kMaxGrid) return cudaErrorInvalidValue;
  if (args.rows == 0 || weights.heads == 0 || weights.n == 0) {
    return cudaSuccess;
  }
  if (!SuitsTensorCores(weights, args)) {
    const dim3 grid(Blocks(CeilDiv(weights.n, kHeadPlainThreads)),
                    Blocks(weights.heads),
                    Blocks(std::min(args.rows, kMaxGrid)));
    return Launch(&HeadPlainKernel, grid, kHeadPlainThreads, 0, stream, weights,
                  args);
  }
  // Few rows: what is read is W, so that small blocks share it out, and have
  // all of a k of 512 under way before they wait for x.
  if (args.rows <= 16) return LaunchTiles<1, 2, 1, 1, 9>(weights, args, stream);
  if (args.rows <= 64) return LaunchTiles<2, 2, 2, 1, 4>(weights, args, stream);
  return LaunchTiles<4, 1, 2, 4, 4>(weights, args, stream);
}

}  // namespace baton::cuda
