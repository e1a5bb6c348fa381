// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/ops/matmul.h"

namespace baton {
class ThreadPool;
}

namespace baton::cpu {

// bf16 matmul on AMX tiles, for checked arguments with at least one row.
void MatmulAmx(const Matmul::Args& args, ThreadPool& pool);

}  // namespace baton::cpu
