// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/step_avx2.h"
#include "kernels/cpu/vec_avx2.h"
// After the vectors and steps it is written in.
#include "kernels/cpu/matmul_inl.h"

namespace baton::cpu {

void Avx2Matmul(const MatmulTile<float>& tile) {
  MatmulBlock<float, 8, 2, 6>(tile);
}
void Avx2Matmul(const MatmulTile<bf16>& tile) {
  MatmulBlock<bf16, 8, 2, 4>(tile);
}

}  // namespace baton::cpu
