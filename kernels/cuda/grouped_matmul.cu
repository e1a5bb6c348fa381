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

// Stages in flight of a team of blocks of `Tile`: two blocks fit on a
// multiprocessor.
template <typename Tile>
constexpr int Stages() {
  constexpr int kOne = SkinnySharedBytes(8, 1, Tile::kStageBytes);
  return std::max((kMaxSharedBytes / 2 - 1024) / kOne,
                  static_cast<int>(Tile::kMinStages));
}
template <typename Tile>
constexpr size_t SharedBytes() {
  return static_cast<size_t>(
      SkinnySharedBytes(8, Stages<Tile>(), Tile::kStageBytes));
}

template <typename Args>  // of experts' matrices or of one
SkinnySink SinkOf(const Args& args) {
  return {.out = args.out,
          .ldo = args.ldo,
          .out_type = args.out_type,
          .activation = args.activation,
          .xielu = {}};
}
// What blocks of `Tile` are told.
template <typename Tile>
SkinnyWork WorkOf(const GroupedWeights& weights, const GroupedArgs& args,
                  int64_t rows) {
  const auto groups = static_cast<int>(SkinnyGroups(weights.k, weights.halves));
  return {.m = static_cast<int>(rows),
          .n = static_cast<int>(weights.n),
          .groups = groups,
          .half_groups =
              SkinnyHalvesApart(weights.k, weights.halves) ? groups / 2 : 0,
          .leaf_shift = std::countr_zero(static_cast<unsigned>(weights.leaves)),
          .block_shift = 0,
          .slots = Stages<Tile>(),
          .sink = SinkOf(args)};
}
const CUtensorMap* MapsOf(const GroupedWeights& weights,
                          SkinnyActivation activation) {
  return IsGated(activation) ? weights.pairs : weights.maps;
}
// Blocks that share out the rows of W.
int64_t RowBlocks(int64_t n) { return CeilDiv(n, kTokenTile.rows()); }

template <int kTokenTiles>
cudaError_t LaunchParts(const GroupedWeights& weights, const GroupedArgs& args,
                        const GroupedPlan& plan, const void* sorted,
                        int64_t max_parts, cudaStream_t stream) {
  using Tile = SkinnyTile<1, 1, kTokenTiles, 8>;
  const int64_t slots = args.tokens * args.top;
  CUtensorMap x_map;
  const cudaError_t error =
      EncodeGroups(sorted, slots, weights.k, weights.halves,
                   RowElements(weights.k), Tile::kTokens, &x_map);
  if (error != cudaSuccess) return error;
  const dim3 grid(Blocks(max_parts), Blocks(CeilDiv(weights.n, Tile::kRows)));
  return Launch(&GroupedKernel<kTokenTiles>, grid, Tile::kThreads,
                SharedBytes<Tile>(), stream, MapsOf(weights, args.activation),
                plan, x_map, WorkOf<Tile>(weights, args, slots));
}

// What blocks of one token are told, of experts' matrices or of one.
template <typename Weights, typename Args>
RowWork TokenWorkOf(const Weights& weights, const Args& args) {
  return RowWorkOf(weights, kTokenTile, 1, kTokenSlots, kTokenRoom,
                   SinkOf(args));
}

cudaError_t LaunchToken(const GroupedWeights& weights, const GroupedArgs& args,
                        cudaStream_t stream) {
  const RowWork work = TokenWorkOf(weights, args);
  const dim3 grid(Blocks(args.top), Blocks(RowBlocks(weights.n)));
  return Launch(&GroupedTokenKernel, grid, kTokenTile.threads(),
                static_cast<size_t>(work.SharedBytes(kTokenTile)), stream,
                MapsOf(weights, args.activation), args,
                static_cast<int>(weights.experts), work);
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
  if (!SortsSlots(weights, args)) return LaunchToken(weights, args, stream);
  const int64_t ld = RowElements(weights.k);
  auto* sorted = static_cast<uint16_t*>(args.scratch);
  const GroupedPlan plan = GroupedScratch(args.plan).TakePlan(slots);
  const int part_rows = PartRows(args.tokens);
  cudaError_t error = SortSlots(args, weights.experts, part_rows, plan, stream);
  if (error != cudaSuccess) return error;
  error = Launch(&GatherRowsKernel, dim3(Blocks(slots)), kGatherThreads, 0,
                 stream, args, plan, sorted, weights.k, ld,
                 static_cast<int>(slots / args.rows));
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

cudaError_t GroupedAndSharedMatmul(const GroupedWeights& weights,
                                   const GroupedArgs& args,
                                   const SkinnyWeight& shared,
                                   const SkinnyArgs& shared_args,
                                   cudaStream_t stream) {
  const auto takes = [](const auto& of, bool takes_gates) {
    return of.activation == SkinnyActivation::kNone ||
           (IsGated(of.activation) && takes_gates &&
            of.out_type == SkinnyOut::kBf16);
  };
  if (args.tokens != 1 || shared_args.m != 1 || weights.plain ||
      weights.n == 0 || shared.n == 0 || !FitTogether(weights, args) ||
      !SuitsRow(weights.k, weights.halves) ||
      !SuitsRow(shared.k, shared.halves) || !SuitsCopies(args.x, args.ldx) ||
      !SuitsCopies(shared, shared_args.x, shared_args.ldx) ||
      !takes(args, TakesGates(weights)) ||
      !takes(shared_args, TakesGates(shared, shared_args.x, shared_args.ldx))) {
    return cudaErrorNotSupported;
  }
  const RowWork work = TokenWorkOf(weights, args);
  const auto expert_blocks = static_cast<int>(RowBlocks(weights.n));
  const SharedProduct beside = {
      .map = IsGated(shared_args.activation) ? shared.pairs : shared.map,
      .x = shared_args.x,
      .work = TokenWorkOf(shared, shared_args),
      .blocks = static_cast<int>(RowBlocks(shared.n))};
  const dim3 grid(Blocks(args.top + 1),
                  Blocks(std::max(expert_blocks, beside.blocks)));
  const int bytes = std::max(work.SharedBytes(kTokenTile),
                             beside.work.SharedBytes(kTokenTile));
  return Launch(&GroupedAndSharedKernel, grid, kTokenTile.threads(),
                static_cast<size_t>(bytes), stream,
                MapsOf(weights, args.activation), args,
                static_cast<int>(weights.experts), expert_blocks, work, beside);
}

}  // namespace baton::cuda
