// SPDX-License-Identifier: Apache-2.0
// The delta rule for heads of 128. Columns of the state (values) do not see
// each other, so a block takes 32 of them of one head of one sequence, and
// keeps them in registers from the slot to the slot. With S the state before a
// token, a its decay, k and q normed:
//   update = beta (v - (a k)^T S),  out = (a q)^T S + (q . k) update,
//   S      = a S + k update^T
// so that both sums over keys begin at once. Four warps go through tokens;
// others prepare the next ones in shared memory, two chunks to and fro.
//
// Sequences and slots are read before the wait for earlier grids: they are of
// earlier visits (delta_rule.h).
#pragma once

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/delta_math.cuh"
#include "kernels/cuda/delta_rule.h"
#include "kernels/cuda/sequence_rows.cuh"

namespace baton::cuda {

inline constexpr int kDeltaDim = 128;
inline constexpr int kDeltaColumns = 32;  // of a block
inline constexpr int kDeltaWarps = 4;     // that go through tokens
inline constexpr int kPrepareWarps = 8;   // that prepare them, of prompts
inline constexpr int kDeltaChunk = 8;     // tokens
inline constexpr int kKeyLanes = 16;      // that share a column
inline constexpr int kLaneKeys = 8;
inline constexpr int kLaneColumns = 4;
inline constexpr int kHeadBlocks = kDeltaDim / kDeltaColumns;
static_assert(kKeyLanes * kLaneKeys == kDeltaDim);

// A token as the recurrence takes it.
struct __align__(16) DeltaToken {
  float decayed_key[kDeltaDim];
  float decayed_query[kDeltaDim];
  float decay[kDeltaDim];
  float key[kDeltaDim];
  float value[kDeltaColumns];  // of the block's columns
  float beta;
  float query_key;  // q . k
};

struct DeltaShared {
  DeltaToken tokens[2][kDeltaChunk];
};

// Barriers: a chunk is full, or has been used.
inline constexpr int kDeltaFull = 1;  // and 2
inline constexpr int kDeltaUsed = 3;  // and 4

// The block's place, as every thread sees it.
struct DeltaPlace {
  SequenceRows sequence;
  int head;
  int column;  // first of the block
};

// ---- Preparing tokens ------------------------------------------------------

// Keys [4 lane, + 4) of a row, and one column of its values.
struct RawToken {
  uint2 q, k, decay;
  uint16_t value, beta;
};

__device__ __forceinline__ RawToken LoadToken(const DeltaRuleArgs& args,
                                              const DeltaPlace& place,
                                              int token) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = place.sequence.first_row + token;
  const int64_t at = place.head * kDeltaDim + 4 * lane;
  const auto of = [&](const DeltaInput& input) {
    return static_cast<const uint16_t*>(input.data) + row * input.stride;
  };
  return {Load8(of(args.q) + at), Load8(of(args.k) + at),
          Load8(of(args.decay) + at),
          Load2(of(args.v) + place.head * kDeltaDim + place.column + lane),
          Load2(of(args.beta) + place.head)};
}

__device__ __forceinline__ void UnpackFour(uint2 v, float (&x)[4]) {
  x[0] = LowOf(v.x);
  x[1] = HighOf(v.x);
  x[2] = LowOf(v.y);
  x[3] = HighOf(v.y);
}

// What the gates of the lane's keys begin with.
struct DeltaGate {
  float bias[4];
  float rate;
};

__device__ __forceinline__ DeltaGate LoadGate(const DeltaRuleArgs& args,
                                              int head) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  DeltaGate gate;
  gate.rate = args.rate[head];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    gate.bias[i] = args.decay_bias[head * kDeltaDim + 4 * lane + i];
  }
  return gate;
}

// Of the lane's keys.
struct TokenSums {
  float q_squares = 0, k_squares = 0, product = 0;
};
// Over the warp, as WarpSum adds: all three at once, since each step waits for
// the one before it.
__device__ __forceinline__ void AddUpToken(TokenSums& sums) {
#pragma unroll
  for (int width = kWarp / 2; width > 0; width /= 2) {
    const float q = __shfl_xor_sync(kAllLanes, sums.q_squares, width);
    const float k = __shfl_xor_sync(kAllLanes, sums.k_squares, width);
    const float product = __shfl_xor_sync(kAllLanes, sums.product, width);
    sums.q_squares = __fadd_rn(sums.q_squares, q);
    sums.k_squares = __fadd_rn(sums.k_squares, k);
    sums.product = __fadd_rn(sums.product, product);
  }
}

__device__ __forceinline__ void PrepareToken(const RawToken& raw,
                                             const DeltaGate& gate,
                                             DeltaToken& to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float q[4], k[4], a[4];
  UnpackFour(raw.q, q);
  UnpackFour(raw.k, k);
  UnpackFour(raw.decay, a);
  TokenSums sums;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums.q_squares = __fmaf_rn(q[i], q[i], sums.q_squares);
    sums.k_squares = __fmaf_rn(k[i], k[i], sums.k_squares);
    sums.product = __fmaf_rn(q[i], k[i], sums.product);
  }
  AddUpToken(sums);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a[i] = DecayOf(__fadd_rn(a[i], gate.bias[i]), gate.rate);
  }
  const float scale = 1.0f / sqrtf(static_cast<float>(kDeltaDim));
  const float q_factor = __fmul_rn(InverseNorm(sums.q_squares), scale);
  const float k_factor = InverseNorm(sums.k_squares);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    q[i] = __fmul_rn(a[i], __fmul_rn(q[i], q_factor));
    k[i] = __fmul_rn(k[i], k_factor);
  }
  const auto put = [&](float* row, float x, float y, float z, float w) {
    *reinterpret_cast<float4*>(row + 4 * lane) = {x, y, z, w};
  };
  put(to.key, k[0], k[1], k[2], k[3]);
  put(to.decay, a[0], a[1], a[2], a[3]);
  put(to.decayed_query, q[0], q[1], q[2], q[3]);
  put(to.decayed_key, __fmul_rn(a[0], k[0]), __fmul_rn(a[1], k[1]),
      __fmul_rn(a[2], k[2]), __fmul_rn(a[3], k[3]));
  to.value[lane] = FromBf16(raw.value);
  if (lane == 0) {
    to.beta = SigmoidOf(FromBf16(raw.beta));
    to.query_key = __fmul_rn(__fmul_rn(sums.product, q_factor), k_factor);
  }
}

// Warp `warp` of kWarps takes tokens warp, warp + kWarps, ...
template <int kWarps>
__device__ __forceinline__ void PrepareTokens(const DeltaRuleArgs& args,
                                              const DeltaPlace& place,
                                              const DeltaGate& gate, int warp,
                                              DeltaShared& block) {
  static_assert(kDeltaChunk % kWarps == 0);
  constexpr int kThreads = (kDeltaWarps + kWarps) * kWarp;
  const int rows = place.sequence.rows;
  const int chunks = (rows + kDeltaChunk - 1) / kDeltaChunk;
  AwaitPreviousGrids();
  RawToken raw = LoadToken(args, place, min(warp, rows - 1));
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int buffer = chunk % 2;
    if (chunk >= 2) BarrierSync(kDeltaUsed + buffer, kThreads);
    const int count = min(kDeltaChunk, rows - chunk * kDeltaChunk);
    for (int i = warp; i < count; i += kWarps) {
      const RawToken now = raw;
      const int next = chunk * kDeltaChunk + i + kWarps;
      raw = LoadToken(args, place, min(next, rows - 1));
      PrepareToken(now, gate, block.tokens[buffer][i]);
    }
    BarrierArrive(kDeltaFull + buffer, kThreads);
  }
}

// ---- The recurrence --------------------------------------------------------

// Lane (half, g), g = lane % 16, has keys 4 g + 64 (i / 4) + i % 4 of columns
// 4 half + c of its warp's eight.
struct DeltaState {
  float s[kLaneKeys][kLaneColumns];
};

__device__ __forceinline__ int LaneKey(int i) {
  const int g = static_cast<int>(threadIdx.x) % kKeyLanes;
  return 4 * g + kDeltaDim / 2 * (i / 4) + i % 4;
}

__device__ __forceinline__ void LoadState(const float* from, int column,
                                          DeltaState& state) {
#pragma unroll
  for (int i = 0; i < kLaneKeys; ++i) {
    const uint4 four = Load16(from + LaneKey(i) * kDeltaDim + column);
    state.s[i][0] = __uint_as_float(four.x);
    state.s[i][1] = __uint_as_float(four.y);
    state.s[i][2] = __uint_as_float(four.z);
    state.s[i][3] = __uint_as_float(four.w);
  }
}

__device__ __forceinline__ void StoreState(const DeltaState& state, int column,
                                           float* to) {
#pragma unroll
  for (int i = 0; i < kLaneKeys; ++i) {
    *reinterpret_cast<float4*>(to + LaneKey(i) * kDeltaDim + column) = {
        state.s[i][0], state.s[i][1], state.s[i][2], state.s[i][3]};
  }
}

// Eight values of a row of a token: those of the lane's keys.
__device__ __forceinline__ void LaneValues(const float* row,
                                           float (&x)[kLaneKeys]) {
  const int g = static_cast<int>(threadIdx.x) % kKeyLanes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 four =
        *reinterpret_cast<const float4*>(row + 4 * g + kDeltaDim / 2 * i);
    x[4 * i] = four.x;
    x[4 * i + 1] = four.y;
    x[4 * i + 2] = four.z;
    x[4 * i + 3] = four.w;
  }
}

// Sums of four columns over the lanes that share them; lane g gets that of
// column g % 4.
__device__ __forceinline__ float ColumnSum(const float (&x)[kLaneColumns]) {
  const int lane = static_cast<int>(threadIdx.x);
  const bool odd = (lane & 1) != 0;
  float low = odd ? x[1] : x[0];
  float high = odd ? x[3] : x[2];
  low = __fadd_rn(low, __shfl_xor_sync(kAllLanes, odd ? x[0] : x[1], 1));
  high = __fadd_rn(high, __shfl_xor_sync(kAllLanes, odd ? x[2] : x[3], 1));
  const bool upper = (lane & 2) != 0;
  float sum = upper ? high : low;
  sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, upper ? low : high, 2));
  sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 4));
  return __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 8));
}

__device__ __forceinline__ void DotColumns(const float (&x)[kLaneKeys],
                                           const DeltaState& state,
                                           float (&sums)[kLaneColumns]) {
#pragma unroll
  for (int i = 0; i < kLaneKeys; ++i) {
#pragma unroll
    for (int c = 0; c < kLaneColumns; ++c) {
      sums[c] = __fmaf_rn(x[i], state.s[i][c], sums[c]);
    }
  }
}

// What a token's sums over keys begin with, asked for a token ahead.
struct DeltaAhead {
  float key[kLaneKeys], query[kLaneKeys];

  __device__ __forceinline__ void Load(const DeltaToken& token) {
    LaneValues(token.decayed_key, key);
    LaneValues(token.decayed_query, query);
  }
};

// One token; gives lane g the output of its column g % 4. `own`: that column
// in the block.
__device__ __forceinline__ float DeltaStep(const DeltaToken& token,
                                           const DeltaToken& next, int own,
                                           DeltaAhead& ahead,
                                           DeltaState& state) {
  float predicted[kLaneColumns] = {};
  float out[kLaneColumns] = {};
  DotColumns(ahead.key, state, predicted);
  const float before = ColumnSum(predicted);
  DotColumns(ahead.query, state, out);
  const float update =
      __fmul_rn(token.beta, __fadd_rn(token.value[own], -before));
  float decay[kLaneKeys], key[kLaneKeys];
  LaneValues(token.decay, decay);
  LaneValues(token.key, key);
  ahead.Load(next);
#pragma unroll
  for (int c = 0; c < kLaneColumns; ++c) {
    const float of_column = __shfl_sync(kAllLanes, update, c, kKeyLanes);
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      state.s[i][c] =
          __fmaf_rn(key[i], of_column, __fmul_rn(decay[i], state.s[i][c]));
    }
  }
  return __fmaf_rn(token.query_key, update, ColumnSum(out));
}

// What a lane has of a head's columns, and where the head's state is kept.
struct DeltaLane {
  int column;   // first of its four
  int own;      // whose output it gets, in the block
  bool writes;  // it does, and no other lane
  float* slot;  // null: nowhere
};

__device__ __forceinline__ DeltaLane LaneOf(const DeltaRuleArgs& args,
                                            const DeltaPlace& place, int warp) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane % kKeyLanes;
  const int in_block = warp * 8 + lane / kKeyLanes * kLaneColumns;
  float* slot = SlotOf<float>(args.states, place.sequence);
  if (slot != nullptr) slot += place.head * kDeltaDim * kDeltaDim;
  return {.column = place.column + in_block,
          .own = in_block + g % kLaneColumns,
          .writes = g < kLaneColumns,
          .slot = slot};
}

// Element `own` of the block's columns, in the sequence's first row.
__device__ __forceinline__ int64_t OutputAt(const DeltaPlace& place, int own,
                                            int64_t stride) {
  return place.sequence.first_row * stride + place.head * kDeltaDim +
         place.column + own;
}

__device__ __forceinline__ void RunTokens(const DeltaRuleArgs& args,
                                          const DeltaPlace& place, int warp,
                                          const DeltaShared& block) {
  constexpr int kThreads = (kDeltaWarps + kPrepareWarps) * kWarp;
  const DeltaLane lane = LaneOf(args, place, warp);
  DeltaState state = {};
  if (lane.slot != nullptr) LoadState(lane.slot, lane.column, state);
  AwaitPreviousGrids();
  auto* out = static_cast<uint16_t*>(args.out) +
              OutputAt(place, lane.own, args.out_stride);
  const int rows = place.sequence.rows;
  const int chunks = (rows + kDeltaChunk - 1) / kDeltaChunk;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int buffer = chunk % 2;
    BarrierSync(kDeltaFull + buffer, kThreads);
    const int count = min(kDeltaChunk, rows - chunk * kDeltaChunk);
    const DeltaToken* tokens = block.tokens[buffer];
    DeltaAhead ahead;
    ahead.Load(tokens[0]);
#pragma unroll 2
    for (int i = 0; i < count; ++i) {
      const float y = DeltaStep(tokens[i], tokens[min(i + 1, count - 1)],
                                lane.own, ahead, state);
      if (lane.writes) *out = ToBf16(y);
      out += args.out_stride;
    }
    if (chunk + 2 < chunks) BarrierArrive(kDeltaUsed + buffer, kThreads);
  }
  if (lane.slot != nullptr) StoreState(state, lane.column, lane.slot);
}

// Blocks: heads and a quarter of the columns, then sequences.
__device__ __forceinline__ DeltaPlace PlaceOfBlock(const DeltaRuleArgs& args) {
  const auto block = static_cast<int>(blockIdx.x);
  return {LoadSequence(args.sequences.rows + blockIdx.y), block / kHeadBlocks,
          block % kHeadBlocks * kDeltaColumns};
}
__device__ __forceinline__ int UniformWarp() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
}

__global__ void __launch_bounds__((kDeltaWarps + kPrepareWarps) * kWarp, 1)
    DeltaRuleKernel(DeltaRuleArgs args) {
  __shared__ DeltaShared block;
  AllowNextGrid();
  const int warp = UniformWarp();
  const DeltaPlace place = PlaceOfBlock(args);
  const DeltaGate gate = LoadGate(args, place.head);
  if (place.sequence.rows <= 0) {
    AwaitPreviousGrids();
    return;
  }
  if (warp < kDeltaWarps) {
    RunTokens(args, place, warp, block);
  } else {
    PrepareTokens<kPrepareWarps>(args, place, gate, warp - kDeltaWarps, block);
  }
}

}  // namespace baton::cuda
