// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/skinny_matmul.h"
#include "kernels/ops/matmul.h"
#include "runtime/base/status.h"

namespace baton::cuda {

// InvalidArgument: what does not fit together.
[[nodiscard]] Status MatchMatmul(const Matmul::Args& args);

[[nodiscard]] SkinnyActivation KindOf(const MatmulActivation& a);

// Rows [first, first + rows) of x to `out`, of as many rows as args.out, as the
// kernel of generated rows takes them.
[[nodiscard]] SkinnyArgs SkinnyArgsOf(const Matmul::Args& args, View out,
                                      int64_t first, int64_t rows,
                                      const MatmulActivation& activation);

}  // namespace baton::cuda
