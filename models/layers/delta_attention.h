// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "kernels/ops/delta_attention.h"
#include "kernels/ops/latent_attention.h"
#include "models/layers/linear.h"
#include "models/layers/weights.h"
#include "models/residual/stream.h"
#include "models/step.h"

namespace baton {

struct DeltaAttentionShape {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t taps = 0;  // of the convolutions

  // Of q, k and v together.
  [[nodiscard]] int64_t Channels() const { return 3 * heads * head_dim; }
  // A sequence's slot: the recurrence's state, then the convolutions'.
  [[nodiscard]] int64_t RecurrentBytes() const {
    return heads * head_dim * head_dim * SizeOf(DType::kF32);
  }
  [[nodiscard]] int64_t SlotBytes(DType dtype) const {
    constexpr int64_t kAligned = 64;
    const int64_t conv = (taps - 1) * Channels() * SizeOf(dtype);
    return PadTo(RecurrentBytes() + conv, kAligned);
  }
};

// Kimi Delta Attention (kernels/ops/delta_attention.h):
//   q, k, v = heads of silu(conv(W x))
//   o       = delta rule with decay W (W x) and beta W x
//   out     = W (norm(o) * sigmoid(W (W x)))
// There are no positions, and no keys that are kept.
class KimiDeltaAttention {
 public:
  KimiDeltaAttention(const WeightScope& w, const DeltaAttentionShape& shape,
                     float eps)
      : shape_(shape),
        eps_(eps),
        in_(w,
            {{"q_proj", Wide()},
             {"k_proj", Wide()},
             {"v_proj", Wide()},
             {"f_a_proj", shape.head_dim},
             {"g_a_proj", shape.head_dim},
             {"b_proj", shape.heads}},
            shape.hidden),
        out_(w, {{"o_proj", shape.hidden}}, Wide()),
        taps_(Taps(w)),
        rate_(Rate(w)),
        decay_bias_(w.Constant(w.Values("dt_bias", {Wide()}),
                               {shape.heads, shape.head_dim})),
        out_norm_(w.Constant(w.Values("o_norm.weight", {shape.head_dim}))),
        head_matmul_(w.Kernel<HeadMatmul>()),
        short_conv_(w.Kernel<ShortConv>()),
        delta_rule_(w.Kernel<DeltaRule>()),
        gated_norm_(w.Kernel<GatedRmsNorm>()) {
    for (const std::string_view name : {"f_b_proj", "g_b_proj"}) {
      const FusedRows rows = {.name = name, .rows = Wide()};
      gates_.Add(w.Matrix({&rows, 1}, shape.head_dim));
    }
  }

  Output<Sum::kPartial> operator()(Input&& x, Step& step) const {
    const int64_t channels = shape_.Channels();
    const Scratch all = in_(x.view(), step);  // [rows, qkv | f | g | beta]
    const int64_t beta = channels + 2 * shape_.head_dim;
    const Scratch gates = step.NewScratch(x.view().dim(0), 2 * Wide());
    step.Run<HeadMatmul>(head_matmul_, {.x = all.view().Columns(channels, beta),
                                        .weights = gates_.matrices,
                                        .out = gates.view()});
    const Scratch qkv = step.NewScratch(x.view().dim(0), channels);
    step.Run<ShortConv>(short_conv_,
                        {.x = all.view().Columns(0, channels),
                         .weight = taps_.view(),
                         .states = step.states(shape_.RecurrentBytes()),
                         .batch = &step.batch(),
                         .out = qkv.view()});
    const Scratch heads = step.NewScratch(x.view().dim(0), Wide());
    step.Run<DeltaRule>(delta_rule_,
                        {.q = Heads(qkv.view(), 0),
                         .k = Heads(qkv.view(), 1),
                         .v = Heads(qkv.view(), 2),
                         .decay = Heads(gates.view(), 0),
                         .beta = all.view().Columns(beta, in_.out()),
                         .rate = rate_.view(),
                         .decay_bias = decay_bias_.view(),
                         .states = step.states(0),
                         .batch = &step.batch(),
                         .out = Heads(heads.view(), 0)});
    step.Run<GatedRmsNorm>(gated_norm_, {.x = Heads(heads.view(), 0),
                                         .weight = out_norm_.view(),
                                         .gate = Heads(gates.view(), 1),
                                         .out = Heads(heads.view(), 0),
                                         .eps = eps_});
    return {out_(heads.view(), step), step};
  }

 private:
  [[nodiscard]] int64_t Wide() const { return shape_.heads * shape_.head_dim; }
  [[nodiscard]] View Heads(View columns, int64_t part) const {
    return columns.Columns(part * Wide(), (part + 1) * Wide())
        .Heads(shape_.heads);
  }

  // [taps, channels] of three tensors [channels of one, 1, taps].
  [[nodiscard]] Tensor Taps(const WeightScope& w) const {
    const int64_t channels = shape_.Channels();
    std::vector<float> taps(static_cast<size_t>(shape_.taps * channels));
    int64_t first = 0;
    for (const std::string_view name :
         {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
      const std::vector<float> one = w.Values(name, {Wide(), 1, shape_.taps});
      for (size_t i = 0; i < one.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        const int64_t channel = first + at / shape_.taps;
        taps[static_cast<size_t>(at % shape_.taps * channels + channel)] =
            one[i];
      }
      first += Wide();
    }
    return w.Constant(taps, {shape_.taps, channels});
  }

  // [heads] of exp(A_log), in double and rounded once.
  [[nodiscard]] Tensor Rate(const WeightScope& w) const {
    std::vector<float> rate = w.Values("A_log", {1, 1, shape_.heads, 1});
    std::transform(rate.begin(), rate.end(), rate.begin(), [](float log) {
      return static_cast<float>(std::exp(static_cast<double>(log)));
    });
    return w.Constant(rate);
  }

  DeltaAttentionShape shape_;
  float eps_;
  Linear in_;
  PackedMatrices gates_;  // [heads * head_dim, head_dim]: of decays, of outputs
  Linear out_;
  Tensor taps_;        // [taps, channels] f32
  Tensor rate_;        // [heads] f32
  Tensor decay_bias_;  // [heads, head_dim] f32
  Tensor out_norm_;    // [head_dim] f32
  KernelFn<HeadMatmul> head_matmul_;
  KernelFn<ShortConv> short_conv_;
  KernelFn<DeltaRule> delta_rule_;
  KernelFn<GatedRmsNorm> gated_norm_;
};

}  // namespace baton
