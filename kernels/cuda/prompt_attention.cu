// SPDX-License-Identifier: Apache-2.0
#include <numbers>

#include "kernels/cuda/plain_attention.cuh"
#include "kernels/cuda/prompt_attention.h"
#include "kernels/cuda/prompt_kernel.cuh"

namespace baton::cuda {
namespace {

constexpr int64_t kMaxTiles = 65535;

template <int kHeadDim>
cudaError_t LaunchPrompt(const PromptWork& work, dim3 grid,
                         cudaStream_t stream) {
  return Launch(work.pages.window > 0 ? &PromptKernel<kHeadDim, true>
                                      : &PromptKernel<kHeadDim, false>,
                grid, PromptShape<kHeadDim>::kThreads,
                sizeof(PromptShared<kHeadDim>), stream, work);
}

cudaError_t LaunchTensor(const PromptWork& work, dim3 grid,
                         cudaStream_t stream) {
  switch (work.pages.head_dim) {
    case 64:
      return LaunchPrompt<64>(work, grid, stream);
    case 128:
      return LaunchPrompt<128>(work, grid, stream);
    default:
      return LaunchPrompt<256>(work, grid, stream);
  }
}

cudaError_t LaunchPlain(const PromptWork& work, int64_t num_tiles,
                        int64_t q_heads, cudaStream_t stream) {
  const PlainAttentionWork plain = {
      .q = work.q,
      .q_stride = work.q_stride,
      .out = work.out,
      .out_stride = work.out_stride,
      .group = work.group,
      .positions = nullptr,
      .row_sequence = nullptr,
      .tiles = work.tiles,
      .pages = work.pages,
      .scale_log2 = work.scale_log2,
  };
  const dim3 grid(Blocks(num_tiles * kPromptTileRows), Blocks(q_heads));
  return Launch(&PlainAttentionKernel, grid, kPlainThreads, 0, stream, plain);
}

bool SuitsTensorCores(const PromptAttentionArgs& args) {
  const int64_t head_dim = args.pages.head_dim;
  return (head_dim == 64 || head_dim == 128 || head_dim == 256) &&
         IsAligned(args.q, 16) && args.q_stride % 8 == 0 &&
         IsAligned(args.out, 4) && args.out_stride % 2 == 0 &&
         IsAligned(args.pages.pool, 16) && args.pages.page_bytes % 16 == 0;
}

}  // namespace

cudaError_t PromptAttention(const PromptAttentionArgs& args,
                            cudaStream_t stream) {
  const int64_t head_dim = args.pages.head_dim;
  if (head_dim <= 0 || head_dim % 2 != 0 || head_dim > kPlainMaxHeadDim ||
      args.pages.kv_heads <= 0 || args.q_heads % args.pages.kv_heads != 0 ||
      args.num_tiles > kMaxTiles || !IsAligned(args.tiles, 16) ||
      !(args.scale > 0)) {
    return cudaErrorInvalidValue;
  }
  if (args.num_tiles == 0) return cudaSuccess;
  const PromptWork work = {
      .q = static_cast<const uint16_t*>(args.q),
      .q_stride = args.q_stride,
      .out = static_cast<uint16_t*>(args.out),
      .out_stride = args.out_stride,
      .tiles = args.tiles,
      .pages = args.pages,
      .group = static_cast<int>(args.q_heads / args.pages.kv_heads),
      .scale_log2 = static_cast<float>(static_cast<double>(args.scale) *
                                       std::numbers::log2e_v<double>),
  };
  if (!SuitsTensorCores(args)) {
    return LaunchPlain(work, args.num_tiles, args.q_heads, stream);
  }
  return LaunchTensor(work, dim3(Blocks(args.q_heads), Blocks(args.num_tiles)),
                      stream);
}

}  // namespace baton::cuda
