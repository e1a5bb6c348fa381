// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/conv_and_heads.h"
#include "kernels/cuda/conv_kernel.cuh"
#include "kernels/cuda/head_kernel.cuh"

namespace baton::cuda {
namespace {

constexpr int kFusedTaps = 4;

// Blocks, those of the convolution first: its way to a sequence's rows is the
// longer one.
struct ConvAndHeadsGrid {
  int conv_columns, conv_blocks;
  int head_columns, heads;
};

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    ConvAndHeadsKernel(ShortConvArgs conv, HeadWeights weights,
                       HeadMatmulArgs heads, ConvAndHeadsGrid grid) {
  extern __shared__ __align__(1024) char shared[];
  AllowNextGrid();
  int block = static_cast<int>(blockIdx.x);
  if (block < grid.conv_blocks) {
    ConvolveBlock<true, kFusedTaps>(conv, block % grid.conv_columns,
                                    block / grid.conv_columns);
    return;
  }
  block -= grid.conv_blocks;
  HeadBlock<Tile>(
      weights, heads,
      {block % grid.head_columns, block / grid.head_columns % grid.heads,
       block / grid.head_columns / grid.heads},
      shared);
}

template <typename Tile>
cudaError_t LaunchBoth(const ShortConvArgs& conv, const HeadWeights& weights,
                       const HeadMatmulArgs& heads, cudaStream_t stream) {
  const int64_t conv_columns = ConvColumns(conv, Tile::kThreads);
  const int64_t conv_blocks = conv_columns * ConvParts(conv);
  const int64_t head_columns = CeilDiv(weights.n, Tile::kColumns);
  const int64_t head_blocks =
      head_columns * weights.heads * CeilDiv(heads.rows, Tile::kRows);
  const ConvAndHeadsGrid grid = {
      static_cast<int>(conv_columns), static_cast<int>(conv_blocks),
      static_cast<int>(head_columns), static_cast<int>(weights.heads)};
  return Launch(&ConvAndHeadsKernel<Tile>,
                dim3(Blocks(conv_blocks + head_blocks)), Tile::kThreads,
                HeadSharedBytes<Tile>(weights), stream, conv, weights, heads,
                grid);
}

}  // namespace

cudaError_t ShortConvAndHeadMatmul(const ShortConvArgs& conv,
                                   const HeadWeights& weights,
                                   const HeadMatmulArgs& heads,
                                   cudaStream_t stream) {
  if (conv.taps < 1 || conv.taps > kFusedTaps || conv.channels == 0 ||
      weights.n == 0 || conv.rows != heads.rows || heads.rows == 0 ||
      heads.rows > SomeHeadRows::kRows || !SuitsConvVectors(conv) ||
      !SuitsTensorCores(weights, heads)) {
    return cudaErrorNotSupported;
  }
  return heads.rows <= FewHeadRows::kRows
             ? LaunchBoth<FewHeadRows>(conv, weights, heads, stream)
             : LaunchBoth<SomeHeadRows>(conv, weights, heads, stream);
}

}  // namespace baton::cuda
