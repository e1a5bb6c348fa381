// SPDX-License-Identifier: Apache-2.0
// The CPU kernels as the registry takes them: T is the element type, kIsa the
// instruction set. Each checks its shapes first (InvalidArgument), then runs on
// the pool of the stream.
#pragma once

#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/delta_attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/latent_attention.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/sample.h"
#include "kernels/registry.h"

namespace baton::cpu {

template <typename T>
Status PackMatrixCpu(const PackMatrix::Args& args, Stream& stream);
template <typename T>
Status EmbeddingCpu(const Embedding::Args& args, Stream& stream);
template <typename T>
Status GateHeadsCpu(const GateHeads::Args& args, Stream& stream);
template <typename T>
Status KvWriteCpu(const KvWrite::Args& args, Stream& stream);
template <typename T>
Status CombineExpertsCpu(const CombineExperts::Args& args, Stream& stream);
Status RouteTopKCpu(const RouteTopK::Args& args, Stream& stream);
Status RouteGroupedCpu(const RouteGrouped::Args& args, Stream& stream);
template <typename T>
Status LatentWriteCpu(const LatentWrite::Args& args, Stream& stream);

template <typename T, CpuIsa kIsa>
Status MatmulCpu(const Matmul::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status GroupedMatmulCpu(const GroupedMatmul::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status GroupedAndSharedMatmulCpu(const GroupedAndSharedMatmul::Args& args,
                                 Stream& stream);
template <typename T, CpuIsa kIsa>
Status RmsNormCpu(const RmsNorm::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status AddRmsNormCpu(const AddRmsNorm::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status RmsNormAddCpu(const RmsNormAdd::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status AllReduceAddRmsNormCpu(const AllReduceAddRmsNorm::Args& args,
                              Stream& stream);
template <typename T, CpuIsa kIsa>
Status AddCpu(const Add::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status SiluMulCpu(const SiluMul::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status GeluMulCpu(const GeluMul::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status Relu2Cpu(const Relu2::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status XieluCpu(const Xielu::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status RopeCpu(const Rope::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status RotateAndStoreCpu(const RotateAndStore::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status PagedAttentionCpu(const PagedAttention::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status RotateAndAttendCpu(const RotateAndAttend::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status HeadMatmulCpu(const HeadMatmul::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status LatentAttentionCpu(const LatentAttention::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status ShortConvCpu(const ShortConv::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status ShortConvAndHeadMatmulCpu(const ShortConvAndHeadMatmul::Args& args,
                                 Stream& stream);
template <typename T, CpuIsa kIsa>
Status DeltaRuleCpu(const DeltaRule::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status GatedRmsNormCpu(const GatedRmsNorm::Args& args, Stream& stream);
template <typename T, CpuIsa kIsa>
Status DeltaRuleNormedCpu(const DeltaRuleNormed::Args& args, Stream& stream);
template <CpuIsa kIsa>
Status SampleCpu(const Sample::Args& args, Stream& stream);

}  // namespace baton::cpu

// Instantiates `Kernel<T, isa>` for every element type and instruction set.
#define BATON_INSTANTIATE_CPU(Kernel, Op)                                      \
  template Status Kernel<float, CpuIsa::kReference>(const Op::Args&, Stream&); \
  template Status Kernel<float, CpuIsa::kAvx2>(const Op::Args&, Stream&);      \
  template Status Kernel<float, CpuIsa::kAvx512>(const Op::Args&, Stream&);    \
  template Status Kernel<float, CpuIsa::kAmx>(const Op::Args&, Stream&);       \
  template Status Kernel<bf16, CpuIsa::kReference>(const Op::Args&, Stream&);  \
  template Status Kernel<bf16, CpuIsa::kAvx2>(const Op::Args&, Stream&);       \
  template Status Kernel<bf16, CpuIsa::kAvx512>(const Op::Args&, Stream&);     \
  template Status Kernel<bf16, CpuIsa::kAmx>(const Op::Args&, Stream&)
