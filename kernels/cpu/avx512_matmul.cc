// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/step_avx512.h"
#include "kernels/cpu/vec_avx512.h"
// After the vectors and steps it is written in.
#include "kernels/cpu/matmul_inl.h"

namespace baton::cpu {

void Avx512Matmul(const MatmulTile<float>& tile) {
  MatmulBlock<float, 4, 4, 6>(tile);
}
void Avx512Matmul(const MatmulTile<bf16>& tile) {
  MatmulBlock<bf16, 4, 4, 6>(tile);
}

}  // namespace baton::cpu
