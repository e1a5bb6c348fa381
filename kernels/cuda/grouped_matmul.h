// SPDX-License-Identifier: Apache-2.0
// out[slot] = x[row of the slot] W^T with W of the slot's expert, which a
// kernel ahead may have just chosen: slots are sorted by expert on the device.
//
// GroupedMatmul is the recipe of generated rows. Every product has the bits
// that SkinnyMatmul gives it: rows of one expert are multiplied up to 32 at a
// time by its kernel. Where the copy engine does not suit, by a plain kernel of
// that one's order.
//
// GroupedPromptMatmul is the recipe of prompts: up to 128 rows of one expert
// are multiplied together. fp32 accumulation in ascending k, of two halves of k
// each for itself and the second added to the first; one rounding. The bits of
// a row follow from that row and its expert's matrix.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/skinny_matmul.h"

namespace baton::cuda {

inline constexpr int64_t kMaxExperts = 1024;

// The experts' matrices [n, k] as the kernels see them: arrays on the device.
struct GroupedWeights {
  const CUtensorMap* maps;      // [experts]; unused by the plain kernel
  const CUtensorMap* pairs;     // [experts]; of an even n (SkinnyWeight)
  const void* const* pointers;  // [experts], bf16, row stride ldw
  int64_t experts, n, k, ldw;
  int halves, leaves;  // as SkinnyWeight's
  bool plain;
};

// kDone: the plan is as a call of the same recipe, experts and tokens left it.
enum class GroupedSort : int { kNeeded, kDone };

struct GroupedArgs {
  const void* x;           // bf16 [rows, k]
  int64_t rows;            // slots, or slots / top
  int64_t ldx;             // elements
  const int32_t* experts;  // [tokens, top], row stride ld_experts; device
  int64_t tokens, top, ld_experts;
  void* out;  // [tokens * top, n], gated [tokens * top, n / 2]; not x
  int64_t ldo;
  SkinnyOut out_type;
  // Of GroupedPlanBytes, 128-byte aligned: how slots are sorted, where they
  // are.
  void* plan = nullptr;
  // Of GroupedScratchBytes, of prompts of GroupedPromptScratchBytes, 128-byte
  // aligned.
  void* scratch = nullptr;
  // None, or a gated one: where TakesGates and SuitsCopies say so. Not of
  // prompts.
  SkinnyActivation activation = SkinnyActivation::kNone;
  GroupedSort sort = GroupedSort::kNeeded;
};

[[nodiscard]] inline bool TakesGates(const GroupedWeights& weights) {
  return !weights.plain && weights.n % 2 == 0 &&
         !SkinnyHalvesApart(weights.k, weights.halves);
}

[[nodiscard]] int64_t GroupedScratchBytes(int64_t slots, int64_t k);
[[nodiscard]] int64_t GroupedPromptScratchBytes(const GroupedWeights& weights);
[[nodiscard]] int64_t GroupedPlanBytes(int64_t slots);

// Whether there is a recipe of prompts for these: by their shape and the
// device.
[[nodiscard]] inline bool TakesPrompts(const GroupedWeights& weights) {
  return !weights.plain && weights.n % 8 == 0;  // so is k
}

// Whether GroupedMatmul sorts slots, for which it needs the plan and the
// scratch. Else the plan stays as it was.
[[nodiscard]] inline bool SortsSlots(const GroupedWeights& weights,
                                     const GroupedArgs& args) {
  return !weights.plain && SuitsCopies(args.x, args.ldx) &&
         !(args.tokens == 1 && SuitsRow(weights.k, weights.halves));
}

// Zero tokens submit nothing. An expert that does not exist leaves the rows of
// its slots as they are. invalidValue: sizes that do not fit together. May be
// captured, and starts as a programmatic dependent.
[[nodiscard]] cudaError_t GroupedMatmul(const GroupedWeights& weights,
                                        const GroupedArgs& args,
                                        cudaStream_t stream);
// GroupedMatmul of one token and SkinnyMatmul of one row, neither of which
// reads what the other writes, in one launch and with the same bits.
// notSupported: there are more tokens, or these do not suit the kernel of one
// row.
[[nodiscard]] cudaError_t GroupedAndSharedMatmul(const GroupedWeights& weights,
                                                 const GroupedArgs& args,
                                                 const SkinnyWeight& shared,
                                                 const SkinnyArgs& shared_args,
                                                 cudaStream_t stream);
// As GroupedMatmul; invalidValue also: TakesPrompts says no, or rows of x or
// out are not aligned to 16 bytes.
[[nodiscard]] cudaError_t GroupedPromptMatmul(const GroupedWeights& weights,
                                              const GroupedArgs& args,
                                              cudaStream_t stream);

// Whether sizes fit together, of either recipe.
[[nodiscard]] inline bool FitTogether(const GroupedWeights& weights,
                                      const GroupedArgs& args) {
  const int64_t slots = args.tokens * args.top;
  constexpr int64_t kMaxSlots = 1 << 24;
  return weights.experts > 0 && weights.experts <= kMaxExperts &&
         args.top > 0 && slots <= kMaxSlots && args.ldx >= weights.k &&
         args.ldo >= (IsGated(args.activation) ? weights.n / 2 : weights.n) &&
         (args.rows == args.tokens || args.rows == slots) &&
         (args.activation == SkinnyActivation::kNone ||
          args.out_type == SkinnyOut::kBf16);
}

}  // namespace baton::cuda
