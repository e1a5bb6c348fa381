// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/step_avx512.h"
#include "kernels/cpu/vec_avx512.h"
// After the vectors and steps it is written in.
#include "kernels/cpu/attention_inl.h"

namespace baton::cpu {

void Avx512Attention(const AttentionTile<float>& tile) {
  AttentionQueries(tile);
}
void Avx512Attention(const AttentionTile<bf16>& tile) {
  AttentionQueries(tile);
}

}  // namespace baton::cpu
