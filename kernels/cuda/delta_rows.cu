// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/conv_kernel.cuh"
#include "kernels/cuda/delta_rows.h"
#include "kernels/cuda/gated_norm.cuh"

namespace baton::cuda {
namespace {

constexpr int kConvThreads = 128;
constexpr int kNormHeads = 8;  // of a block

// Blocks: channels, then parts of sequences.
template <bool kVectors, int kTaps>
__global__ void __launch_bounds__(kConvThreads)
    ShortConvKernel(ShortConvArgs args) {
  AllowNextGrid();
  ConvolveBlock<kVectors, kTaps>(args, static_cast<int>(blockIdx.x),
                                 static_cast<int>(blockIdx.y));
}

template <int kTaps>
cudaError_t LaunchConv(const ShortConvArgs& args, cudaStream_t stream) {
  const dim3 grid(Blocks(ConvColumns(args, kConvThreads)),
                  Blocks(ConvParts(args)));
  return SuitsConvVectors(args) ? Launch(&ShortConvKernel<true, kTaps>, grid,
                                         kConvThreads, 0, stream, args)
                                : Launch(&ShortConvKernel<false, kTaps>, grid,
                                         kConvThreads, 0, stream, args);
}

// ---- Gated norm ------------------------------------------------------------

template <bool kVectors, int kHeld>
__global__ void __launch_bounds__(kNormLanes* kNormHeads)
    GatedNormKernel(GatedNormArgs args, float share) {
  EnterKernel();
  const int lane = static_cast<int>(threadIdx.x) % kNormLanes;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kNormHeads +
                       static_cast<int>(threadIdx.x) / kNormLanes;
  const bool is_unit = unit < args.rows * args.heads;
  const int64_t row = is_unit ? unit / args.heads : 0;
  const int64_t head_at = unit % args.heads * args.dim;
  const auto* x =
      static_cast<const uint16_t*>(args.x) + row * args.x_stride + head_at;
  const auto* gate = static_cast<const uint16_t*>(args.gate) +
                     row * args.gate_stride + head_at;
  auto* out =
      static_cast<uint16_t*>(args.out) + row * args.out_stride + head_at;
  const int64_t n = is_unit ? args.dim : 0;
  uint4 held[kHeld];
  float sum = 0;
#pragma unroll
  for (int v = 0; v < kHeld; ++v) {
    held[v] = LoadEight<kVectors>(x, 8 * (lane + v * kNormLanes), n);
    float from[8];
    Unpack(held[v], from);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(from[i], from[i], sum);
  }
  const float factor = GatedNormFactor(sum, share, args.eps);
#pragma unroll
  for (int v = 0; v < kHeld; ++v) {
    const int64_t at = 8 * (lane + v * kNormLanes);
    float y[8];
    float g[8];
    Unpack(held[v], y);
    Unpack(LoadEight<kVectors>(gate, at, n), g);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float weight = at + i < n ? args.weight[at + i] : 0.0f;
      y[i] = GatedNormOf(y[i], factor, weight, g[i]);
    }
    StoreEight<kVectors>(out, at, n, Pack(y));
  }
}

template <int kHeld>
cudaError_t LaunchGatedNorm(const GatedNormArgs& args, cudaStream_t stream) {
  const dim3 grid(Blocks(CeilDiv(args.rows * args.heads, kNormHeads)));
  const int threads = kNormLanes * kNormHeads;
  const bool vectors = IsAligned(args.x, 16) && args.x_stride % 8 == 0 &&
                       IsAligned(args.gate, 16) && args.gate_stride % 8 == 0 &&
                       IsAligned(args.out, 16) && args.out_stride % 8 == 0 &&
                       args.dim % 8 == 0;
  return Launch(
      vectors ? &GatedNormKernel<true, kHeld> : &GatedNormKernel<false, kHeld>,
      grid, threads, 0, stream, args, ShareOf(args.dim));
}

}  // namespace

cudaError_t ShortConvRows(const ShortConvArgs& args, cudaStream_t stream) {
  if (args.taps < 1 || args.taps > kMaxTaps) return cudaErrorInvalidValue;
  if (args.rows == 0 || args.channels == 0) return cudaSuccess;
  return args.taps <= 4 ? LaunchConv<4>(args, stream)
                        : LaunchConv<kMaxTaps>(args, stream);
}

cudaError_t GatedNormRows(const GatedNormArgs& args, cudaStream_t stream) {
  if (args.dim > kMaxGatedNormSize) return cudaErrorInvalidValue;
  if (args.rows == 0 || args.heads == 0 || args.dim == 0) return cudaSuccess;
  return args.dim <= 8 * kNormLanes
             ? LaunchGatedNorm<1>(args, stream)
             : LaunchGatedNorm<kMaxGatedNormSize / (8 * kNormLanes)>(args,
                                                                     stream);
}

}  // namespace baton::cuda
