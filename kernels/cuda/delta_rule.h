// SPDX-License-Identifier: Apache-2.0
// The gated delta rule of kernels/ops/delta_attention.h, token by token.
//
// fp32 inside; each sum over keys is added up by one tree. A row's bits depend
// on its sequence alone: the state that goes through a slot is the state that
// stays in registers. Zero rows submit nothing. May be captured, and starts as
// a programmatic dependent, before which it reads `sequences` and `states`: of
// what writes these no kernel alone may be ahead in the stream. A copy, which
// every visit begins with, or zeroing a slot lets none through.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/delta_rows.h"
#include "kernels/cuda/sequence_rows.h"

namespace baton::cuda {

inline constexpr int64_t kMaxDeltaDim = 224;

// bf16 rows, `stride` elements apart.
struct DeltaInput {
  const void* data;
  int64_t stride;
};

struct DeltaRuleArgs {
  DeltaInput q, k, v, decay;  // [rows, heads, dim]
  DeltaInput beta;            // [rows, heads]
  const float* rate;          // [heads]
  const float* decay_bias;    // [heads, dim]
  StateSlots states;          // f32 [heads, dim of keys, dim of values]
  Sequences sequences;
  void* out;  // bf16 [rows, heads, dim]; must not alias inputs
  int64_t out_stride;
  int64_t rows, heads, dim;
};

// dim 128 with aligned rows: the state stays in registers. Others: a plain
// kernel, which claims no speed. invalidValue: dim > kMaxDeltaDim.
[[nodiscard]] cudaError_t DeltaRule(const DeltaRuleArgs& args,
                                    cudaStream_t stream);

// DeltaRule, then GatedNormRows of its out in place, in one launch and with the
// same bits. Each sequence has a row, or none. `norm` is of the rows, x and out
// of `args`. notSupported: there is no kernel for these.
[[nodiscard]] cudaError_t DeltaRuleNormed(const DeltaRuleArgs& args,
                                          const GatedNormArgs& norm,
                                          cudaStream_t stream);

}  // namespace baton::cuda
