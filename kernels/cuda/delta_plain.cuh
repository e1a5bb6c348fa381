// SPDX-License-Identifier: Apache-2.0
// The delta rule for heads of any size, as it is defined: a block has the state
// of a head of one sequence in shared memory, a thread every 128th column. For
// small models; it claims no speed.
#pragma once

#include "kernels/cuda/delta_math.cuh"
#include "kernels/cuda/delta_rule.h"
#include "kernels/cuda/sequence_rows.cuh"

namespace baton::cuda {

inline constexpr int kDeltaPlainThreads = 128;

// Of the state, and of q, k and decay of a token.
[[nodiscard]] constexpr int64_t DeltaPlainBytes(int64_t dim) {
  return (dim + 3) * dim * static_cast<int64_t>(sizeof(float));
}

struct PlainToken {
  float *q, *k, *decay;  // [dim], in shared memory
};

// Element `i` of a head's row.
__device__ __forceinline__ float DeltaAt(const DeltaInput& input, int64_t row,
                                         int64_t i) {
  return FromBf16(
      Load2(static_cast<const uint16_t*>(input.data) + row * input.stride + i));
}

// All threads; ends with a barrier.
__device__ inline void PreparePlain(
    const DeltaRuleArgs& args, int64_t row, int head, const PlainToken& to,
    float (&scratch)[2][kDeltaPlainThreads / kWarp]) {
  const auto dim = static_cast<int>(args.dim);
  const int64_t at = head * args.dim;
  float q_squares = 0, k_squares = 0;
  for (int d = static_cast<int>(threadIdx.x); d < dim;
       d += kDeltaPlainThreads) {
    const float q = DeltaAt(args.q, row, at + d);
    const float k = DeltaAt(args.k, row, at + d);
    q_squares = __fmaf_rn(q, q, q_squares);
    k_squares = __fmaf_rn(k, k, k_squares);
  }
  const float q_factor = __fmul_rn(InverseNorm(BlockSum(q_squares, scratch[0])),
                                   1.0f / sqrtf(static_cast<float>(dim)));
  const float k_factor = InverseNorm(BlockSum(k_squares, scratch[1]));
  for (int d = static_cast<int>(threadIdx.x); d < dim;
       d += kDeltaPlainThreads) {
    to.q[d] = __fmul_rn(DeltaAt(args.q, row, at + d), q_factor);
    to.k[d] = __fmul_rn(DeltaAt(args.k, row, at + d), k_factor);
    to.decay[d] = DecayOf(
        __fadd_rn(DeltaAt(args.decay, row, at + d), args.decay_bias[at + d]),
        args.rate[head]);
  }
  __syncthreads();
}

// One column of the state through one token; its output.
__device__ inline float PlainColumn(const PlainToken& token, float value,
                                    float beta, int dim, float* column) {
  float predicted = 0;
  for (int d = 0; d < dim; ++d) {
    const float decayed = __fmul_rn(token.decay[d], column[d * dim]);
    column[d * dim] = decayed;
    predicted = __fmaf_rn(token.k[d], decayed, predicted);
  }
  const float update = __fmul_rn(beta, __fadd_rn(value, -predicted));
  float out = 0;
  for (int d = 0; d < dim; ++d) {
    const float now = __fmaf_rn(token.k[d], update, column[d * dim]);
    column[d * dim] = now;
    out = __fmaf_rn(token.q[d], now, out);
  }
  return out;
}

// Blocks: heads, then sequences.
static __global__ void __launch_bounds__(kDeltaPlainThreads)
    DeltaPlainKernel(DeltaRuleArgs args) {
  extern __shared__ float plain_state[];
  __shared__ float scratch[2][kDeltaPlainThreads / kWarp];
  EnterKernel();
  const SequenceRows sequence = LoadSequence(args.sequences.rows + blockIdx.y);
  if (sequence.rows <= 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.x);
  const auto dim = static_cast<int>(args.dim);
  float* const state = plain_state;
  float* const behind = state + dim * dim;
  const PlainToken token = {behind, behind + dim, behind + 2 * dim};
  float* slot = SlotOf<float>(args.states, sequence);
  if (slot != nullptr) slot += static_cast<int64_t>(head) * dim * dim;
  for (int i = thread; i < dim * dim; i += kDeltaPlainThreads) {
    state[i] = slot == nullptr ? 0.0f : __ldcg(slot + i);
  }
  for (int i = 0; i < sequence.rows; ++i) {
    const int64_t row = sequence.first_row + i;
    PreparePlain(args, row, head, token, scratch);
    const float beta = SigmoidOf(DeltaAt(args.beta, row, head));
    for (int j = thread; j < dim; j += kDeltaPlainThreads) {
      const int64_t at = static_cast<int64_t>(head) * dim + j;
      static_cast<uint16_t*>(args.out)[row * args.out_stride + at] = ToBf16(
          PlainColumn(token, DeltaAt(args.v, row, at), beta, dim, state + j));
    }
    __syncthreads();
  }
  if (slot == nullptr) return;
  for (int i = thread; i < dim * dim; i += kDeltaPlainThreads) {
    slot[i] = state[i];
  }
}

}  // namespace baton::cuda
