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
#include "runtime/transport/collective.h"

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

// stream = cast(stream + cast(norm(update))), the norm rounded to the dtype of
// the update, the sum to that of the stream.
struct RmsNormAdd {
  static constexpr std::string_view kName = "rms_norm_add";
  struct Args {
    ConstView update;  // [rows, hidden]
    ConstView weight;  // [hidden]
    View stream;       // [rows, hidden], updated in place; may be f32
    float eps;
  };
};

// AddRmsNorm with what Collective::AllReduce makes of the ranks' `partial`, in
// the dtype of all else, for an update: one pass where the device has a kernel
// for it. Enters the group once, as the other ranks do.
struct AllReduceAddRmsNorm {
  static constexpr std::string_view kName = "all_reduce_add_rms_norm";
  struct Args {
    Collective* group;
    ConstView partial;  // [rows, hidden] f32
    View stream;        // [rows, hidden], updated in place; may be f32
    ConstView weight;   // [hidden]
    View out;           // [rows, hidden]; must not alias stream or partial
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
