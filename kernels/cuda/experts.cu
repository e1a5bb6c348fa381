// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/choice.cuh"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/experts.h"

namespace baton::cuda {
namespace {

constexpr int kRouteWarps = 4;  // rows of a block
constexpr int kCombineThreads = 128;
constexpr int64_t kCombineSlots = 8;  // loaded at once

// A warp a row; lane l has experts l, l + 32, ...: at most kHeld.
template <int kHeld>
__global__ void __launch_bounds__(kRouteWarps* kWarp)
    RouteKernel(RouteArgs args) {
  EnterKernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRouteWarps +
                      static_cast<int>(threadIdx.x) / kWarp;
  if (row >= args.rows) return;
  const auto count = static_cast<int>(args.count);
  const float* logits = args.logits + row * args.logits_stride;
  float p[kHeld];
  float largest = -kInfinity;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int expert = lane + i * kWarp;
    p[i] = expert < count ? __ldcg(logits + expert) : -kInfinity;
    largest = fmaxf(largest, p[i]);
  }
  largest = WarpMax(largest);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (lane + i * kWarp < count) {
      p[i] = expf(p[i] - largest);
      sum += p[i];
    }
  }
  sum = WarpSum(sum);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) p[i] /= sum;

  WarpChoices<kHeld> left(p, count, 0);
  float chosen_sum = 0;
  for (int64_t s = 0; s < args.top; ++s) {
    const Choice best = left.Take();
    chosen_sum += best.p;
    if (lane == 0) {
      args.experts[row * args.experts_stride + s] = best.index;
      args.weights[row * args.weights_stride + s] = best.p;
    }
  }
  __syncwarp();
  for (int64_t s = lane; s < args.top; s += kWarp) {
    float* weight = args.weights + row * args.weights_stride + s;
    *weight = __ldcg(weight) / chosen_sum;
  }
}

// Slots are added in order.
template <bool kVectors>
__global__ void __launch_bounds__(kCombineThreads)
    CombineKernel(CombineArgs args) {
  EnterKernel();
  const int64_t row = blockIdx.y;
  const int64_t at =
      8 * (static_cast<int64_t>(blockIdx.x) * kCombineThreads + threadIdx.x);
  if (at >= args.hidden) return;
  const auto* y =
      static_cast<const uint16_t*>(args.y) + row * args.top * args.y_stride;
  const float* weights = args.weights + row * args.weights_stride;
  uint4 added = {};
  if (args.added != nullptr) {
    added = LoadEight<kVectors>(
        static_cast<const uint16_t*>(args.added) + row * args.added_stride, at,
        args.hidden);
  }
  float sums[8] = {};
  for (int64_t first = 0; first < args.top; first += kCombineSlots) {
    uint4 from[kCombineSlots];
    float weight[kCombineSlots];
#pragma unroll
    for (int64_t s = 0; s < kCombineSlots; ++s) {
      if (first + s >= args.top) break;
      from[s] =
          LoadEight<kVectors>(y + (first + s) * args.y_stride, at, args.hidden);
      weight[s] = __ldcg(weights + first + s);
    }
#pragma unroll
    for (int64_t s = 0; s < kCombineSlots; ++s) {
      if (first + s >= args.top) break;
      float x[8];
      Unpack(from[s], x);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] = fmaf(weight[s], x[i], sums[i]);
    }
  }
  if (args.added != nullptr) {
    float x[8];
    Unpack(added, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = __fadd_rn(RoundBf16(sums[i]), x[i]);
  }
  StoreEight<kVectors>(static_cast<uint16_t*>(args.out) + row * args.out_stride,
                       at, args.hidden, Pack(sums));
}

bool SuitVectors(const CombineArgs& args) {
  return IsAligned(args.y, 16) && args.y_stride % 8 == 0 &&
         IsAligned(args.out, 16) && args.out_stride % 8 == 0 &&
         IsAligned(args.added, 16) && args.added_stride % 8 == 0 &&
         args.hidden % 8 == 0;
}

}  // namespace

cudaError_t RouteRows(const RouteArgs& args, cudaStream_t stream) {
  if (args.count > kMaxRoutedExperts || args.top < 1 || args.top > args.count) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  return Launch(args.count <= kFewHeld * kWarp ? &RouteKernel<kFewHeld>
                                               : &RouteKernel<kMostHeld>,
                dim3(Blocks(CeilDiv(args.rows, kRouteWarps))),
                kRouteWarps * kWarp, 0, stream, args);
}

cudaError_t CombineRows(const CombineArgs& args, cudaStream_t stream) {
  constexpr int64_t kMaxGridY = 65535;
  const int64_t columns = CeilDiv(CeilDiv(args.hidden, 8), kCombineThreads);
  for (int64_t first = 0; first < args.rows; first += kMaxGridY) {
    const int64_t rows = std::min(args.rows - first, kMaxGridY);
    CombineArgs part = args;
    part.rows = rows;
    part.y =
        static_cast<const uint16_t*>(args.y) + first * args.top * args.y_stride;
    part.weights += first * args.weights_stride;
    part.out = static_cast<uint16_t*>(args.out) + first * args.out_stride;
    if (args.added != nullptr) {
      part.added =
          static_cast<const uint16_t*>(args.added) + first * args.added_stride;
    }
    const dim3 grid(Blocks(columns), Blocks(rows));
    const cudaError_t error = SuitVectors(args)
                                  ? Launch(&CombineKernel<true>, grid,
                                           kCombineThreads, 0, stream, part)
                                  : Launch(&CombineKernel<false>, grid,
                                           kCombineThreads, 0, stream, part);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace baton::cuda
