// SPDX-License-Identifier: Apache-2.0
// Stands in for the instruction sets that have no loops of their own yet.
#include "kernels/cpu/amx_matmul.h"
#include "kernels/cpu/inner.h"

namespace baton::cpu {
const InnerLoops<float> kAvx2F32 = kReferenceF32;
const InnerLoops<bf16> kAvx2BF16 = kReferenceBF16;
const InnerLoops<float> kAvx512F32 = kReferenceF32;
const InnerLoops<bf16> kAvx512BF16 = kReferenceBF16;
}  // namespace baton::cpu
