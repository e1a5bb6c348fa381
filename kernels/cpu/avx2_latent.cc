// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/step_avx2.h"
#include "kernels/cpu/vec_avx2.h"
// After the vectors and steps it is written in.
#include "kernels/cpu/latent_inl.h"

namespace baton::cpu {

void Avx2LatentAttention(const LatentTile<float>& tile) { LatentQueries(tile); }
void Avx2LatentAttention(const LatentTile<bf16>& tile) { LatentQueries(tile); }

}  // namespace baton::cpu
