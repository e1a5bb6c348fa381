// SPDX-License-Identifier: Apache-2.0
// The inner loops of the CPU kernels: plain memory in, plain memory out, no
// checks, no threads. One table per instruction set and dtype; the op's file
// (norm.cc, matmul.cc, ...) checks shapes, splits the work and calls these.
//
// Files that are compiled for an instruction set include this header and
// intrinsics only, so that no inline function of a shared header is emitted
// with instructions the machine may not have.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/xielu.h"
#include "kernels/registry.h"
#include "runtime/tensor/dtype.h"

namespace baton::cpu {

// Rows of x against one block of 64 packed outputs.
template <typename T>
struct MatmulTile {
  const T* x;        // [rows, k], zero-padded to k
  int64_t x_stride;  // elements between rows
  int64_t rows;
  const T* block;  // bf16 [k/2][64][2], f32 [k][64]
  int64_t k;       // padded
  int leaves;
  float* out;  // [rows][64]
  bool fetches_pages;
};

// Query vectors that share a KV head, over the spans of one sequence.
template <typename T>
struct AttentionTile {
  static constexpr int kMaxQueries = 24;
  int queries;
  const T* query[kMaxQueries];   // each [head_dim]
  T* out[kMaxQueries];           // each [head_dim]
  int64_t visible[kMaxQueries];  // end of the keys it sees; does not decrease
  int64_t first[kMaxQueries];    // the first key it sees; does not decrease
  const int32_t* pages;          // of the sequence
  const std::byte* keys;         // this head's keys in page 0
  const std::byte* values;       // this head's values in page 0
  int64_t page_bytes;            // between pages
  int64_t head_dim;
  float scale;
  float* scratch;  // AttentionScratch(head_dim) floats
};

[[nodiscard]] constexpr int64_t AttentionScratch(int64_t head_dim) {
  return AttentionTile<float>::kMaxQueries * (2 * head_dim + 64) + 256;
}

// Query heads of one row over the latents of its sequence.
template <typename T>
struct LatentTile {
  static constexpr int kMaxQueries = 8;
  int queries;
  const T* latent_query[kMaxQueries];  // each [latent]
  const T* shared_query[kMaxQueries];  // each [width - latent]
  T* out[kMaxQueries];                 // each [latent]
  int64_t visible;                     // tokens that all of them see
  const int32_t* pages;                // of the sequence
  const std::byte* data;               // page 0: [16][width]
  int64_t page_bytes;                  // between pages
  int64_t latent;
  int64_t width;
  float scale;
  float* scratch;  // LatentScratch(width) floats
};

[[nodiscard]] constexpr int64_t LatentScratch(int64_t width) {
  return LatentTile<float>::kMaxQueries * (3 * (width + 16) + 64 + 2);
}

// Channels of a sequence's rows through a causal convolution.
template <typename T>
struct ConvTile {
  const T* x;  // [rows, channels]
  int64_t x_stride;
  const T* before;  // [taps - 1, channels]: the rows before x
  int64_t before_stride;
  const float* weight;  // [taps, channels]
  int64_t weight_stride;
  T* out;  // [rows, channels]
  int64_t out_stride;
  int64_t rows;
  int64_t taps;
  int64_t channels;
};

// Rows that lie apart.
template <typename T>
struct Strided {
  T* data;
  int64_t stride;
};

// One head of a sequence's rows through the delta rule.
template <typename T>
struct DeltaTile {
  static constexpr int64_t kRun = 16;  // rows that are prepared together
  Strided<const T> q, k, v, decay;     // [rows, dim]
  Strided<const T> beta;               // [rows, 1]
  float rate;
  const float* decay_bias;  // [dim]
  float* state;             // [dim, dim]
  Strided<T> out;           // [rows, dim]
  int64_t rows;
  int64_t dim;
  float q_scale;   // 1 / sqrt(dim)
  float* scratch;  // DeltaScratch(dim) floats
};

[[nodiscard]] constexpr int64_t DeltaScratch(int64_t dim) {
  return DeltaTile<float>::kRun * (3 * dim + 1);
}

template <typename T>
struct InnerLoops {
  void (*rms_norm)(const T* x, const T* weight, T* out, int64_t n, float eps);
  void (*add)(T* stream, const T* update, int64_t n);
  // The same on a stream that is f32 whatever T is.
  void (*wide_rms_norm)(const float* x, const T* weight, T* out, int64_t n,
                        float eps);
  void (*wide_add)(float* stream, const T* update, int64_t n);
  void (*silu_mul)(const T* gate, const T* up, T* out, int64_t n);
  void (*gelu_mul)(const T* gate, const T* up, T* out, int64_t n);
  void (*relu2)(const T* x, T* out, int64_t n);
  void (*xielu)(const T* x, T* out, int64_t n, const XieluConstants& c);
  // cos and sin [half] of position * inv_freq, times amplitude.
  void (*rope_angles)(const float* inv_freq, int32_t position, float amplitude,
                      float* cos, float* sin, int64_t half);
  void (*rope)(T* head, const float* cos, const float* sin, int64_t half);
  void (*narrow)(const float* x, T* out, int64_t n);
  void (*matmul)(const MatmulTile<T>& tile);
  void (*attention)(const AttentionTile<T>& tile);
  void (*latent_attention)(const LatentTile<T>& tile);
  void (*short_conv)(const ConvTile<T>& tile);
  void (*delta_rule)(const DeltaTile<T>& tile);  // leaves the state behind
  void (*gated_rms_norm)(const T* x, const float* weight, const T* gate, T* out,
                         int64_t n, float eps);
  // Of n > 0 values: the largest, and the sum of e^((x - shift) * factor).
  float (*max)(const float* x, int64_t n);
  double (*sum_exp)(const float* x, float shift, float factor, int64_t n);
};

extern const InnerLoops<float> kReferenceF32;
extern const InnerLoops<bf16> kReferenceBF16;
extern const InnerLoops<float> kAvx2F32;
extern const InnerLoops<bf16> kAvx2BF16;
extern const InnerLoops<float> kAvx512F32;
extern const InnerLoops<bf16> kAvx512BF16;

// Whether this machine's cores stream faster with FetchAhead (prefetch.h).
[[nodiscard]] bool FetchesPages();

// The loops of `isa`; kAmx shares those of kAvx512 (its matmul is apart).
template <typename T>
[[nodiscard]] const InnerLoops<T>& LoopsOf(CpuIsa isa);
template <>
const InnerLoops<float>& LoopsOf<float>(CpuIsa isa);
template <>
const InnerLoops<bf16>& LoopsOf<bf16>(CpuIsa isa);

}  // namespace baton::cpu
