// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/step_avx512.h"
#include "kernels/cpu/vec_avx512.h"
// After the vectors and steps it is written in.
#include "kernels/cpu/latent_inl.h"

namespace baton::cpu {

void Avx512LatentAttention(const LatentTile<float>& tile) {
  LatentQueries(tile);
}
void Avx512LatentAttention(const LatentTile<bf16>& tile) {
  LatentQueries(tile);
}

}  // namespace baton::cpu
