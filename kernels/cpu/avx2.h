// SPDX-License-Identifier: Apache-2.0
// The larger inner loops for AVX2, each in a file of its own.
#pragma once

#include "kernels/cpu/inner.h"

namespace baton::cpu {

void Avx2Matmul(const MatmulTile<float>& tile);
void Avx2Matmul(const MatmulTile<bf16>& tile);
void Avx2Attention(const AttentionTile<float>& tile);
void Avx2Attention(const AttentionTile<bf16>& tile);
void Avx2LatentAttention(const LatentTile<float>& tile);
void Avx2LatentAttention(const LatentTile<bf16>& tile);

}  // namespace baton::cpu
