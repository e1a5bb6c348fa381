// SPDX-License-Identifier: Apache-2.0
// The list of CUDA kernels.
#include "kernels/cuda/register.h"

#include "kernels/cuda/kernels.h"

namespace baton {

void RegisterCudaKernels(KernelRegistry& registry) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  constexpr DType kType = DType::kBF16;
  registry.Add<PackMatrix>(kCuda, kType, &cuda::PackMatrixCuda);
  registry.Add<Matmul>(kCuda, kType, &cuda::MatmulCuda);
  registry.Add<RouteTopK>(kCuda, kType, &cuda::RouteTopKCuda);
  registry.Add<GroupedMatmul>(kCuda, kType, &cuda::GroupedMatmulCuda);
  registry.Add<GroupedAndSharedMatmul>(kCuda, kType,
                                       &cuda::GroupedAndSharedMatmulCuda);
  registry.Add<CombineExperts>(kCuda, kType, &cuda::CombineExpertsCuda);
  registry.Add<RouteGrouped>(kCuda, kType, &cuda::RouteGroupedCuda);
  registry.Add<ShortConvAndHeadMatmul>(kCuda, kType,
                                       &cuda::ShortConvAndHeadMatmulCuda);
  registry.Add<DeltaRuleNormed>(kCuda, kType, &cuda::DeltaRuleNormedCuda);
  registry.Add<HeadMatmul>(kCuda, kType, &cuda::HeadMatmulCuda);
  registry.Add<LatentWrite>(kCuda, kType, &cuda::LatentWriteCuda);
  registry.Add<LatentAttention>(kCuda, kType, &cuda::LatentAttentionCuda);
  registry.Add<RmsNorm>(kCuda, kType, &cuda::RmsNormCuda);
  registry.Add<AddRmsNorm>(kCuda, kType, &cuda::AddRmsNormCuda);
  registry.Add<RmsNormAdd>(kCuda, kType, &cuda::RmsNormAddCuda);
  registry.Add<AllReduceAddRmsNorm>(kCuda, kType,
                                    &cuda::AllReduceAddRmsNormCuda);
  registry.Add<Add>(kCuda, kType, &cuda::AddCuda);
  registry.Add<SiluMul>(kCuda, kType, &cuda::SiluMulCuda);
  registry.Add<GeluMul>(kCuda, kType, &cuda::GeluMulCuda);
  registry.Add<GateHeads>(kCuda, kType, &cuda::GateHeadsCuda);
  registry.Add<Relu2>(kCuda, kType, &cuda::Relu2Cuda);
  registry.Add<Xielu>(kCuda, kType, &cuda::XieluCuda);
  registry.Add<Embedding>(kCuda, kType, &cuda::EmbeddingCuda);
  registry.Add<RotateAndStore>(kCuda, kType, &cuda::RotateAndStoreCuda);
  registry.Add<PagedAttention>(kCuda, kType, &cuda::PagedAttentionCuda);
  registry.Add<RotateAndAttend>(kCuda, kType, &cuda::RotateAndAttendCuda);
  // Logits are f32 whatever the dtype of the model.
  registry.Add<Sample>(kCuda, DType::kF32, &cuda::SampleCuda);
  registry.Add<FetchBlock>(kCuda, kType, &cuda::FetchBlockCuda);
}

}  // namespace baton
