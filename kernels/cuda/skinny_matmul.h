// SPDX-License-Identifier: Apache-2.0
// y = x W^T for 1 to 64 rows of x: the recipe of generated tokens.
//
// bf16 operands, fp32 accumulation, one rounding at the end. K is cut into
// SkinnyLeaves(k) leaves of whole groups of 64; inside a leaf products
// accumulate in order, and leaves are combined by a balanced binary tree. The
// bits of an output element depend on the shape of the weight, the alignment of
// x, its row of x and its row of W alone: never on the number of rows, the
// tuning or the grid.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops/xielu.h"

namespace baton::cuda {

inline constexpr int64_t kSkinnyMaxRows = 64;
inline constexpr int64_t kSkinnyGroup = 64;  // k of one step
inline constexpr int kSkinnyMaxLeaves = 8;

// Leaf l of L covers groups [l * G / L, (l + 1) * G / L), G = ceil(k / 64).
[[nodiscard]] constexpr int SkinnyLeaves(int64_t k) {
  const int64_t groups = (k + kSkinnyGroup - 1) / kSkinnyGroup;
  int leaves = kSkinnyMaxLeaves;
  while (leaves > 1 && leaves > groups) leaves /= 2;
  return leaves;
}

// Leaves of one of the halves of a matrix whose columns two ranks share: the
// same ones, so that a sum of both ranks' outputs goes on with the tree.
[[nodiscard]] constexpr int SkinnyHalfLeaves(int64_t k) {
  return SkinnyLeaves(2 * k) / 2;
}

// A weight [n, k] as the kernels see it. Made once, when it is loaded; valid
// on the device that was current then, while `w` is.
struct SkinnyWeight {
  CUtensorMap map;  // boxes of 32 rows x 64 k; unused by the plain kernel
  // Of an even n, boxes of 16 rows of the first half of W and the same 16 of
  // the second.
  CUtensorMap pairs;
  const void* w;  // bf16 [n, k], row stride ldw
  int64_t n, k, ldw;
  int leaves;  // SkinnyLeaves(k), or of a half SkinnyHalfLeaves(k)
  bool plain;  // before sm_90, or k or w do not suit the copy engine
};

// invalidValue: sizes that make no sense. Other codes: of the driver.
[[nodiscard]] cudaError_t MakeSkinnyWeight(const void* w, int64_t n, int64_t k,
                                           int64_t ldw, SkinnyWeight* out);

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
  int row_tiles = 0;  // 16-row tiles of W of one block
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
  return SuitsCopies(weight, x, ldx) && weight.n % 2 == 0;
}

// Submits to the stream, as a programmatic dependent of the kernel before it:
// the weight is fetched while that one still runs, x is not. invalidValue:
// arguments that do not fit together. May be captured.
[[nodiscard]] cudaError_t SkinnyMatmul(const SkinnyWeight& weight,
                                       const SkinnyArgs& args,
                                       cudaStream_t stream);

}  // namespace baton::cuda
