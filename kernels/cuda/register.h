// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/registry.h"

namespace baton {

// Every op that has a CUDA kernel; bf16.
void RegisterCudaKernels(KernelRegistry& registry);

}  // namespace baton
