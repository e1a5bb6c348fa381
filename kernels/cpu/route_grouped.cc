// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "kernels/ops/moe.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {
namespace {

// The first index of the largest value among those not yet taken; of NaNs
// alone, the first. There is one to take.
int64_t TakeBest(const float* values, std::vector<bool>& taken) {
  int64_t best = -1;
  for (int64_t i = 0; i < static_cast<int64_t>(taken.size()); ++i) {
    if (taken[static_cast<size_t>(i)]) continue;
    if (best < 0 || values[i] > values[best]) best = i;
  }
  taken[static_cast<size_t>(best)] = true;
  return best;
}

// The sum of the two largest of n > 1 values.
float SumOfTwo(const float* values, int64_t n) {
  int64_t first = 0;
  for (int64_t i = 1; i < n; ++i) {
    if (values[i] > values[first]) first = i;
  }
  int64_t second = first == 0 ? 1 : 0;
  for (int64_t i = 0; i < n; ++i) {
    if (i != first && values[i] > values[second]) second = i;
  }
  return values[first] + values[second];
}

// Marks every expert outside of the best groups as taken.
void TakeOtherGroups(const float* choice, int64_t groups, int64_t top_groups,
                     std::vector<bool>& taken) {
  taken.assign(taken.size(), groups > 1);
  if (groups == 1) return;
  const int64_t size = static_cast<int64_t>(taken.size()) / groups;
  thread_local std::vector<float> scores;
  thread_local std::vector<bool> chosen;
  scores.clear();
  for (int64_t g = 0; g < groups; ++g) {
    scores.push_back(SumOfTwo(choice + g * size, size));
  }
  chosen.assign(static_cast<size_t>(groups), false);
  for (int64_t i = 0; i < top_groups; ++i) {
    const int64_t g = TakeBest(scores.data(), chosen);
    std::fill_n(taken.begin() + g * size, size, false);
  }
}

void RouteRow(const RouteGrouped::Args& args, int64_t row) {
  const int64_t n = args.logits.dim(1);
  const int64_t top = args.experts.dim(1);
  const float* logits = args.logits.Row<float>(row);
  const float* bias = args.bias.Row<float>(0);
  thread_local std::vector<float> scores, choice;
  thread_local std::vector<bool> taken;
  scores.resize(static_cast<size_t>(n));
  choice.resize(static_cast<size_t>(n));
  taken.resize(static_cast<size_t>(n));
  for (size_t e = 0; e < scores.size(); ++e) {
    scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    choice[e] = scores[e] + bias[e];
  }
  TakeOtherGroups(choice.data(), args.groups, args.top_groups, taken);
  int32_t* experts = args.experts.Row<int32_t>(row);
  float* weights = args.weights.Row<float>(row);
  float sum = 0;
  for (int64_t s = 0; s < top; ++s) {
    const int64_t expert = TakeBest(choice.data(), taken);
    experts[s] = static_cast<int32_t>(expert);
    weights[s] = scores[static_cast<size_t>(expert)];
    sum += weights[s];
  }
  for (int64_t s = 0; s < top; ++s) {
    weights[s] = weights[s] / (sum + 1e-20f) * args.scale;
  }
}

}  // namespace

Status RouteGroupedCpu(const RouteGrouped::Args& args, Stream& stream) {
  ShapeMatch match("route_grouped");
  match.Match("logits", args.logits, {"tokens", "experts"})
      .Match("bias", args.bias, {"experts"})
      .Match("experts", args.experts, {"tokens", "top"})
      .Match("weights", args.weights, {"tokens", "top"})
      .IsType("logits", args.logits, DType::kF32)
      .IsType("bias", args.bias, DType::kF32)
      .IsType("experts", args.experts, DType::kI32)
      .IsType("weights", args.weights, DType::kF32);
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t n = match["experts"];
  const int64_t groups = args.groups;
  match
      .Require(
          groups >= 1 && n % groups == 0 && (groups == 1 || n / groups >= 2),
          "experts must fall into equal groups of two or more")
      .Require(args.top_groups >= 1 && args.top_groups <= groups,
               "top_groups must be 1 to the groups there are");
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t top = match["top"];
  match.Require(top >= 1 && top <= n / groups * args.top_groups,
                "top must be 1 to the experts of the chosen groups");
  BATON_RETURN_IF_ERROR(match.status());

  ForRows(stream, match["tokens"], n * top,
          [&](int64_t row) { RouteRow(args, row); });
  return OkStatus();
}

}  // namespace baton::cpu
