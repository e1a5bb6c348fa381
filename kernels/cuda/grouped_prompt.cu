// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "kernels/cuda/grouped_matmul.h"
#include "kernels/cuda/grouped_prompt_kernel.cuh"
#include "kernels/cuda/grouped_sort.h"

namespace baton::cuda {
namespace {

bool Suits(const GroupedWeights& weights, const GroupedArgs& args) {
  constexpr int64_t kMaxChunks = std::numeric_limits<int32_t>::max();
  return FitTogether(weights, args) && TakesPrompts(weights) &&
         args.ldx % 8 == 0 && args.rows * (args.ldx / 8) <= kMaxChunks &&
         IsAligned(args.x, 16) && args.ldo % 8 == 0 &&
         IsAligned(args.out, 16) &&
         (weights.halves != 2 || args.scratch != nullptr);
}

}  // namespace

int64_t GroupedPromptScratchBytes(const GroupedWeights& weights) {
  return weights.halves == 2 ? Multiprocessors() * GroupedParked::kBlockBytes
                             : 0;
}

cudaError_t GroupedPromptMatmul(const GroupedWeights& weights,
                                const GroupedArgs& args, cudaStream_t stream) {
  using Tile = GroupedPromptTile;
  if (!Suits(weights, args)) return cudaErrorInvalidValue;
  const int64_t slots = args.tokens * args.top;
  if (slots == 0 || weights.n == 0) return cudaSuccess;
  const GroupedPlan plan = GroupedScratch(args.plan).TakePlan(slots);
  const cudaError_t error =
      SortSlots(args, weights.experts, Tile::kRows, plan, stream);
  if (error != cudaSuccess) return error;
  const int parts = weights.halves == 2 ? 2 : 1;
  const GroupedPromptWork work = {
      .maps = weights.maps,
      .plan = plan,
      .x = static_cast<const uint16_t*>(args.x),
      .row_chunks = static_cast<int>(args.ldx / 8),
      .row_slots = static_cast<int>(slots / args.rows),
      .out = args.out,
      .ldo = args.ldo,
      .out_type = args.out_type,
      .n = static_cast<int>(weights.n),
      .depth = static_cast<int>(weights.k / parts),
      .apart = SkinnyHalvesApart(weights.k, weights.halves),
      .parked = static_cast<float4*>(args.scratch)};
  const int64_t most = MaxParts(slots, weights.experts, Tile::kRows) *
                       CeilDiv(weights.n, Tile::kColumns);
  const dim3 grid(Blocks(std::min<int64_t>(most, Multiprocessors())));
  return parts == 2 ? Launch(&GroupedPromptKernel<2>, grid, Tile::kThreads,
                             sizeof(GroupedHalvesShared), stream, work)
                    : Launch(&GroupedPromptKernel<1>, grid, Tile::kThreads,
                             sizeof(GroupedPromptShared), stream, work);
}

}  // namespace baton::cuda
