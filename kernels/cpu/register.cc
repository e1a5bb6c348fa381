// SPDX-License-Identifier: Apache-2.0
// The list of CPU kernels.
#include "kernels/cpu/kernels.h"
#include "kernels/registry.h"

namespace baton {
namespace {

template <typename T, CpuIsa kIsa>
void RegisterFor(KernelRegistry& r) {
  constexpr DeviceKind kCpu = DeviceKind::kCpu;
  constexpr DType kType = kDTypeOf<T>;
  r.Add<PackMatrix>(kCpu, kType, &cpu::PackMatrixCpu<T>);
  r.Add<Matmul>(kCpu, kType, &cpu::MatmulCpu<T, kIsa>);
  r.Add<GroupedMatmul>(kCpu, kType, &cpu::GroupedMatmulCpu<T, kIsa>);
  r.Add<GroupedAndSharedMatmul>(kCpu, kType,
                                &cpu::GroupedAndSharedMatmulCpu<T, kIsa>);
  r.Add<CombineExperts>(kCpu, kType, &cpu::CombineExpertsCpu<T>);
  r.Add<RmsNorm>(kCpu, kType, &cpu::RmsNormCpu<T, kIsa>);
  r.Add<AddRmsNorm>(kCpu, kType, &cpu::AddRmsNormCpu<T, kIsa>);
  r.Add<RmsNormAdd>(kCpu, kType, &cpu::RmsNormAddCpu<T, kIsa>);
  r.Add<AllReduceAddRmsNorm>(kCpu, kType,
                             &cpu::AllReduceAddRmsNormCpu<T, kIsa>);
  r.Add<Add>(kCpu, kType, &cpu::AddCpu<T, kIsa>);
  r.Add<SiluMul>(kCpu, kType, &cpu::SiluMulCpu<T, kIsa>);
  r.Add<GeluMul>(kCpu, kType, &cpu::GeluMulCpu<T, kIsa>);
  r.Add<GateHeads>(kCpu, kType, &cpu::GateHeadsCpu<T>);
  r.Add<Relu2>(kCpu, kType, &cpu::Relu2Cpu<T, kIsa>);
  r.Add<Xielu>(kCpu, kType, &cpu::XieluCpu<T, kIsa>);
  r.Add<Embedding>(kCpu, kType, &cpu::EmbeddingCpu<T>);
  r.Add<Rope>(kCpu, kType, &cpu::RopeCpu<T, kIsa>);
  r.Add<KvWrite>(kCpu, kType, &cpu::KvWriteCpu<T>);
  r.Add<RotateAndStore>(kCpu, kType, &cpu::RotateAndStoreCpu<T, kIsa>);
  r.Add<PagedAttention>(kCpu, kType, &cpu::PagedAttentionCpu<T, kIsa>);
  r.Add<RotateAndAttend>(kCpu, kType, &cpu::RotateAndAttendCpu<T, kIsa>);
  r.Add<HeadMatmul>(kCpu, kType, &cpu::HeadMatmulCpu<T, kIsa>);
  r.Add<LatentWrite>(kCpu, kType, &cpu::LatentWriteCpu<T>);
  r.Add<LatentAttention>(kCpu, kType, &cpu::LatentAttentionCpu<T, kIsa>);
  r.Add<ShortConv>(kCpu, kType, &cpu::ShortConvCpu<T, kIsa>);
  r.Add<ShortConvAndHeadMatmul>(kCpu, kType,
                                &cpu::ShortConvAndHeadMatmulCpu<T, kIsa>);
  r.Add<DeltaRule>(kCpu, kType, &cpu::DeltaRuleCpu<T, kIsa>);
  r.Add<GatedRmsNorm>(kCpu, kType, &cpu::GatedRmsNormCpu<T, kIsa>);
  r.Add<DeltaRuleNormed>(kCpu, kType, &cpu::DeltaRuleNormedCpu<T, kIsa>);
  // Logits are f32 whatever the dtype of the model.
  r.Add<RouteTopK>(kCpu, kType, &cpu::RouteTopKCpu);
  r.Add<RouteGrouped>(kCpu, kType, &cpu::RouteGroupedCpu);
  r.Add<Sample>(kCpu, kType, &cpu::SampleCpu<kIsa>);
}

template <CpuIsa kIsa>
void RegisterBoth(KernelRegistry& r) {
  RegisterFor<float, kIsa>(r);
  RegisterFor<bf16, kIsa>(r);
}

}  // namespace

void RegisterCpuKernels(KernelRegistry& registry, CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kReference:
      return RegisterBoth<CpuIsa::kReference>(registry);
    case CpuIsa::kAvx2:
      return RegisterBoth<CpuIsa::kAvx2>(registry);
    case CpuIsa::kAvx512:
      return RegisterBoth<CpuIsa::kAvx512>(registry);
    case CpuIsa::kAmx:
      return RegisterBoth<CpuIsa::kAmx>(registry);
  }
}

}  // namespace baton
