// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/fetch_block.h"

namespace baton::cuda {
namespace {

constexpr int kFetchThreads = 256;
constexpr int64_t kWordBytes = sizeof(uint4);

__global__ void __launch_bounds__(kFetchThreads)
    FetchKernel(const uint4* ring, uint32_t blocks, uint4* to, int64_t words,
                uint32_t* turns) {
  AwaitPreviousGrids();
  const uint32_t turn = Load4(turns);
  const uint4* from = ring + (turn & (blocks - 1)) * words;
  const int64_t step = int64_t{kFetchThreads} * gridDim.x;
  for (int64_t i = int64_t{kFetchThreads} * blockIdx.x + threadIdx.x; i < words;
       i += step) {
    to[i] = __ldcv(from + i);
  }
  // The next grid is let in when this one's blocks have ended: what they wrote
  // is in L2 by then, for kernels that do not wait for it.
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    if (atomicAdd(turns + 1, 1u) != gridDim.x - 1) return;
    turns[1] = 0;
  }
  turns[0] = turn + 1;  // all have read it
}

}  // namespace

cudaError_t FetchToDevice(const FetchArgs& args, cudaStream_t stream) {
  if (args.bytes <= 0 || args.bytes % kWordBytes != 0 || args.blocks <= 0 ||
      !std::has_single_bit(static_cast<uint64_t>(args.blocks)) ||
      !IsAligned(args.ring, kWordBytes) || !IsAligned(args.block, kWordBytes)) {
    return cudaErrorInvalidValue;
  }
  const int64_t words = args.bytes / kWordBytes;
  const int64_t grid =
      std::min<int64_t>(CeilDiv(words, kFetchThreads), Multiprocessors());
  return Launch(&FetchKernel, dim3(Blocks(grid)), kFetchThreads, 0, stream,
                static_cast<const uint4*>(args.ring),
                static_cast<uint32_t>(args.blocks),
                static_cast<uint4*>(args.block), words, args.turns);
}

}  // namespace baton::cuda
