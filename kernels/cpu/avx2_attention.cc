// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/step_avx2.h"
#include "kernels/cpu/vec_avx2.h"
// After the vectors and steps it is written in.
#include "kernels/cpu/attention_inl.h"

namespace baton::cpu {

void Avx2Attention(const AttentionTile<float>& tile) { AttentionQueries(tile); }
void Avx2Attention(const AttentionTile<bf16>& tile) { AttentionQueries(tile); }

}  // namespace baton::cpu
