// SPDX-License-Identifier: Apache-2.0
// Grouped products of a matrix whose k two ranks may share: one rank alone has
// the bits of the sum of both.
#pragma once

#include "tests/device/check_experts.cuh"

namespace baton::check {

using GroupedRecipe = cudaError_t (*)(const cuda::GroupedWeights&,
                                      const cuda::GroupedArgs&, cudaStream_t);
enum class GroupedPath { kCopies, kPlain };

// Columns [first, first + count) of rows of k.
inline std::vector<Bf16> ColumnsOf(const std::vector<Bf16>& rows, int64_t k,
                                   int64_t first, int64_t count) {
  std::vector<Bf16> columns;
  for (auto row = rows.begin(); row != rows.end(); row += k) {
    columns.insert(columns.end(), row + first, row + first + count);
  }
  return columns;
}

// [slots, n] of w [experts * n, k] and x [rows, k].
template <typename T>
std::vector<T> MultiplyGrouped(GroupedRecipe recipe, const GroupedCase& c,
                               const std::vector<Bf16>& w,
                               const std::vector<Bf16>& x, GroupedPath path) {
  const Device<Bf16> dw(w), dx(x);
  const ExpertsOnDevice on_device(dw.data(), c.experts, c.n, c.k, c.k,
                                  c.halves);
  cuda::GroupedWeights weights = on_device.weights();
  weights.plain |= path == GroupedPath::kPlain;
  const Device<int32_t> experts(ChooseExperts(c));
  const Device<T> out(c.slots() * c.n);
  const Device<char> plan(cuda::GroupedPlanBytes(c.slots()));
  const Device<char> scratch(
      std::max(cuda::GroupedScratchBytes(c.slots(), c.k),
               cuda::GroupedPromptScratchBytes(weights)));
  CUDA_OK(
      recipe(weights,
             {dx.data(), c.rows(), c.k, experts.data(), c.tokens, c.top, c.top,
              out.data(), c.n, kOutOf<T>, plan.data(), scratch.data()},
             nullptr));
  const std::vector<T> got = out.Download();
  Expect(out.GuardsHold() && plan.GuardsHold() && scratch.GuardsHold(),
         NameOf("guards of", c));
  return got;
}

// The products of two ranks, each with its half of k, add up to the bits of one
// that has both.
inline void CheckGroupedHalves(GroupedRecipe recipe, GroupedCase c,
                               GroupedPath path = GroupedPath::kCopies) {
  c.halves = 2;
  const std::vector<Bf16> w = RandomBf16(c.experts * c.n * c.k, 1);
  const std::vector<Bf16> x = RandomBf16(c.rows() * c.k, 2);
  const std::vector<float> sums = MultiplyGrouped<float>(recipe, c, w, x, path);
  const std::vector<Bf16> rounded =
      MultiplyGrouped<Bf16>(recipe, c, w, x, path);
  GroupedCase half = c;
  half.k = c.k / 2;
  half.halves = 1;
  std::vector<float> parts[2];
  for (int rank = 0; rank < 2; ++rank) {
    parts[rank] = MultiplyGrouped<float>(
        recipe, half, ColumnsOf(w, c.k, rank * half.k, half.k),
        ColumnsOf(x, c.k, rank * half.k, half.k), path);
  }
  const std::vector<int32_t> experts = ChooseExperts(c);
  bool same = true;
  for (int64_t i = 0; i < c.slots() * c.n; ++i) {
    if (experts[i / c.n] < 0) continue;
    const float sum = parts[0][i] + parts[1][i];
    same &= std::memcmp(&sum, &sums[i], sizeof(sum)) == 0 &&
            rounded[i] == ToBf16(sum);
  }
  const char* what = recipe == &cuda::GroupedPromptMatmul ? "prompt of ranks"
                     : path == GroupedPath::kPlain        ? "plain of ranks"
                                                          : "grouped of ranks";
  Expect(same, NameOf(what, c));
}

inline void CheckExpertsByHalves() {
  for (const int64_t half : {8, 24, 32, 48, 64, 96, 128, 200, 520}) {
    for (const int64_t tokens : {1, 2, 9, 17, 70}) {
      const GroupedCase c = {8, tokens, 2, 200, 2 * half, true};
      CheckGroupedHalves(&cuda::GroupedMatmul, c);
      CheckGroupedHalves(&cuda::GroupedPromptMatmul, c);
    }
    CheckGroupedHalves(&cuda::GroupedMatmul, {4, 9, 2, 50, 2 * half, false},
                       GroupedPath::kPlain);
    // Of all sizes of tiles: two and a half, rows of several parts.
    CheckGroupedHalves(&cuda::GroupedPromptMatmul,
                       {3, 500, 1, 648, 2 * half, false});
    // As the row alone.
    for (const int64_t tokens : {1, 33}) {
      CheckGroupedCase<Bf16>({8, tokens, 2, 200, 2 * half, true, 2});
      CheckGroupedCase<float>({8, tokens, 2, 200, 2 * half, false, 2});
    }
  }
}

}  // namespace baton::check
