// SPDX-License-Identifier: Apache-2.0
// Kernels that work row by row: norms, sums, activations, look-ups. bf16 in and
// out, but that a residual stream may be f32; fp32 inside, one rounding;
// formulas in kernels/ops/{norm,activation}.h. Strides are in elements. Zero
// rows submit nothing. The bits of a row depend on that row alone. All may be
// captured, and start as programmatic dependents.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops/xielu.h"

namespace baton::cuda {

inline constexpr int64_t kMaxNormSize = 32768;  // hidden

enum class StreamType : uint8_t { kBf16, kF32 };

struct RmsNormArgs {
  const void* x;  // [rows, hidden] of x_type
  int64_t x_stride;
  const void* weight;  // [hidden]
  void* out;           // [rows, hidden]; may be x of its type
  int64_t out_stride;
  int64_t rows, hidden;
  float eps;
  StreamType x_type = StreamType::kBf16;
};
// invalidValue: hidden > kMaxNormSize.
[[nodiscard]] cudaError_t RmsNormRows(const RmsNormArgs& args,
                                      cudaStream_t stream);

struct AddRmsNormArgs {
  void* residual;  // [rows, hidden] of residual_type, += update, rounded
  int64_t residual_stride;
  const void* update;  // [rows, hidden]
  int64_t update_stride;
  const void* weight;  // [hidden]
  void* out;           // [rows, hidden]; may be update, not residual
  int64_t out_stride;
  int64_t rows, hidden;
  float eps;
  StreamType residual_type = StreamType::kBf16;
};
// invalidValue: hidden > kMaxNormSize.
[[nodiscard]] cudaError_t AddRmsNormRows(const AddRmsNormArgs& args,
                                         cudaStream_t stream);

// residual = cast(residual + cast(norm(update))).
struct RmsNormAddArgs {
  const void* update;  // [rows, hidden]
  int64_t update_stride;
  const void* weight;  // [hidden]
  void* residual;      // [rows, hidden] of residual_type; not update
  int64_t residual_stride;
  int64_t rows, hidden;
  float eps;
  StreamType residual_type = StreamType::kBf16;
};
// The bits of RmsNormRows, then AddRows. invalidValue: hidden > kMaxNormSize.
[[nodiscard]] cudaError_t RmsNormAddRows(const RmsNormAddArgs& args,
                                         cudaStream_t stream);

struct AddArgs {
  void* residual;  // [rows, hidden] of residual_type, += update, rounded
  int64_t residual_stride;
  const void* update;  // [rows, hidden]
  int64_t update_stride;
  int64_t rows, hidden;
  StreamType residual_type = StreamType::kBf16;
};
[[nodiscard]] cudaError_t AddRows(const AddArgs& args, cudaStream_t stream);

struct ActivationArgs {
  const void* x;  // [rows, ffn]; ...Mul: [rows, 2 * ffn], gates first
  int64_t x_stride;
  void* out;  // [rows, ffn]; may be x, except for ...Mul
  int64_t out_stride;
  int64_t rows, ffn;
};
[[nodiscard]] cudaError_t SiluMulRows(const ActivationArgs& args,
                                      cudaStream_t stream);
[[nodiscard]] cudaError_t GeluMulRows(const ActivationArgs& args,
                                      cudaStream_t stream);
[[nodiscard]] cudaError_t Relu2Rows(const ActivationArgs& args,
                                    cudaStream_t stream);
[[nodiscard]] cudaError_t XieluRows(const ActivationArgs& args,
                                    const XieluConstants& constants,
                                    cudaStream_t stream);

struct GateHeadsArgs {
  void* x;  // [rows, heads, head_dim], in place
  int64_t x_stride;
  const void* gate;  // [rows, heads]
  int64_t gate_stride;
  int64_t rows, heads, head_dim;
};
[[nodiscard]] cudaError_t GateHeadsRows(const GateHeadsArgs& args,
                                        cudaStream_t stream);

// out = cast(x).
struct RoundArgs {
  const float* x;  // [rows, size]
  int64_t x_stride;
  void* out;  // [rows, size]
  int64_t out_stride;
  int64_t rows, size;
};
[[nodiscard]] cudaError_t RoundRows(const RoundArgs& args, cudaStream_t stream);

// out[i] = table[index[i]]; an index below zero stands for the token at
// tokens[-1 - index[i]], which an earlier kernel may have just chosen.
struct LookUpArgs {
  const int32_t* index;   // [rows], device
  const int32_t* tokens;  // device; may be null if no index is below zero
  const void* table;      // [any, hidden]
  int64_t table_stride;
  void* out;  // [rows, hidden] of out_type; must not overlap the table
  int64_t out_stride;
  int64_t rows, hidden;
  StreamType out_type = StreamType::kBf16;
};
// The embedding of tokens, or rows picked out of a batch.
[[nodiscard]] cudaError_t LookUpRows(const LookUpArgs& args,
                                     cudaStream_t stream);

}  // namespace baton::cuda
