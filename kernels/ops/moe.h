// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts: which experts a row gets, the products with their
// matrices, and the sum of what they give.
//
// Numerics contract: all that becomes of a row follows from the row and its
// kind. Its slots are chosen in fp32; on a CPU, and of generated rows on CUDA,
// a product has the bits that Matmul gives it; slots are added in order. Every
// row gets all of its experts: none has a capacity.
//
// A slot is a row's place for one expert: slot t * top + s is the s-th of row
// t. Rows of x may each serve all slots of a row, or one slot.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/ops/matmul.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// For each row the `top` experts with the largest p = softmax(logits), largest
// first and of equal ones the lower index first; their p over the sum of these.
struct RouteTopK {
  static constexpr std::string_view kName = "route_top_k";
  struct Args {
    ConstView logits;  // [tokens, experts] f32
    View experts;      // [tokens, top] i32; a row has no expert twice
    View weights;      // [tokens, top] f32
  };
};

// With s = 1 / (1 + e^-logits) and c = s + bias: for each row, of `groups`
// equal runs of experts the `top_groups` with the largest sum of their two
// largest c; of their experts the `top` with the largest c, largest first; of
// equal ones the lower index first. Their weights: s (without the bias) over
// the sum of these + 1e-20, times `scale`. DeepSeek-V3 (arXiv 2412.19437),
// section 2.1.2.
struct RouteGrouped {
  static constexpr std::string_view kName = "route_grouped";
  struct Args {
    ConstView logits;  // [tokens, experts] f32
    ConstView bias;    // [experts] f32
    int64_t groups;    // of two experts or more, unless there is one
    int64_t top_groups;
    float scale;
    View experts;  // [tokens, top] i32; a row has no expert twice
    View weights;  // [tokens, top] f32
  };
};

// kAsBefore: `experts` and the runs are those of the GroupedMatmul before this
// one in the stream, and nothing has changed them since. A kernel may have kept
// how it sorted the slots.
enum class SlotOrder : uint8_t { kNew, kAsBefore };

// out[slot] = x[row of the slot] W^T, W of the slot's expert.
struct GroupedMatmul {
  static constexpr std::string_view kName = "grouped_matmul";
  struct Args {
    ConstView x;        // [tokens or tokens * top, k], dtype of the weights
    ConstView experts;  // [tokens, top] i32
    std::span<const PackedMatrix> weights;  // [n, k] of each expert
    // [tokens * top, n], dtype of x or f32; must not alias x. Of a gated
    // activation [tokens * top, n / 2], dtype of x.
    View out;
    // Kinds of the tokens, covering all in order; none: all are generated.
    std::span<const RowRun> runs = {};
    MatmulActivation activation = {};  // none, or a gated one
    // [tokens * top, n] as out: room for what a gated activation is applied to,
    // where a kernel has none of its own.
    View product = {};
    SlotOrder order = SlotOrder::kNew;
  };
};

// GroupedMatmul, and Matmul of the same tokens with a matrix that all of them
// have beside their experts. Neither reads what the other writes: one pass
// where the device has a kernel for it.
struct GroupedAndSharedMatmul {
  static constexpr std::string_view kName = "grouped_and_shared_matmul";
  struct Args {
    GroupedMatmul::Args grouped;
    Matmul::Args shared;
  };
};

// out[t] = cast(sum over s of weights[t, s] * y[t * top + s]), in fp32, s
// ascending. (Published code adds in the dtype and by ascending expert; golden
// values in fp32 prefer the single rounding.)
struct CombineExperts {
  static constexpr std::string_view kName = "combine_experts";
  struct Args {
    ConstView y;        // [tokens * top, hidden]
    ConstView weights;  // [tokens, top] f32
    View out;           // [tokens, hidden], dtype of y; must not alias y
    // As out: added to what has been cast, as Add would; none: nothing is.
    ConstView added = {};
  };
};

}  // namespace baton
