// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/vec_avx512.h"
// After the vectors it is written in.
#include "kernels/cpu/rows_inl.h"

namespace baton::cpu {

constexpr InnerLoops<float> kAvx512F32 =
    LoopsWith<float>(&Avx512Matmul, &Avx512Attention, &Avx512LatentAttention);
constexpr InnerLoops<bf16> kAvx512BF16 =
    LoopsWith<bf16>(&Avx512Matmul, &Avx512Attention, &Avx512LatentAttention);

}  // namespace baton::cpu
