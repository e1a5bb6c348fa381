// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "kernels/cuda/grouped_kernel.cuh"
#include "kernels/cuda/grouped_matmul.h"
#include "kernels/cuda/grouped_sort.h"

namespace baton::cuda {
namespace {

int64_t RowElements(int64_t k) { return CeilDiv(k, 8) * 8; }

// Rows of a part: the fewest tokens that one kernel takes, since an expert has
// at most one slot of each token.
int PartRows(int64_t tokens) {
  if (tokens <= 8) return 8;
  return tokens <= 16 ? 16 : 32;
}

// How a launch of blocks of `Tile` is laid out: two blocks fit on a
// multiprocessor.
template <typename Tile>
struct GroupedLayout {
  explicit GroupedLayout(const GroupedWeights& weights, const GroupedArgs& args,
                         int64_t rows) {
    constexpr int kSharedBytes = 227 * 1024;
    const int one = SkinnySharedBytes(8, 1, Tile::kStageBytes);
    const int stages = std::max((kSharedBytes / 2 - 1024) / one,
                                static_cast<int>(Tile::kMinStages));
    bytes = static_cast<size_t>(stages) * static_cast<size_t>(one);
    const auto groups =
        static_cast<int>(SkinnyGroups(weights.k, weights.halves));
    work = {
        .m = static_cast<int>(rows),
        .n = static_cast<int>(weights.n),
        .groups = groups,
        .half_groups =
            SkinnyHalvesApart(weights.k, weights.halves) ? groups / 2 : 0,
        .leaf_shift = std::countr_zero(static_cast<unsigned>(weights.leaves)),
        .block_shift = 0,
        .slots = stages,
        .sink = {.out = args.out,
                 .ldo = args.ldo,
                 .out_type = args.out_type,
                 .activation = args.activation,
                 .xielu = {}}};
    maps = IsGated(args.activation) ? weights.pairs : weights.maps;
  }

  SkinnyWork work;
  const CUtensorMap* maps;
  size_t bytes;  // of shared memory
};

template <int kTokenTiles>
cudaError_t LaunchParts(const GroupedWeights& weights, const GroupedArgs& args,
                        const GroupedPlan& plan, const void* sorted,
                        int64_t max_parts, cudaStream_t stream) {
  using Tile = SkinnyTile<1, 1, kTokenTiles, 8>;
  const int64_t slots = args.tokens * args.top;
  const GroupedLayout<Tile> layout(weights, args, slots);
  CUtensorMap x_map;
  const cudaError_t error =
      EncodeGroups(sorted, slots, weights.k, weights.halves,
                   RowElements(weights.k), Tile::kTokens, &x_map);
  if (error != cudaSuccess) return error;
  const dim3 grid(Blocks(max_parts), Blocks(CeilDiv(weights.n, Tile::kRows)));
  return Launch(&GroupedKernel<kTokenTiles>, grid, Tile::kThreads, layout.bytes,
                stream, layout.maps, plan, x_map, layout.work);
}

cudaError_t LaunchToken(const GroupedWeights& weights, const GroupedArgs& args,
                        cudaStream_t stream) {
  using Tile = SkinnyTile<1, 1, 1, 8>;
  const GroupedLayout<Tile> layout(weights, args, args.rows);
  CUtensorMap x_map;
  const cudaError_t error =
      EncodeGroups(args.x, args.rows, weights.k, weights.halves, args.ldx,
                   Tile::kTokens, &x_map);
  if (error != cudaSuccess) return error;
  const dim3 grid(Blocks(args.top), Blocks(CeilDiv(weights.n, Tile::kRows)));
  return Launch(&GroupedTokenKernel, grid, Tile::kThreads, layout.bytes, stream,
                layout.maps, args, static_cast<int>(weights.experts), x_map,
                layout.work);
}

cudaError_t LaunchPlain(const GroupedWeights& weights, const GroupedArgs& args,
                        cudaStream_t stream) {
  constexpr int64_t kMaxGridY = 65535;
  const dim3 grid(Blocks(CeilDiv(weights.n, kGroupedPlainWarps)),
                  Blocks(std::min(args.tokens * args.top, kMaxGridY)));
  return Launch(&GroupedPlainKernel, grid, 32 * kGroupedPlainWarps, 0, stream,
                weights, args);
}

}  // namespace

int64_t GroupedScratchBytes(int64_t slots, int64_t k) {
  return GroupedScratch::Bytes<uint16_t>(slots * RowElements(k));
}

cudaError_t GroupedMatmul(const GroupedWeights& weights,
                          const GroupedArgs& args, cudaStream_t stream) {
  if (!FitTogether(weights, args)) return cudaErrorInvalidValue;
  const int64_t slots = args.tokens * args.top;
  if (slots == 0 || weights.n == 0) return cudaSuccess;
  if (weights.plain || !SuitsCopies(args.x, args.ldx)) {
    return IsGated(args.activation) ? cudaErrorInvalidValue
                                    : LaunchPlain(weights, args, stream);
  }
  if (args.tokens == 1) return LaunchToken(weights, args, stream);
  const int64_t ld = RowElements(weights.k);
  auto* sorted = static_cast<uint16_t*>(args.scratch);
  const GroupedPlan plan = GroupedScratch(args.plan).TakePlan(slots);
  const int part_rows = PartRows(args.tokens);
  cudaError_t error = SortSlots(args, weights.experts, part_rows, plan, stream);
  if (error != cudaSuccess) return error;
  error = Launch(&GatherRowsKernel, dim3(Blocks(slots)), kGatherThreads, 0,
                 stream, args, plan, sorted, weights.k, ld);
  if (error != cudaSuccess) return error;
  const int64_t parts = MaxParts(slots, weights.experts, part_rows);
  switch (part_rows) {
    case 8:
      return LaunchParts<1>(weights, args, plan, sorted, parts, stream);
    case 16:
      return LaunchParts<2>(weights, args, plan, sorted, parts, stream);
    default:
      return LaunchParts<4>(weights, args, plan, sorted, parts, stream);
  }
}

}  // namespace baton::cuda
