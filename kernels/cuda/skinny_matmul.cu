// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/skinny_kernel.cuh"
#include "kernels/cuda/skinny_matmul.h"
#include "kernels/cuda/skinny_plain.cuh"
#include "kernels/cuda/skinny_row.cuh"
#include "kernels/cuda/tensor_map.h"

namespace baton::cuda {
namespace {

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max() / 2;

// One instantiation of the Hopper kernel.
struct Variant {
  void (*kernel)(CUtensorMap, CUtensorMap, SkinnyWork);
  int teams, row_tiles, tokens;
  int threads;
  int stage_bytes;
  int min_slots;

  [[nodiscard]] int SharedBytes(int slots) const {
    return SkinnySharedBytes(teams, slots, stage_bytes);
  }
};
template <int kTeams, int kRowParts, int kTokenParts, int kTokenTiles>
constexpr Variant VariantOf() {
  using Tile = SkinnyTile<kRowParts, kTokenParts, kTokenTiles, kTeams>;
  return {.kernel = &SkinnyKernel<kRowParts, kTokenParts, kTokenTiles, kTeams>,
          .teams = kTeams,
          .row_tiles = 2 * kRowParts,
          .tokens = Tile::kTokens,
          .threads = Tile::kThreads,
          .stage_bytes = Tile::kStageBytes,
          .min_slots = Tile::kMinStages};
}
// Those that take the same tuning follow each other, fewer tokens first.
const Variant kVariants[] = {
    VariantOf<8, 1, 1, 1>(), VariantOf<8, 1, 1, 2>(), VariantOf<8, 1, 1, 4>(),
    VariantOf<4, 1, 1, 1>(), VariantOf<4, 1, 1, 2>(), VariantOf<4, 1, 1, 4>(),
    VariantOf<4, 2, 1, 1>(), VariantOf<4, 2, 1, 2>(), VariantOf<4, 2, 1, 4>(),
    VariantOf<2, 2, 1, 1>(), VariantOf<2, 2, 1, 2>(), VariantOf<2, 2, 1, 4>(),
    VariantOf<2, 2, 2, 4>(), VariantOf<2, 4, 1, 1>(), VariantOf<2, 4, 1, 2>(),
    VariantOf<2, 4, 1, 4>(), VariantOf<1, 4, 2, 4>(),
};

const Variant* FindVariant(const SkinnyTuning& tuning, int64_t m) {
  for (const Variant& variant : kVariants) {
    if (variant.teams == tuning.teams &&
        variant.row_tiles == tuning.row_tiles && m <= variant.tokens) {
      return &variant;
    }
  }
  return nullptr;
}

constexpr int64_t kProcessors = 132;
// A K that is soon done; one that two blocks share; what is deeper.
constexpr int64_t kShallow = 2560;
constexpr int64_t kShared = 4096;
constexpr int64_t kDeep = 8192;
constexpr int64_t kFewBlocks = 32;
constexpr int64_t kManyBlocks = 1024;  // of a head

// The fastest over the shapes of the decoders on an H200 (tests/device). Many
// rows of W: small blocks, unless more tokens make reads of x count. Few: what
// fills the card once.
SkinnyTuning DefaultTuning(int64_t n, int64_t k, int64_t m, int leaves) {
  const int64_t blocks = (n + 31) / 32;  // of 32 rows
  if (leaves <= 4) {
    return m > 32 || blocks <= 2 * kProcessors
               ? SkinnyTuning{.teams = 2, .row_tiles = 4, .blocks = 2}
               : SkinnyTuning{.teams = 4, .row_tiles = 4, .blocks = 1};
  }
  if (m > 32) {
    if (blocks <= 100) return {.teams = 2, .row_tiles = 4, .blocks = 4};
    if (blocks <= kProcessors) {
      return {.teams = 2, .row_tiles = 4, .slots = 6, .blocks = 2};
    }
    return {.teams = 2, .row_tiles = 4, .blocks = 2};
  }
  if (m <= 8) {
    // As a layer's matmuls run, between norms and attention: small blocks leave
    // room for those of the launches behind, and few stages leave it for
    // attention's. So few rows of W that two blocks find one multiprocessor
    // each share a K that is worth it.
    SkinnyTuning tuning = {.teams = 4, .row_tiles = 2, .blocks = 1};
    if (blocks <= kFewBlocks ||
        (2 * blocks <= kProcessors && k >= kShared && k < kDeep)) {
      tuning.blocks = 2;
    }
    if (blocks > 2 * kProcessors) {
      tuning.slots = 4;
    } else if (blocks <= kProcessors && blocks > kFewBlocks) {
      tuning.slots = tuning.blocks == 2 ? 6 : k < kDeep ? 7 : 8;
    }
    return tuning;
  }
  if (blocks <= 100) return {.teams = 4, .row_tiles = 4, .blocks = 2};
  if (blocks <= kProcessors) return {.teams = 8, .row_tiles = 2, .blocks = 1};
  if (blocks <= 2 * kProcessors || m > 16) {
    return {.teams = 4, .row_tiles = 4, .blocks = 1};
  }
  return {.teams = 8, .row_tiles = 2, .slots = 3, .blocks = 1};
}

// Stages of a block: `most`, or where that is 0 so many that two blocks fit on
// a multiprocessor, if there are two. No more than a team has groups, so that
// other kernels find room.
int DefaultSlots(const Variant& variant, int64_t blocks, int64_t team_groups,
                 int64_t most) {
  const int limit =
      blocks > kProcessors ? kMaxSharedBytes / 2 - 1024 : kMaxSharedBytes;
  if (most == 0) most = limit / variant.SharedBytes(1);
  return std::max(static_cast<int>(std::min(most, team_groups)),
                  variant.min_slots);
}

// The kernel of one row with this blocking; null where there is none.
auto RowKernelOf(RowTile tile) -> decltype(&SkinnyRowKernel<8, 2>) {
  const bool wide = tile.tiles == 2;
  if (!wide && tile.tiles != 1) return nullptr;
  switch (tile.teams) {
    case 4:
      return wide ? &SkinnyRowKernel<4, 2> : &SkinnyRowKernel<4, 1>;
    case 8:
      return wide ? &SkinnyRowKernel<8, 2> : &SkinnyRowKernel<8, 1>;
    default:
      return nullptr;
  }
}

// Gives blocks of a kernel what a multiprocessor has as shared memory.
template <typename Kernel>
cudaError_t PreferShared(Kernel* kernel) {
  return cudaFuncSetAttribute(kernel,
                              cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

// Readies every variant for the current device. Its code was compiled empty
// where it was not compiled for sm_90: NotSupported.
cudaError_t PrepareVariants() {
  for (const Variant& variant : kVariants) {
    cudaFuncAttributes attributes = {};
    cudaError_t error = cudaFuncGetAttributes(&attributes, variant.kernel);
    if (error != cudaSuccess) return error;
    if (attributes.ptxVersion < 90) return cudaErrorNotSupported;
    error = PreferShared(variant.kernel);
    if (error != cudaSuccess) return error;
  }
  for (const RowTile tile : {RowTile{4, 1}, {4, 2}, {8, 1}, {8, 2}}) {
    const cudaError_t error = PreferShared(RowKernelOf(tile));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

bool FitTogether(const SkinnyWeight& weight, const SkinnyArgs& args) {
  if (args.m < 0 || args.m > kSkinnyMaxRows) return false;
  if (args.activation != SkinnyActivation::kNone &&
      args.out_type != SkinnyOut::kBf16) {
    return false;
  }
  const bool gated = IsGated(args.activation);
  if (gated && !TakesGates(weight, args.x, args.ldx)) return false;
  if (args.m == 0) return true;
  if (args.x == nullptr || args.out == nullptr) return false;
  const int64_t columns = gated ? weight.n / 2 : weight.n;
  return args.m == 1 || (args.ldx >= weight.k && args.ldo >= columns);
}

cudaError_t LaunchPlain(const SkinnyWeight& weight, const SkinnyArgs& args,
                        const SkinnySink& sink, cudaStream_t stream) {
  const SkinnyPlainWork work = {
      .x = static_cast<const __nv_bfloat16*>(args.x),
      .ldx = args.ldx,
      .w = static_cast<const __nv_bfloat16*>(weight.w),
      .ldw = weight.ldw,
      .m = args.m,
      .n = weight.n,
      .k = weight.k,
      .parts = weight.halves == 2 ? 2 : 1,
      .sink = sink};
  const auto blocks =
      static_cast<unsigned>((weight.n + kPlainWarps - 1) / kPlainWarps);
  SkinnyPlainKernel<<<blocks, 32 * kPlainWarps, 0, stream>>>(work);
  return cudaGetLastError();
}

// The fastest of one row, as a layer's products run, between norms and
// attention: blocks leave room beside them for those of the launches behind.
SkinnyTuning RowTuning(int64_t n, int64_t k) {
  const int64_t blocks = CeilDiv(n, kBoxRows);
  if (blocks <= kFewBlocks || (2 * blocks <= kProcessors && k >= kShared)) {
    return {.teams = 4, .row_tiles = 2, .slots = 6, .blocks = 2};
  }
  if (blocks <= kProcessors) {
    return {.teams = 8, .row_tiles = 2, .slots = k < kShared ? 4 : 5};
  }
  if (blocks > kManyBlocks) {
    return {.teams = 4, .row_tiles = 2, .slots = k < kShallow ? 4 : 6};
  }
  if (blocks > 2 * kProcessors) {
    return {.teams = 4, .row_tiles = 2, .slots = 5};
  }
  return k < kShallow ? SkinnyTuning{.teams = 8, .row_tiles = 2, .slots = 3}
                      : SkinnyTuning{.teams = 4, .row_tiles = 2, .slots = 4};
}

cudaError_t LaunchRow(const SkinnyWeight& weight, const SkinnyArgs& args,
                      const SkinnySink& sink, cudaStream_t stream) {
  const SkinnyTuning tuning =
      args.tuning.teams == 0 ? RowTuning(weight.n, weight.k) : args.tuning;
  const RowTile tile = {.teams = tuning.teams, .tiles = tuning.row_tiles};
  const int cluster = std::max(tuning.blocks, 1);
  const auto kernel = RowKernelOf(tile);
  if (kernel == nullptr ||
      (tile.teams * cluster != 4 && tile.teams * cluster != 8)) {
    return cudaErrorInvalidValue;
  }
  const RowWork work =
      RowWorkOf(weight, tile, cluster, tuning.slots, kMaxSharedBytes, sink);
  const int64_t blocks = CeilDiv(weight.n, tile.rows()) * cluster;
  const bool is_paired = IsGated(args.activation);
  const CUtensorMap& map =
      tile.tiles == 2 ? (is_paired ? weight.pairs : weight.map)
                      : (is_paired ? weight.narrow_pairs : weight.narrow_map);
  return LaunchClusters(
      kernel, dim3(static_cast<unsigned>(blocks)), cluster, tile.threads(),
      static_cast<size_t>(work.SharedBytes(tile)), stream, map, args.x, work);
}

cudaError_t LaunchHopper(const SkinnyWeight& weight, const SkinnyArgs& args,
                         const SkinnySink& sink, cudaStream_t stream) {
  const SkinnyTuning tuning =
      args.tuning.teams == 0
          ? DefaultTuning(weight.n, weight.k, args.m, weight.leaves)
          : args.tuning;
  const Variant* variant = FindVariant(tuning, args.m);
  if (variant == nullptr) return cudaErrorInvalidValue;
  const int cluster = std::max(tuning.blocks, 1);
  const int leaves_at_once = variant->teams * cluster;
  if (leaves_at_once != 4 && leaves_at_once != 8) {
    return cudaErrorInvalidValue;
  }
  const int rows = 16 * variant->row_tiles;
  const int64_t blocks = (weight.n + rows - 1) / rows * cluster;
  const int64_t groups = SkinnyGroups(weight.k, weight.halves);
  const int64_t team_groups =
      CeilDiv(groups, std::min(weight.leaves, leaves_at_once));
  const int slots =
      args.tuning.slots != 0
          ? args.tuning.slots
          : DefaultSlots(*variant, blocks, team_groups, tuning.slots);
  if (slots < variant->min_slots) return cudaErrorInvalidValue;
  const SkinnyWork work = {
      .m = static_cast<int>(args.m),
      .n = static_cast<int>(weight.n),
      .groups = static_cast<int>(groups),
      .half_groups = SkinnyHalvesApart(weight.k, weight.halves)
                         ? static_cast<int>(groups / 2)
                         : 0,
      .leaf_shift = std::countr_zero(static_cast<unsigned>(weight.leaves)),
      .block_shift = std::countr_zero(static_cast<unsigned>(cluster)),
      .slots = slots,
      .sink = sink};
  CUtensorMap x_map;
  const cudaError_t error =
      EncodeGroups(args.x, args.m, weight.k, weight.halves,
                   std::max(args.ldx, weight.k), variant->tokens, &x_map);
  if (error != cudaSuccess) return error;
  return LaunchClusters(
      variant->kernel, dim3(static_cast<unsigned>(blocks)), cluster,
      variant->threads, static_cast<size_t>(variant->SharedBytes(slots)),
      stream, IsGated(args.activation) ? weight.pairs : weight.map, x_map,
      work);
}

}  // namespace

cudaError_t EncodeGroups(const void* rows, int64_t count, int64_t k, int halves,
                         int64_t ld, int box_rows, CUtensorMap* map) {
  return SkinnyHalvesApart(k, halves)
             ? EncodeHalfMap(rows, count, k / 2, ld, box_rows, kSkinnyGroup,
                             map)
             : EncodeMap(rows, count, k, ld, box_rows, kSkinnyGroup, map);
}

cudaError_t MakeSkinnyWeight(const void* w, int64_t n, int64_t k, int64_t ldw,
                             SkinnyWeight* out, int halves) {
  if (n < 0 || k <= 0 || n > kMaxSize || k > kMaxSize || ldw < k ||
      (w == nullptr && n > 0) || (halves == 2 && k % 16 != 0)) {
    return cudaErrorInvalidValue;
  }
  *out = {};
  out->w = w;
  out->n = n;
  out->k = k;
  out->ldw = ldw;
  out->halves = halves;
  out->leaves = SkinnyLeaves(k, halves);
  out->plain = true;
  if (n == 0 || k % 8 != 0 || ldw % 8 != 0 || !IsAligned(w, 16)) {
    return cudaSuccess;
  }
  int device = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess || major < 9) return error;
  error = PrepareVariants();
  if (error == cudaErrorNotSupported) return cudaSuccess;
  if (error != cudaSuccess) return error;
  for (const auto& [rows, map, pairs] :
       {std::tuple{kBoxRows, &out->map, &out->pairs},
        std::tuple{kRowTile, &out->narrow_map, &out->narrow_pairs}}) {
    error = EncodeGroups(w, n, k, halves, ldw, rows, map);
    if (error != cudaSuccess) return error;
    if (n % 2 != 0) continue;
    error = EncodePairMap(w, n / 2, k, ldw, rows / 2, kSkinnyGroup, pairs);
    if (error != cudaSuccess) return error;
  }
  out->plain = false;
  return cudaSuccess;
}

cudaError_t SkinnyMatmul(const SkinnyWeight& weight, const SkinnyArgs& args,
                         cudaStream_t stream) {
  if (!FitTogether(weight, args)) return cudaErrorInvalidValue;
  if (args.m == 0 || weight.n == 0) return cudaSuccess;
  const SkinnySink sink = {.out = args.out,
                           .ldo = args.ldo,
                           .out_type = args.out_type,
                           .activation = args.activation,
                           .xielu = args.xielu};
  if (!SuitsCopies(weight, args.x, args.ldx)) {
    return LaunchPlain(weight, args, sink, stream);
  }
  const bool is_row = args.m == 1 && SuitsRow(weight.k, weight.halves) &&
                      (args.tuning.teams == 0 || args.tuning.row_tiles <= 2);
  return is_row ? LaunchRow(weight, args, sink, stream)
                : LaunchHopper(weight, args, sink, stream);
}

}  // namespace baton::cuda
