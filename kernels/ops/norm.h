// SPDX-License-Identifier: Apache-2.0
// RMSNorm: y = cast(weight * x / sqrt(mean(x^2) + eps)), all in fp32 with a
// fixed lane order, rounded to the dtype once. (Published code that casts
// before the product with the weight rounds twice and is off by up to one more
// bf16 step; golden values in fp32 prefer the single rounding.)
//
// A residual stream may be f32 where all else is bf16. Kernels are looked up by
// the dtype of all else.
#pragma once

#include <string_view>

#include "runtime/tensor/tensor.h"

namespace baton {

struct RmsNorm {
  static constexpr std::string_view kName = "rms_norm";
  struct Args {
    ConstView x;       // [rows, hidden] or [rows, heads, hidden]; may be f32
    ConstView weight;  // [hidden]
    View out;          // shape of x, dtype of weight; may alias x of its dtype
    float eps;
  };
};

// stream = cast(stream + update), rounded to its dtype; out = norm(stream).
struct AddRmsNorm {
  static constexpr std::string_view kName = "add_rms_norm";
  struct Args {
    View stream;       // [rows, hidden], updated in place; may be f32
    ConstView update;  // [rows, hidden]
    ConstView weight;  // [hidden]
    View out;          // [rows, hidden]; may alias update, not stream
    float eps;
  };
};

// stream = cast(stream + update).
struct Add {
  static constexpr std::string_view kName = "add";
  struct Args {
    View stream;       // [rows, hidden], updated in place; may be f32
    ConstView update;  // [rows, hidden]
  };
};

}  // namespace baton
