// SPDX-License-Identifier: Apache-2.0
// y = x W^T for 1 to 64 rows of x: the recipe of generated tokens.
//
// bf16 operands, fp32 accumulation, one rounding at the end. K is cut into
// SkinnyLeaves() leaves of whole groups of 64; inside a leaf products
// accumulate in order, and leaves are combined by a balanced binary tree. The
// bits of an output element depend on the shape of the weight, the alignment of
// x, its row of x and its row of W alone: never on the number of rows, the
// tuning or the grid.
//
// `halves` is that of PackedMatrix. Where it is 2 no group has k of both
// halves, so that either half of the tree is what a rank with half of K has.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops/xielu.h"

namespace baton::cuda {

inline constexpr int64_t kSkinnyMaxRows = 64;
inline constexpr int64_t kSkinnyGroup = 64;  // k of one step
inline constexpr int kSkinnyMaxLeaves = 8;

[[nodiscard]] constexpr int64_t SkinnyGroups(int64_t k, int halves) {
  const int64_t parts = halves == 2 ? 2 : 1;
  return parts * ((k / parts + kSkinnyGroup - 1) / kSkinnyGroup);
}
// Leaf l of L covers groups [l * G / L, (l + 1) * G / L). One of two halves has
// half the leaves of both.
[[nodiscard]] constexpr int SkinnyLeaves(int64_t k, int halves) {
  const int64_t groups = SkinnyGroups(k, halves) * (halves == 1 ? 2 : 1);
  int leaves = kSkinnyMaxLeaves;
  while (leaves > 1 && leaves > groups) leaves /= 2;
  return halves == 1 ? leaves / 2 : leaves;
}
// Whether the last group of each half is filled up with zeros: boxes are of one
// half then.
[[nodiscard]] constexpr bool SkinnyHalvesApart(int64_t k, int halves) {
  return halves == 2 && k / 2 % kSkinnyGroup != 0;
}

inline constexpr int kMaxSharedBytes = 227 * 1024;  // of a block, on sm_90

// Whether one row has a kernel of its own: whole groups, and x leaves room for
// at least two stages. Each team has room for x of a leaf; of one half there
// may be twice as many teams as leaves.
[[nodiscard]] constexpr bool SuitsRow(int64_t k, int halves) {
  const int64_t x_bytes = halves == 1 ? 4 * k : 2 * k;
  return k % kSkinnyGroup == 0 && x_bytes <= kMaxSharedBytes / 2 &&
         !SkinnyHalvesApart(k, halves);
}

// A weight [n, k] as the kernels see it. Made once, when it is loaded; valid
// on the device that was current then, while `w` is.
struct SkinnyWeight {
  CUtensorMap map;  // EncodeGroups, of 32 rows; unused by the plain kernel
  // Of an even n, boxes of 16 rows of the first half of W and the same 16 of
  // the second.
  CUtensorMap pairs;
  CUtensorMap narrow_map, narrow_pairs;  // the same with half the rows
  const void* w;                         // bf16 [n, k], row stride ldw
  int64_t n, k, ldw;
  int halves;  // 0; 1 or 2 where two ranks may share k
  int leaves;  // SkinnyLeaves()
  bool plain;  // before sm_90, or k or w do not suit the copy engine
};

// invalidValue: sizes that make no sense. Other codes: of the driver.
[[nodiscard]] cudaError_t MakeSkinnyWeight(const void* w, int64_t n, int64_t k,
                                           int64_t ldw, SkinnyWeight* out,
                                           int halves = 0);

// The map of rows of k in boxes of box_rows x 64 k: of halves (tensor_map.h)
// where these are apart.
[[nodiscard]] cudaError_t EncodeGroups(const void* rows, int64_t count,
                                       int64_t k, int halves, int64_t ld,
                                       int box_rows, CUtensorMap* map);

enum class SkinnyOut : int { kBf16, kF32 };

// Applied to y rounded to bf16, as a kernel behind this one would; bf16 out.
enum class SkinnyActivation : int {
  kNone,
  kRelu2,  // max(y, 0)^2
  kXielu,  // kernels/ops/activation.h
  // Of gates, which the first half of W gives, and what the second half gives:
  // out is [m, n / 2].
  kSiluMul,
  kGeluMul,
};
[[nodiscard]] constexpr bool IsGated(SkinnyActivation activation) {
  return activation == SkinnyActivation::kSiluMul ||
         activation == SkinnyActivation::kGeluMul;
}
// How the work is laid out; 0 leaves it to the shape. Changes no bit. For
// benchmarks and tests.
struct SkinnyTuning {
  int teams = 0;      // of warps in a block
  int row_tiles = 0;  // 16-row tiles of W of one block; 1: where SuitsRow
  int slots = 0;      // stages in flight per team
  int blocks = 0;     // of a cluster, which has 4 or 8 teams
};

struct SkinnyArgs {
  // bf16 [m, k]. Unless 16-byte aligned, with rows a multiple of 8 elements
  // apart, it does not suit the copy engine: the plain kernel takes it.
  const void* x;
  int64_t m;    // 0 to 64
  int64_t ldx;  // elements
  void* out;    // [m, n], gated [m, n / 2]; must not alias x
  int64_t ldo;  // elements
  SkinnyOut out_type = SkinnyOut::kBf16;
  SkinnyActivation activation = SkinnyActivation::kNone;
  XieluConstants xielu = {};
  SkinnyTuning tuning = {};
};

// Whether rows of x (see SkinnyArgs) suit the copy engine.
[[nodiscard]] inline bool SuitsCopies(const void* x, int64_t ldx) {
  return reinterpret_cast<uintptr_t>(x) % 16 == 0 && ldx % 8 == 0;
}
// Whether the weight does, too.
[[nodiscard]] inline bool SuitsCopies(const SkinnyWeight& weight, const void* x,
                                      int64_t ldx) {
  return !weight.plain && SuitsCopies(x, ldx);
}
// Whether a gated activation may be asked for, too.
[[nodiscard]] inline bool TakesGates(const SkinnyWeight& weight, const void* x,
                                     int64_t ldx) {
  return SuitsCopies(weight, x, ldx) && weight.n % 2 == 0 &&
         !SkinnyHalvesApart(weight.k, weight.halves);
}

// Submits to the stream, as a programmatic dependent of the kernel before it:
// the weight is fetched while that one still runs, x is not. invalidValue:
// arguments that do not fit together. May be captured.
[[nodiscard]] cudaError_t SkinnyMatmul(const SkinnyWeight& weight,
                                       const SkinnyArgs& args,
                                       cudaStream_t stream);

}  // namespace baton::cuda
