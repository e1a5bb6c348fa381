// SPDX-License-Identifier: Apache-2.0
// y = x W^T for any number of rows through cuBLASLt: the recipe of prompts.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

namespace baton::cuda {

enum class LtOut : int { kBf16, kF32 };

// Matrix products on one stream, with a workspace of their own: everything on
// one object is ordered by that stream. bf16 operands, fp32 accumulation, one
// rounding.
//
// The bits of a row of the result do not depend on the number of rows: Prepare
// picks one algorithm (no split of K) for a shape of weight, and every Run uses
// it. Nor do they depend on how fast an algorithm happened to be: only those
// that give the bits of cuBLASLt's first choice compete.
//
// Lifecycle: Create, Prepare once per shape while loading, then Run, which may
// be captured. Thread: the one that owns the stream.
class LtMatmul {
 public:
  struct Weight {
    const void* w = nullptr;  // bf16 [n, k], 16-byte aligned
    int64_t n = 0, k = 0;
    int64_t ldw = 0;  // elements, multiple of 8
  };
  struct Args {
    Weight weight;
    const void* x = nullptr;  // bf16 [m, k], 16-byte aligned
    int64_t m = 0;
    int64_t ldx = 0;      // elements, multiple of 8
    void* out = nullptr;  // [m, n]; must not alias x
    int64_t ldo = 0;      // elements
    LtOut out_type = LtOut::kBf16;
    bool adds = false;  // to what `out` is; f32
  };
  // What Prepare found, for reports.
  struct Choice {
    int candidates = 0;  // algorithms offered
    int same_bits = 0;   // of these, with the bits of the first
    int chosen = 0;      // index among the offered
    float first_ms = 0, chosen_ms = 0;
    int64_t tuning_rows = 0;
  };

  // Null: no handle or no memory.
  [[nodiscard]] static std::unique_ptr<LtMatmul> Create(cudaStream_t stream);
  ~LtMatmul();
  LtMatmul(const LtMatmul&) = delete;
  LtMatmul& operator=(const LtMatmul&) = delete;

  // Chooses the algorithm for weights of this shape; waits for the stream.
  // A shape already prepared is left as it is. NotSupported: none fits.
  [[nodiscard]] cublasStatus_t Prepare(const Weight& weight, LtOut out_type);

  // Submits. InvalidValue: not prepared, or sizes and alignments do not fit.
  // What is added comes last: fl(product + out).
  // Where a row of `out` is no multiple of 16 bytes although n would allow it,
  // there is no way to compute it.
  [[nodiscard]] cublasStatus_t Run(const Args& args);

  [[nodiscard]] const Choice* Find(int64_t n, int64_t k, LtOut out_type) const;

 private:
  using Key = std::tuple<int64_t, int64_t, LtOut>;
  struct Entry;
  struct Trial;

  LtMatmul() = default;
  cublasStatus_t Choose(Args shape, Entry& entry);
  cublasStatus_t Submit(const Args& args, const cublasLtMatmulAlgo_t& algo);
  cublasStatus_t RunPadded(const Args& args, const Entry& entry);

  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, std::unique_ptr<Entry>> entries_;
};

}  // namespace baton::cuda
