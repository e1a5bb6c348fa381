// SPDX-License-Identifier: Apache-2.0
// The short convolution of delta_rows.h: a thread has 8 channels of up to 32
// rows of a sequence. Sequences and slots are read before the wait for earlier
// grids: they are of earlier visits.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/delta_rows.h"
#include "kernels/cuda/sequence_rows.cuh"

namespace baton::cuda {

inline constexpr int kConvRows = 32;  // of a part; no fewer than the taps
inline constexpr int kConvAhead = 4;  // rows asked for at once
static_assert(kConvRows % kConvAhead == 0 && kConvRows >= kMaxTaps);

// Blocks of so many threads that share the channels.
[[nodiscard]] inline int64_t ConvColumns(const ShortConvArgs& args,
                                         int threads) {
  return CeilDiv(CeilDiv(args.channels, 8), threads);
}
[[nodiscard]] inline int64_t ConvParts(const ShortConvArgs& args) {
  return MostParts(args.rows, args.sequences.count, kConvRows);
}
[[nodiscard]] inline bool SuitsConvVectors(const ShortConvArgs& args) {
  return IsAligned(args.x, 16) && args.x_stride % 8 == 0 &&
         IsAligned(args.out, 16) && args.out_stride % 8 == 0 &&
         IsAligned(args.states.data, 16) && args.states.slot_bytes % 16 == 0 &&
         args.channels % 8 == 0;
}

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

// The rows before row `begin`, oldest first; one to spare.
template <int kTaps>
struct ConvBefore {
  float row[kTaps][8] = {};

  template <bool kVectors>
  __device__ __forceinline__ void Load(const ConvInput<kVectors>& input,
                                       int begin) {
#pragma unroll
    for (int w = 0; w < kTaps - 1; ++w) {
      const int at = w - (kTaps - 1);
      if (at >= -input.kept) Unpack(input.Row(begin + at), row[w]);
    }
  }
};

// Rows [begin, end) of a sequence, to `out`, its first row.
template <bool kVectors, int kTaps>
__device__ __forceinline__ void ConvolveRows(const ConvInput<kVectors>& input,
                                             const float (&weight)[kTaps][8],
                                             ConvBefore<kTaps>& before,
                                             int begin, int end, uint16_t* out,
                                             int64_t out_stride) {
  for (int first = begin; first < end; first += kConvAhead) {
    uint4 ahead[kConvAhead];
#pragma unroll
    for (int i = 0; i < kConvAhead; ++i) {
      ahead[i] = input.Row(min(first + i, end - 1));
    }
#pragma unroll
    for (int i = 0; i < kConvAhead; ++i) {
      if (first + i >= end) break;
      Unpack(ahead[i], before.row[kTaps - 1]);
      float y[8];
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kTaps; ++w) {
          sum = fmaf(weight[w][c], before.row[w][c], sum);
          if (w > 0) before.row[w - 1][c] = before.row[w][c];
        }
        y[c] = __fdividef(sum, 1.0f + expf(-sum));
      }
      StoreEight<kVectors>(out + (first + i) * out_stride, input.at,
                           input.channels, Pack(y));
    }
  }
}

// A block: `column`th of its channels, of part `number` of all sequences. The
// thread that has the first part of a sequence is the only one to touch the
// slot of its channels: it reads, then writes.
template <bool kVectors, int kTaps>
__device__ __forceinline__ void ConvolveBlock(const ShortConvArgs& args,
                                              int column, int number) {
  const int64_t at =
      8 * (static_cast<int64_t>(column) * blockDim.x + threadIdx.x);
  float weight[kTaps][8];
  LoadTaps<kTaps>(args, at, weight);
  const SequencePart part = FindPart(args.sequences, number, kConvRows);
  const bool is_there = part.sequence.rows > 0 && at < args.channels;
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
  ConvBefore<kTaps> before;
  if (is_there && part.first == 0) before.Load(input, 0);
  AwaitPreviousGrids();
  if (!is_there) return;
  if (part.first > 0) before.Load(input, part.first);
  auto* out = static_cast<uint16_t*>(args.out) +
              part.sequence.first_row * args.out_stride;
  ConvolveRows(input, weight, before, part.first,
               min(part.first + kConvRows, part.sequence.rows), out,
               args.out_stride);
  if (part.first > 0 || slot == nullptr) return;
  // Upwards: a row that stays in the slot moves down.
  for (int i = 0; i < kept; ++i) {
    StoreEight<kVectors>(slot + i * args.channels, at, args.channels,
                         input.Row(part.sequence.rows - kept + i));
  }
}

}  // namespace baton::cuda
