// SPDX-License-Identifier: Apache-2.0
// Kimi Delta Attention (arXiv 2510.26692, section 3): linear attention whose
// state a gated delta rule updates, the short convolutions before it and the
// gated norm behind it.
//
// A sequence's state takes the same bytes however long it is. It lies in the
// sequence's slot (SequenceSpan::state_slot), one pool of slots a layer. A new
// sequence's slot is zeros; each op reads its part of the slot, goes through
// the rows of the sequence in order, and leaves there what the next row needs.
//
// Numerics contract: the recurrence is defined token by token, in fp32, with
// one order of additions; so a row's bits do not depend on how its sequence was
// cut into visits.
#pragma once

#include <string_view>

#include "kernels/ops/batch.h"
#include "kernels/ops/latent_attention.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// A part of the slots of one layer.
struct StateSlots {
  std::byte* data = nullptr;  // of slot 0; every slot's is aligned for f32
  int64_t num_slots = 0;
  int64_t slot_bytes = 0;  // from one slot to the next
};

// Depthwise and causal: with u = the rows of a sequence and zeros before them,
//   out[t] = cast(silu(sum over w of weight[w] * u[t - (taps - 1) + w])),
// in fp32, w ascending. State: the last taps - 1 rows of u, oldest first,
// [taps - 1, channels] in the dtype of x.
struct ShortConv {
  static constexpr std::string_view kName = "short_conv";
  struct Args {
    ConstView x;       // [tokens, channels]
    ConstView weight;  // [taps, channels] f32
    StateSlots states;
    const AttentionBatch* batch;
    View out;  // [tokens, channels], dtype of x; must not alias x
  };
};

// ShortConv and HeadMatmul of the same rows, neither of which reads what the
// other writes: one pass where the device has a kernel for it.
struct ShortConvAndHeadMatmul {
  static constexpr std::string_view kName = "short_conv_and_head_matmul";
  struct Args {
    ShortConv::Args conv;
    HeadMatmul::Args heads;
  };
};

// For every head, with S its state [dim of keys, dim of values], and
//   q^ = q / sqrt(sum(q^2) + 1e-6) / sqrt(dim),  k^ = k / sqrt(sum(k^2) + 1e-6)
//   a  = exp(-rate * softplus(decay + decay_bias)),  b = 1 / (1 + exp(-beta)):
//   S   = diag(a) S
//   S   = S + k^ (b (v - S^T k^))^T
//   out = cast(S^T q^)
// All in fp32; sums over keys ascend. State: S of all heads, f32.
struct DeltaRule {
  static constexpr std::string_view kName = "delta_rule";
  struct Args {
    ConstView q, k, v;     // [tokens, heads, dim]
    ConstView decay;       // [tokens, heads, dim]
    ConstView beta;        // [tokens, heads]
    ConstView rate;        // [heads] f32
    ConstView decay_bias;  // [heads, dim] f32
    StateSlots states;
    const AttentionBatch* batch;
    View out;  // [tokens, heads, dim], dtype of q; must not alias inputs
  };
};

// out = cast(weight * x / sqrt(mean(x^2) + eps) / (1 + exp(-gate))), the mean
// over each head, all in fp32.
struct GatedRmsNorm {
  static constexpr std::string_view kName = "gated_rms_norm";
  struct Args {
    ConstView x;       // [tokens, heads, dim]
    ConstView weight;  // [dim] f32
    ConstView gate;    // [tokens, heads, dim]
    View out;          // as x; may alias x
    float eps;
  };
};

// DeltaRule, then GatedRmsNorm of its `out` in place: one pass where the device
// has a kernel for it.
struct DeltaRuleNormed {
  static constexpr std::string_view kName = "delta_rule_normed";
  struct Args {
    DeltaRule::Args rule;
    ConstView weight;  // [dim] f32
    ConstView gate;    // [tokens, heads, dim]
    float eps;
  };
};

}  // namespace baton
