// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels as the registry takes them; bf16, but that a residual stream
// may be f32. Each checks its shapes first (InvalidArgument), then submits to
// the stream.
#pragma once

#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/delta_attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/fetch_block.h"
#include "kernels/ops/latent_attention.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/sample.h"
#include "kernels/registry.h"

namespace baton::cuda {

Status PackMatrixCuda(const PackMatrix::Args& args, Stream& stream);
Status MatmulCuda(const Matmul::Args& args, Stream& stream);
Status RouteTopKCuda(const RouteTopK::Args& args, Stream& stream);
Status GroupedMatmulCuda(const GroupedMatmul::Args& args, Stream& stream);
Status GroupedAndSharedMatmulCuda(const GroupedAndSharedMatmul::Args& args,
                                  Stream& stream);
Status CombineExpertsCuda(const CombineExperts::Args& args, Stream& stream);
Status RouteGroupedCuda(const RouteGrouped::Args& args, Stream& stream);
Status ShortConvAndHeadMatmulCuda(const ShortConvAndHeadMatmul::Args& args,
                                  Stream& stream);
Status DeltaRuleNormedCuda(const DeltaRuleNormed::Args& args, Stream& stream);
Status HeadMatmulCuda(const HeadMatmul::Args& args, Stream& stream);
Status LatentWriteCuda(const LatentWrite::Args& args, Stream& stream);
Status LatentAttentionCuda(const LatentAttention::Args& args, Stream& stream);
Status RmsNormCuda(const RmsNorm::Args& args, Stream& stream);
Status AddRmsNormCuda(const AddRmsNorm::Args& args, Stream& stream);
Status RmsNormAddCuda(const RmsNormAdd::Args& args, Stream& stream);
Status AllReduceAddRmsNormCuda(const AllReduceAddRmsNorm::Args& args,
                               Stream& stream);
Status AddCuda(const Add::Args& args, Stream& stream);
Status SiluMulCuda(const SiluMul::Args& args, Stream& stream);
Status GeluMulCuda(const GeluMul::Args& args, Stream& stream);
Status GateHeadsCuda(const GateHeads::Args& args, Stream& stream);
Status Relu2Cuda(const Relu2::Args& args, Stream& stream);
Status XieluCuda(const Xielu::Args& args, Stream& stream);
Status EmbeddingCuda(const Embedding::Args& args, Stream& stream);
Status FetchBlockCuda(const FetchBlock::Args& args, Stream& stream);
Status RotateAndStoreCuda(const RotateAndStore::Args& args, Stream& stream);
Status RotateAndAttendCuda(const RotateAndAttend::Args& args, Stream& stream);
Status PagedAttentionCuda(const PagedAttention::Args& args, Stream& stream);
Status SampleCuda(const Sample::Args& args, Stream& stream);

}  // namespace baton::cuda
