// SPDX-License-Identifier: Apache-2.0
// Element-wise activations; fp32 inside, one rounding at the end.
#pragma once

#include <string_view>

#include "runtime/tensor/tensor.h"

namespace baton {

// out = silu(gate) * up, silu(x) = x / (1 + e^-x).
struct SiluMul {
  static constexpr std::string_view kName = "silu_mul";
  struct Args {
    ConstView gate_up;  // [tokens, 2 * ffn]: gate columns, then up columns
    View out;           // [tokens, ffn]
  };
};

// out = gelu(gate) * up, gelu(x) = x / 2 * (1 + erf(x / sqrt(2))).
struct GeluMul {
  static constexpr std::string_view kName = "gelu_mul";
  struct Args {
    ConstView gate_up;  // [tokens, 2 * ffn]: gate columns, then up columns
    View out;           // [tokens, ffn]
  };
};

// x = sigmoid(gate) * x, a gate for each head.
struct GateHeads {
  static constexpr std::string_view kName = "gate_heads";
  struct Args {
    View x;          // [tokens, heads, head_dim], in place
    ConstView gate;  // [tokens, heads]
  };
};

// out = max(x, 0)^2.
struct Relu2 {
  static constexpr std::string_view kName = "relu2";
  struct Args {
    ConstView x;  // [tokens, ffn]
    View out;     // as x; may alias x
  };
};

// xIELU, with sp(z) = ln(1 + e^z), Ap = sp(alpha_p), An = beta + sp(alpha_n):
//   x > 0:  Ap x^2 + beta x
//   x <= 0: (expm1(min(x, eps)) - x) An + beta x
struct Xielu {
  static constexpr std::string_view kName = "xielu";
  struct Args {
    ConstView x;             // [tokens, ffn]
    View out;                // as x; may alias x
    float alpha_p, alpha_n;  // raw, as stored
    float beta, eps;
  };
};

}  // namespace baton
