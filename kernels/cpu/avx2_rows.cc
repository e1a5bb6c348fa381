// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/vec_avx2.h"
// After the vectors it is written in.
#include "kernels/cpu/rows_inl.h"

namespace baton::cpu {

constexpr InnerLoops<float> kAvx2F32 =
    LoopsWith<float>(&Avx2Matmul, &Avx2Attention, &Avx2LatentAttention);
constexpr InnerLoops<bf16> kAvx2BF16 =
    LoopsWith<bf16>(&Avx2Matmul, &Avx2Attention, &Avx2LatentAttention);

}  // namespace baton::cpu
