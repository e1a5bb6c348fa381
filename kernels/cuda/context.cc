// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/context.h"

#include <algorithm>
#include <cstring>

namespace baton::cuda {
namespace {

// Waits for what was submitted to cudaStreamPerThread, which nothing records.
// Calls without a stream may return before memory has what they put there
// (copies of pageable memory, too), and our streams do not wait for theirs.
cudaError_t Finish(cudaError_t submitted) {
  return submitted == cudaSuccess ? cudaStreamSynchronize(cudaStreamPerThread)
                                  : submitted;
}

}  // namespace

Context& Context::Of(Stream& stream) {
  const cudaStream_t cuda = CudaStreamOf(stream);  // makes the GPU current
  std::unique_ptr<CudaAttachment>& attached = CudaAttachmentOf(stream);
  if (attached == nullptr) attached.reset(new Context(cuda));
  return static_cast<Context&>(*attached);
}

Context::~Context() {
  for (void* block : workspace_.blocks) cudaFree(block);
  for (void* block : counters_.blocks) cudaFree(block);
  for (void* block : plan_memory_.blocks) cudaFree(block);
  // Those of `grouped_` stay: tensor maps are read through a cache that is not
  // told of what a copy puts in their place, unless each block fences them
  // (fence.proxy.tensormap). So no other maps may come to lie there.
}

StatusOr<void*> Context::Grown(Pool& pool, int64_t bytes) {
  if (bytes > pool.bytes) {
    constexpr int64_t kLeast = int64_t{1} << 20;
    const int64_t size = std::max({bytes, 2 * pool.bytes, kLeast});
    void* block = nullptr;
    if (cudaMalloc(&block, static_cast<size_t>(size)) != cudaSuccess) {
      cudaGetLastError();
      return ResourceExhausted("allocate a workspace of {} bytes", size);
    }
    pool.blocks.push_back(block);
    pool.bytes = size;
    // At once, even while the stream records.
    BATON_RETURN_IF_ERROR(
        CudaStatus(Finish(cudaMemsetAsync(block, 0, static_cast<size_t>(size),
                                          cudaStreamPerThread)),
                   "clear a workspace"));
  }
  return pool.blocks.empty() ? nullptr : pool.blocks.back();
}

StatusOr<void*> Context::Workspace(int64_t bytes) {
  return Grown(workspace_, bytes);
}

StatusOr<Context::KeptPlan> Context::Plan(const PlanKey& key, int64_t slots) {
  if (const auto found = plans_.find(key); found != plans_.end()) {
    return KeptPlan{.memory = found->second, .sort = GroupedSort::kDone};
  }
  const int64_t end = plan_bytes_ + GroupedPlanBytes(slots);
  BATON_ASSIGN_OR_RETURN(void* const block, Grown(plan_memory_, end));
  void* const memory = static_cast<std::byte*>(block) + plan_bytes_;
  plan_bytes_ = end;
  plans_.emplace(key, memory);
  return KeptPlan{.memory = memory, .sort = GroupedSort::kNeeded};
}

void Context::ForgetPlans() {
  plans_.clear();
  plan_bytes_ = 0;
}

StatusOr<int32_t*> Context::Counters(int64_t count) {
  BATON_ASSIGN_OR_RETURN(
      void* const words,
      Grown(counters_, count * static_cast<int64_t>(sizeof(int32_t))));
  return static_cast<int32_t*>(words);
}

StatusOr<const SkinnyWeight*> Context::Skinny(const PackedMatrix& weight) {
  std::unique_ptr<SkinnyWeight>& kept =
      skinny_[{weight.data, weight.n, weight.k}];
  if (kept == nullptr) {
    auto made = std::make_unique<SkinnyWeight>();
    BATON_RETURN_IF_ERROR(CudaStatus(
        MakeSkinnyWeight(weight.data, weight.n, weight.k, RowStrideOf(weight),
                         made.get(), weight.halves),
        "matmul: describe a weight"));
    kept = std::move(made);
  }
  return kept.get();
}

StatusOr<const GroupedWeights*> Context::Grouped(
    std::span<const PackedMatrix> weights) {
  if (weights.empty()) return InvalidArgument("grouped_matmul: no experts");
  if (auto found = grouped_.find(weights[0].data); found != grouped_.end()) {
    return &found->second.weights;
  }
  const size_t count = weights.size();
  const size_t map_bytes = count * sizeof(CUtensorMap);
  std::vector<std::byte> arrays(2 * map_bytes + count * sizeof(const void*));
  KeptGroup group = {.weights = {.experts = static_cast<int64_t>(count),
                                 .n = weights[0].n,
                                 .k = weights[0].k,
                                 .ldw = RowStrideOf(weights[0]),
                                 .halves = weights[0].halves}};
  for (size_t e = 0; e < count; ++e) {
    BATON_ASSIGN_OR_RETURN(const SkinnyWeight* one, Skinny(weights[e]));
    std::memcpy(arrays.data() + e * sizeof(CUtensorMap), &one->map,
                sizeof(CUtensorMap));
    std::memcpy(arrays.data() + map_bytes + e * sizeof(CUtensorMap),
                &one->pairs, sizeof(CUtensorMap));
    std::memcpy(arrays.data() + 2 * map_bytes + e * sizeof(const void*),
                &one->w, sizeof(const void*));
    group.weights.leaves = one->leaves;
    group.weights.plain |= one->plain;
  }
  constexpr std::string_view kWhat = "grouped_matmul: describe the experts";
  BATON_RETURN_IF_ERROR(
      CudaStatus(cudaMalloc(&group.memory, arrays.size()), kWhat));
  auto* to = static_cast<std::byte*>(group.memory);
  group.weights.maps = reinterpret_cast<const CUtensorMap*>(to);
  group.weights.pairs = reinterpret_cast<const CUtensorMap*>(to + map_bytes);
  group.weights.pointers =
      reinterpret_cast<const void* const*>(to + 2 * map_bytes);
  const GroupedWeights& kept =
      grouped_.emplace(weights[0].data, group).first->second.weights;
  if (Status copied = CudaStatus(
          Finish(cudaMemcpyAsync(to, arrays.data(), arrays.size(),
                                 cudaMemcpyHostToDevice, cudaStreamPerThread)),
          kWhat);
      !copied.ok()) {
    grouped_.erase(weights[0].data);
    cudaFree(to);
    return copied;
  }
  return &kept;
}

StatusOr<LtMatmul*> Context::Lt(const LtMatmul::Weight& weight, LtOut out) {
  if (lt_ == nullptr) {
    lt_ = LtMatmul::Create(stream_);
    if (lt_ == nullptr) return Internal("cuBLASLt cannot be set up");
  }
  BATON_RETURN_IF_ERROR(
      LtStatus(lt_->Prepare(weight, out), "matmul: choose an algorithm"));
  return lt_.get();
}

Status LtStatus(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return OkStatus();
  return Internal("{}: cuBLASLt: {}", what, cublasLtGetStatusString(status));
}

}  // namespace baton::cuda
