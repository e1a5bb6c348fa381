// SPDX-License-Identifier: Apache-2.0
// Sampling from logits on the device, with the meaning of kernels/ops/sample.h:
// filters in the order temperature, top-k, top-p, min-p; ties to lower ids; one
// Philox number per (seed, position); the first kept token in order of id whose
// cumulative weight exceeds it.
//
// Weights e^((logit - largest) / temperature) are fp32, then fixed point with
// 44 bits behind the point, so that sums are exact and their order is free. A
// NaN logit is the worst and has no weight. The bits of a row's result depend
// on that row alone. The CPU's may differ in the last bits, and where a number
// or a share falls that close to a border.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace baton::cuda {

inline constexpr int kMaxTopLogprobs = 64;

struct SampleRow {
  float temperature = 0;  // 0: greedy
  int32_t top_k = 0;      // 0: all
  float top_p = 1;        // in (0, 1]
  float min_p = 0;        // in [0, 1]
  uint64_t seed = 0;
  int64_t position = 0;      // of the token being chosen
  int32_t top_logprobs = 0;  // at most kMaxTopLogprobs
  int32_t forced = -1;       // >= 0: report this token
  int32_t digest = 0;        // not 0: hash the row
  int32_t token_slot = -1;   // >= 0: also store the token at tokens[token_slot]
};

struct SampleLogprob {
  int32_t token;
  float logprob;
};

struct SampleOut {
  int32_t token;
  float logprob;  // of token, before temperature and filters
  // 0xcbf29ce484222325 plus the sum over all i, modulo 2^64, of
  // SampleMix(i << 32 | bits of logit i): not the CPU's FNV-1a, which is
  // sequential. 0 if not asked for.
  uint64_t digest;
  int32_t num_top;
  int32_t unused;                      // 0
  SampleLogprob top[kMaxTopLogprobs];  // best first; zeros after num_top
};

// Rows from `count` on have no result.
struct SampleOuts {
  SampleOut* rows;  // [count]: of the device, or pinned memory of the host
  int64_t count;
};

// The finaliser of SplitMix64.
[[nodiscard]] __host__ __device__ constexpr uint64_t SampleMix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct SampleArgs {
  const float* logits;  // [rows, vocab]
  int64_t logits_stride;
  int64_t rows, vocab;  // vocab 1 to 2^18
  // [rows] and one, device, 16-byte aligned; read before the wait for earlier
  // grids.
  const SampleRow* how;
  const SampleOuts* outs;
  int32_t* tokens;  // device; may be null if no row has a slot
  void* scratch;    // SampleScratchBytes(rows, vocab), 16-byte aligned
};

[[nodiscard]] int64_t SampleScratchBytes(int64_t rows, int64_t vocab);

// Zero rows submit nothing. invalidValue: vocab out of range, more than 65535
// rows, alignment.
[[nodiscard]] cudaError_t SampleRows(const SampleArgs& args,
                                     cudaStream_t stream);

}  // namespace baton::cuda
