// SPDX-License-Identifier: Apache-2.0
// What kernels keep beside a stream: a workspace, prepared weights, cuBLASLt.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "kernels/cuda/grouped_matmul.h"
#include "kernels/cuda/lt_matmul.h"
#include "kernels/cuda/skinny_matmul.h"
#include "kernels/ops/matmul.h"
#include "runtime/base/status.h"
#include "runtime/tensor/cuda_device.h"

namespace baton::cuda {

// Lives as long as its stream. Owner thread: the stream's.
class Context : public CudaAttachment {
 public:
  // Of this stream; made at the first call.
  [[nodiscard]] static Context& Of(Stream& stream);
  ~Context() override;

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  // Scratch memory for one kernel and its successor. A block that has become
  // too small is kept: recorded graphs use it.
  [[nodiscard]] StatusOr<void*> Workspace(int64_t bytes);
  // Memory for how grouped products sort slots, kept until ForgetPlans: the
  // same key finds it again, filled.
  struct PlanKey {
    const void* experts;
    int64_t tokens;
    RowKind kind;

    auto operator<=>(const PlanKey&) const = default;
  };
  struct KeptPlan {
    void* memory;
    GroupedSort sort;
  };
  [[nodiscard]] StatusOr<KeptPlan> Plan(const PlanKey& key, int64_t slots);
  void ForgetPlans();
  // `count` words that are zero; kernels leave them zero.
  [[nodiscard]] StatusOr<int32_t*> Counters(int64_t count);
  [[nodiscard]] StatusOr<const SkinnyWeight*> Skinny(
      const PackedMatrix& weight);
  // Of the experts' matrices, which are of one shape.
  [[nodiscard]] StatusOr<const GroupedWeights*> Grouped(
      std::span<const PackedMatrix> weights);
  // With an algorithm chosen for the weight's shape.
  [[nodiscard]] StatusOr<LtMatmul*> Lt(const LtMatmul::Weight& weight,
                                       LtOut out);

 private:
  explicit Context(cudaStream_t stream) : stream_(stream) {}

  cudaStream_t stream_;
  // Grows; what was handed out stays.
  struct Pool {
    std::vector<void*> blocks;  // the last one is current
    int64_t bytes = 0;
  };
  StatusOr<void*> Grown(Pool& pool, int64_t bytes);

  Pool workspace_, counters_, plan_memory_;
  std::map<PlanKey, void*> plans_;
  int64_t plan_bytes_ = 0;  // that have been given away
  std::map<std::tuple<const std::byte*, int64_t, int64_t>,
           std::unique_ptr<SkinnyWeight>>
      skinny_;
  struct KeptGroup {
    GroupedWeights weights;
    void* memory = nullptr;  // the arrays, on the device; never given back
  };
  std::map<const std::byte*, KeptGroup> grouped_;  // by the first one's data
  std::unique_ptr<LtMatmul> lt_;
};

[[nodiscard]] inline int64_t RowStrideOf(const PackedMatrix& weight) {
  return PadTo(weight.k, kCudaRowPad);
}
// OK, or Internal with the name of the call.
[[nodiscard]] Status LtStatus(cublasStatus_t status, std::string_view what);

}  // namespace baton::cuda
