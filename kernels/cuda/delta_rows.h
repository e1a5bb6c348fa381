// SPDX-License-Identifier: Apache-2.0
// What goes before and behind the delta rule: the short convolution and the
// gated norm; formulas in kernels/ops/delta_attention.h. bf16 in and out, fp32
// inside, one rounding. Strides are in elements. Zero rows submit nothing. May
// be captured, and start as programmatic dependents.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sequence_rows.h"

namespace baton::cuda {

inline constexpr int64_t kMaxTaps = 8;
inline constexpr int64_t kMaxGatedNormSize = 1024;  // dim

struct ShortConvArgs {
  const void* x;  // [rows, channels]
  int64_t x_stride;
  const float* weight;  // [taps, channels]
  int64_t weight_stride;
  StateSlots states;  // [taps - 1, channels] of each slot
  Sequences sequences;
  void* out;  // [rows, channels]; must not alias x
  int64_t out_stride;
  int64_t rows, channels, taps;
};
// Every sequence's slot is read, then holds its last rows. `sequences` and
// `states` are read before the wait for earlier grids: of what writes these no
// kernel alone may be ahead in the stream (delta_rule.h).
// invalidValue: taps outside 1 to kMaxTaps.
[[nodiscard]] cudaError_t ShortConvRows(const ShortConvArgs& args,
                                        cudaStream_t stream);

struct GatedNormArgs {
  const void* x;  // [rows, heads, dim]
  int64_t x_stride;
  const float* weight;  // [dim]
  const void* gate;     // [rows, heads, dim]
  int64_t gate_stride;
  void* out;  // [rows, heads, dim]; may be x
  int64_t out_stride;
  int64_t rows, heads, dim;
  float eps;
};
// invalidValue: dim > kMaxGatedNormSize.
[[nodiscard]] cudaError_t GatedNormRows(const GatedNormArgs& args,
                                        cudaStream_t stream);

}  // namespace baton::cuda
