// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/delta_rows.h"
#include "kernels/cuda/gated_norm.cuh"
#include "kernels/cuda/sequence_rows.cuh"

namespace baton::cuda {
namespace {

constexpr int kConvThreads = 128;
constexpr int kConvRows = 32;  // of a part; no fewer than the taps
constexpr int kConvAhead = 4;  // rows asked for at once
constexpr int kNormHeads = 8;  // of a block
static_assert(kConvRows % kConvAhead == 0 && kConvRows >= kMaxTaps);

// ---- Short convolution -----------------------------------------------------

// Eight channels of the rows of a sequence: those before its first row come
// from its slot.
template <bool kVectors>
struct ConvInput {
  const uint16_t* x;     // of its first row
  const uint16_t* slot;  // null: zeros
  int64_t x_stride, at, channels;
  int kept;  // rows of the slot

  __device__ __forceinline__ uint4 Row(int row) const {
    if (row >= 0) return LoadEight<kVectors>(x + row * x_stride, at, channels);
    if (slot == nullptr) return {0, 0, 0, 0};
    return LoadEight<kVectors>(slot + (kept + row) * channels, at, channels);
  }
};

// Weights of a thread's channels; of taps fewer than kTaps the first are zeros.
template <int kTaps>
__device__ __forceinline__ void LoadTaps(const ShortConvArgs& args, int64_t at,
                                         float (&weight)[kTaps][8]) {
  const auto skipped = kTaps - static_cast<int>(args.taps);
#pragma unroll
  for (int w = 0; w < kTaps; ++w) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      weight[w][i] =
          w >= skipped && at + i < args.channels
              ? args.weight[(w - skipped) * args.weight_stride + at + i]
              : 0.0f;
    }
  }
}

// Rows [begin, end) of a sequence, to `out`, its first row.
template <bool kVectors, int kTaps>
__device__ __forceinline__ void ConvolveRows(const ConvInput<kVectors>& input,
                                             const float (&weight)[kTaps][8],
                                             int begin, int end, uint16_t* out,
                                             int64_t out_stride) {
  float before[kTaps][8] = {};  // the rows before, oldest first; one to spare
#pragma unroll
  for (int w = 0; w < kTaps - 1; ++w) {
    const int row = w - (kTaps - 1);
    if (row >= -input.kept) Unpack(input.Row(begin + row), before[w]);
  }
  for (int first = begin; first < end; first += kConvAhead) {
    uint4 ahead[kConvAhead];
#pragma unroll
    for (int i = 0; i < kConvAhead; ++i) {
      ahead[i] = input.Row(min(first + i, end - 1));
    }
#pragma unroll
    for (int i = 0; i < kConvAhead; ++i) {
      if (first + i >= end) break;
      Unpack(ahead[i], before[kTaps - 1]);
      float y[8];
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kTaps; ++w) {
          sum = fmaf(weight[w][c], before[w][c], sum);
          if (w > 0) before[w - 1][c] = before[w][c];
        }
        y[c] = __fdividef(sum, 1.0f + expf(-sum));
      }
      StoreEight<kVectors>(out + (first + i) * out_stride, input.at,
                           input.channels, Pack(y));
    }
  }
}

// Blocks: channels, then parts of sequences. The thread that has the first part
// is the only one to touch the slot of its channels: it reads, then writes.
template <bool kVectors, int kTaps>
__global__ void __launch_bounds__(kConvThreads)
    ShortConvKernel(ShortConvArgs args) {
  AllowNextGrid();
  const int64_t at =
      8 * (static_cast<int64_t>(blockIdx.x) * kConvThreads + threadIdx.x);
  float weight[kTaps][8];
  LoadTaps<kTaps>(args, at, weight);
  AwaitPreviousGrids();
  const SequencePart part =
      FindPart(args.sequences, static_cast<int>(blockIdx.y), kConvRows);
  if (part.sequence.rows == 0 || at >= args.channels) return;
  auto* slot = SlotOf<uint16_t>(args.states, part.sequence);
  const int kept = static_cast<int>(args.taps) - 1;
  const ConvInput<kVectors> input = {
      static_cast<const uint16_t*>(args.x) +
          part.sequence.first_row * args.x_stride,
      slot,
      args.x_stride,
      at,
      args.channels,
      kept};
  auto* out = static_cast<uint16_t*>(args.out) +
              part.sequence.first_row * args.out_stride;
  ConvolveRows(input, weight, part.first,
               min(part.first + kConvRows, part.sequence.rows), out,
               args.out_stride);
  if (part.first > 0 || slot == nullptr) return;
  // Upwards: a row that stays in the slot moves down.
  for (int i = 0; i < kept; ++i) {
    StoreEight<kVectors>(slot + i * args.channels, at, args.channels,
                         input.Row(part.sequence.rows - kept + i));
  }
}

template <int kTaps>
cudaError_t LaunchConv(const ShortConvArgs& args, cudaStream_t stream) {
  const dim3 grid(
      Blocks(CeilDiv(CeilDiv(args.channels, 8), kConvThreads)),
      Blocks(MostParts(args.rows, args.sequences.count, kConvRows)));
  const bool vectors = IsAligned(args.x, 16) && args.x_stride % 8 == 0 &&
                       IsAligned(args.out, 16) && args.out_stride % 8 == 0 &&
                       IsAligned(args.states.data, 16) &&
                       args.states.slot_bytes % 16 == 0 &&
                       args.channels % 8 == 0;
  return vectors ? Launch(&ShortConvKernel<true, kTaps>, grid, kConvThreads, 0,
                          stream, args)
                 : Launch(&ShortConvKernel<false, kTaps>, grid, kConvThreads, 0,
                          stream, args);
}

// ---- Gated norm ------------------------------------------------------------

template <bool kVectors, int kHeld>
__global__ void __launch_bounds__(kNormLanes* kNormHeads)
    GatedNormKernel(GatedNormArgs args) {
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
  const float factor = GatedNormFactor(sum, args.dim, args.eps);
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
  return vectors ? Launch(&GatedNormKernel<true, kHeld>, grid, threads, 0,
                          stream, args)
                 : Launch(&GatedNormKernel<false, kHeld>, grid, threads, 0,
                          stream, args);
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
