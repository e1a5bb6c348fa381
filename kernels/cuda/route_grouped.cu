// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/choice.cuh"
#include "kernels/cuda/experts.h"

namespace baton::cuda {
namespace {

constexpr int kGroupedRouteWarps = 4;  // rows of a block
constexpr int kMaxGroups = static_cast<int>(kMaxRoutedExperts) / 2;
constexpr int kHeldGroups = kMaxGroups / kWarp;

__device__ __forceinline__ float ScoreOf(float logit) {
  return 1.0f / (1.0f + expf(-logit));
}

// Two largest of what has been seen.
struct BestTwo {
  float first = -kInfinity;
  float second = -kInfinity;

  __device__ __forceinline__ void See(float x) {
    if (x > first) {
      second = first;
      first = x;
    } else if (x > second) {
      second = x;
    }
  }
};

// A warp: the sum of the two largest choices of each group, lane l's of groups
// l, l + 32, ... `choice` holds those of all experts.
__device__ __forceinline__ void ScoreGroups(const float* choice, int groups,
                                            int size,
                                            float (&scores)[kHeldGroups]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kHeldGroups; ++i) {
    const int group = lane + i * kWarp;
    BestTwo best;
    for (int e = 0; group < groups && e < size; ++e) {
      best.See(choice[group * size + e]);
    }
    scores[i] = best.first + best.second;
  }
}

// Bit i: this lane's expert i is outside of the best groups. `chosen` is
// scratch of the warp.
template <int kHeld>
__device__ __forceinline__ uint32_t OtherGroups(const float* choice,
                                                const RouteGroupedArgs& args,
                                                bool* chosen) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto groups = static_cast<int>(args.groups);
  const int size = static_cast<int>(args.route.count) / groups;
  float scores[kHeldGroups];
  ScoreGroups(choice, groups, size, scores);
  for (int g = lane; g < groups; g += kWarp) chosen[g] = false;
  __syncwarp();
  WarpChoices<kHeldGroups> choices(scores, groups, 0);
  for (int64_t i = 0; i < args.top_groups; ++i) {
    const Choice best = choices.Take();
    if (lane == 0) chosen[best.index] = true;
  }
  __syncwarp();
  uint32_t others = 0;
  for (int i = 0; i < kHeld; ++i) {
    const int expert = lane + i * kWarp;
    if (expert < args.route.count && !chosen[expert / size]) others |= 1u << i;
  }
  return others;
}

// A warp a row; lane l has experts l, l + 32, ...: at most kHeld.
template <int kHeld>
__global__ void __launch_bounds__(kGroupedRouteWarps* kWarp)
    RouteGroupedKernel(RouteGroupedArgs args) {
  constexpr int kMost = kHeld * kWarp;
  __shared__ float choices[kGroupedRouteWarps][kMost];
  __shared__ float scores[kGroupedRouteWarps][kMost];
  __shared__ uint16_t order[kGroupedRouteWarps][kMost];  // the best
  __shared__ bool chosen[kGroupedRouteWarps][kMaxGroups];
  EnterKernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const RouteArgs& route = args.route;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kGroupedRouteWarps + warp;
  if (row >= route.rows) return;
  const auto count = static_cast<int>(route.count);
  const float* logits = route.logits + row * route.logits_stride;
  float choice[kHeld] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int expert = lane + i * kWarp;
    if (expert >= count) continue;
    const float score = ScoreOf(__ldcg(logits + expert));
    choice[i] = score + args.bias[expert];
    choices[warp][expert] = choice[i];
    scores[warp][expert] = score;
  }
  __syncwarp();
  const uint32_t others =
      args.groups == 1 ? 0
                       : OtherGroups<kHeld>(choices[warp], args, chosen[warp]);
  WarpChoices<kHeld> left(choice, count, others);
  float* weights = route.weights + row * route.weights_stride;
  uint16_t* const best = order[warp];
  float sum = 0;
  for (int64_t s = 0; s < route.top; ++s) {
    const int expert = left.Take().index;
    sum += scores[warp][expert];
    if (lane == 0) best[s] = static_cast<uint16_t>(expert);
  }
  __syncwarp();
  for (int64_t s = lane; s < route.top; s += kWarp) {
    route.experts[row * route.experts_stride + s] = best[s];
    weights[s] = scores[warp][best[s]] / (sum + 1e-20f) * args.scale;
  }
}

bool FitTogether(const RouteGroupedArgs& args) {
  const RouteArgs& route = args.route;
  if (route.count > kMaxRoutedExperts || args.groups < 1 ||
      route.count % args.groups != 0) {
    return false;
  }
  const int64_t size = route.count / args.groups;
  return (args.groups == 1 || size >= 2) && args.top_groups >= 1 &&
         args.top_groups <= args.groups && route.top >= 1 &&
         route.top <= size * args.top_groups;
}

}  // namespace

cudaError_t RouteGroupedRows(const RouteGroupedArgs& args,
                             cudaStream_t stream) {
  if (!FitTogether(args)) return cudaErrorInvalidValue;
  if (args.route.rows == 0) return cudaSuccess;
  return Launch(args.route.count <= kFewHeld * kWarp
                    ? &RouteGroupedKernel<kFewHeld>
                    : &RouteGroupedKernel<kMostHeld>,
                dim3(Blocks(CeilDiv(args.route.rows, kGroupedRouteWarps))),
                kGroupedRouteWarps * kWarp, 0, stream, args);
}

}  // namespace baton::cuda
