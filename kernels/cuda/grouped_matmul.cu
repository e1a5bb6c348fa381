// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "kernels/cuda/grouped_kernel.cuh"
#include "kernels/cuda/grouped_matmul.h"
#include "kernels/cuda/tensor_map.h"

namespace baton::cuda {
namespace {

constexpr int64_t kAlign = 128;

int64_t Padded(int64_t bytes) { return CeilDiv(bytes, kAlign) * kAlign; }
int64_t RowElements(int64_t k) { return CeilDiv(k, 8) * 8; }

// Rows of a part: the fewest tokens that one kernel takes, since an expert has
// at most one slot of each token.
int PartRows(int64_t tokens) {
  if (tokens <= 8) return 8;
  return tokens <= 16 ? 16 : 32;
}
int64_t MaxParts(int64_t slots, int64_t experts, int part_rows) {
  return std::min(slots, experts + slots / part_rows);
}

// Pieces of the scratch, in turn.
struct Scratch {
  char* next;
  template <typename T>
  T* Take(int64_t count) {
    auto* piece = reinterpret_cast<T*>(next);
    next += Padded(count * static_cast<int64_t>(sizeof(T)));
    return piece;
  }
};

template <int kTokenTiles>
cudaError_t LaunchParts(const GroupedWeights& weights, const GroupedPlan& plan,
                        const void* sorted, int64_t slots, int64_t max_parts,
                        const SkinnySink& sink, cudaStream_t stream) {
  using Tile = SkinnyTile<1, 1, kTokenTiles, 8>;
  constexpr int kSharedBytes = 227 * 1024;
  const auto shared_of = [](int stages) {
    return SkinnySharedBytes(8, stages, Tile::kStageBytes);
  };
  // Two blocks fit on a multiprocessor.
  const int stages = std::max((kSharedBytes / 2 - 1024) / shared_of(1),
                              static_cast<int>(Tile::kMinStages));
  const SkinnyWork work = {
      .m = static_cast<int>(slots),
      .n = static_cast<int>(weights.n),
      .k = static_cast<int>(weights.k),
      .leaf_shift = std::countr_zero(static_cast<unsigned>(weights.leaves)),
      .block_shift = 0,
      .slots = stages,
      .sink = sink};
  CUtensorMap x_map;
  const cudaError_t error =
      EncodeMap(sorted, slots, weights.k, RowElements(weights.k), Tile::kTokens,
                kSkinnyGroup, &x_map);
  if (error != cudaSuccess) return error;
  const dim3 grid(Blocks(max_parts), Blocks(CeilDiv(weights.n, Tile::kRows)));
  return Launch(&GroupedKernel<kTokenTiles>, grid, Tile::kThreads,
                static_cast<size_t>(shared_of(stages)), stream, weights.maps,
                plan, x_map, work);
}

cudaError_t LaunchPlain(const GroupedWeights& weights, const GroupedArgs& args,
                        cudaStream_t stream) {
  constexpr int64_t kMaxGridY = 65535;
  const dim3 grid(Blocks(CeilDiv(weights.n, kGroupedPlainWarps)),
                  Blocks(std::min(args.tokens * args.top, kMaxGridY)));
  return Launch(&GroupedPlainKernel, grid, 32 * kGroupedPlainWarps, 0, stream,
                weights, args);
}

bool FitTogether(const GroupedWeights& weights, const GroupedArgs& args) {
  const int64_t slots = args.tokens * args.top;
  constexpr int64_t kMaxSlots = 1 << 24;
  return weights.experts > 0 && weights.experts <= kMaxExperts &&
         args.top > 0 && slots <= kMaxSlots && args.ldx >= weights.k &&
         args.ldo >= weights.n &&
         (args.rows == args.tokens || args.rows == slots);
}

}  // namespace

int64_t GroupedScratchBytes(int64_t slots, int64_t k) {
  return Padded(slots * RowElements(k) * 2) +
         Padded(static_cast<int64_t>(sizeof(int32_t))) +
         Padded(slots * static_cast<int64_t>(sizeof(int32_t))) +
         Padded(slots * static_cast<int64_t>(sizeof(GroupedPart)));
}

cudaError_t GroupedMatmul(const GroupedWeights& weights,
                          const GroupedArgs& args, cudaStream_t stream) {
  if (!FitTogether(weights, args)) return cudaErrorInvalidValue;
  const int64_t slots = args.tokens * args.top;
  if (slots == 0 || weights.n == 0) return cudaSuccess;
  if (weights.plain || args.ldx % 8 != 0 || !IsAligned(args.x, 16)) {
    return LaunchPlain(weights, args, stream);
  }
  Scratch scratch{static_cast<char*>(args.scratch)};
  const int64_t ld = RowElements(weights.k);
  auto* sorted = scratch.Take<uint16_t>(slots * ld);
  const GroupedPlan plan = {.part_count = scratch.Take<int32_t>(1),
                            .parts = scratch.Take<GroupedPart>(slots),
                            .slots = scratch.Take<int32_t>(slots)};
  const int part_rows = PartRows(args.tokens);
  cudaError_t error =
      Launch(&SortSlotsKernel, dim3(1), kSortThreads, 0, stream, args, plan,
             static_cast<int>(weights.experts), part_rows);
  if (error != cudaSuccess) return error;
  error = Launch(&GatherRowsKernel, dim3(Blocks(slots)), kGatherThreads, 0,
                 stream, args, plan, sorted, weights.k, ld);
  if (error != cudaSuccess) return error;
  const int64_t parts = MaxParts(slots, weights.experts, part_rows);
  const SkinnySink sink = {.out = args.out,
                           .ldo = args.ldo,
                           .out_type = SkinnyOut::kBf16,
                           .activation = SkinnyActivation::kNone,
                           .xielu = {}};
  switch (part_rows) {
    case 8:
      return LaunchParts<1>(weights, plan, sorted, slots, parts, sink, stream);
    case 16:
      return LaunchParts<2>(weights, plan, sorted, slots, parts, sink, stream);
    default:
      return LaunchParts<4>(weights, plan, sorted, slots, parts, sink, stream);
  }
}

}  // namespace baton::cuda
