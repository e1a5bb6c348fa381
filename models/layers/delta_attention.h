// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "kernels/ops/delta_attention.h"
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

  // Of a rank: an equal run of heads.
  [[nodiscard]] DeltaAttentionShape OfRank(int ranks) const {
    DeltaAttentionShape shape = *this;
    shape.heads = heads / ranks;
    return shape;
  }
  [[nodiscard]] int64_t Wide() const { return heads * head_dim; }
  // Of q, k and v together.
  [[nodiscard]] int64_t Channels() const { return 3 * Wide(); }
  // A sequence's slot: the recurrence's state, then the convolutions'.
  [[nodiscard]] int64_t RecurrentBytes() const {
    return Wide() * head_dim * SizeOf(DType::kF32);
  }
  [[nodiscard]] int64_t SlotBytes(DType dtype) const {
    const int64_t conv = (taps - 1) * Channels() * SizeOf(dtype);
    return PadTo(RecurrentBytes() + conv, kSlotAlignment);
  }
};

// Kimi Delta Attention (kernels/ops/delta_attention.h):
//   q, k, v = heads of silu(conv(W x))
//   o       = delta rule with decay W (W x) and beta W x
//   out     = W (norm(o) * sigmoid(W (W x)))
// There are no positions, and no keys that are kept. Ranks share the heads,
// with their channels and states; the inner of W (W x) is whole on each.
class KimiDeltaAttention {
 public:
  KimiDeltaAttention(const WeightScope& w, const DeltaAttentionShape& shape,
                     float eps)
      : shape_(shape.OfRank(w.ranks())),
        eps_(eps),
        in_(w,
            {{"q_proj", shape.Wide(), split::Outputs(shape.heads)},
             {"k_proj", shape.Wide(), split::Outputs(shape.heads)},
             {"v_proj", shape.Wide(), split::Outputs(shape.heads)},
             {"f_a_proj", shape.head_dim, split::kWhole},
             {"g_a_proj", shape.head_dim, split::kWhole},
             {"b_proj", shape.heads, split::Outputs(shape.heads)}},
            shape.hidden),
        gates_{.most = 2},
        out_(w, {{"o_proj", shape.hidden, split::Inputs(shape.heads)}},
             shape.Wide()),
        taps_(Taps(w, shape)),
        rate_(Rate(w, shape.heads)),
        decay_bias_(w.Constant(
            w.Values("dt_bias", {shape.Wide()}, split::Outputs(shape.heads)),
            {shape_.heads, shape.head_dim})),
        out_norm_(w.Constant(w.Values("o_norm.weight", {shape.head_dim}))),
        conv_and_gates_(w.Kernel<ShortConvAndHeadMatmul>()),
        delta_rule_(w.Kernel<DeltaRuleNormed>()) {
    for (const std::string_view name : {"f_b_proj", "g_b_proj"}) {
      const FusedRows rows = {.name = name,
                              .rows = shape.Wide(),
                              .split = split::Outputs(shape.heads)};
      w.AddMatrix({&rows, 1}, shape.head_dim, gates_);
    }
  }

  Output<Sum::kPartial> operator()(Input&& x, Step& step) const {
    const int64_t channels = shape_.Channels();
    const Scratch all = in_(x.view(), step);  // [rows, qkv | f | g | beta]
    const int64_t beta = channels + 2 * shape_.head_dim;
    const Scratch qkv = step.NewScratch(x.view().dim(0), channels);
    const Scratch gates = step.NewScratch(x.view().dim(0), 2 * shape_.Wide());
    step.Run<ShortConvAndHeadMatmul>(
        conv_and_gates_,
        {.conv = {.x = all.view().Columns(0, channels),
                  .weight = taps_.view(),
                  .states = step.states(shape_.RecurrentBytes()),
                  .batch = &step.batch(),
                  .out = qkv.view()},
         .heads = {.x = all.view().Columns(channels, beta),
                   .weights = gates_.matrices,
                   .out = gates.view()}});
    const Scratch heads = step.NewScratch(x.view().dim(0), shape_.Wide());
    step.Run<DeltaRuleNormed>(
        delta_rule_, {.rule = {.q = Heads(qkv.view(), 0),
                               .k = Heads(qkv.view(), 1),
                               .v = Heads(qkv.view(), 2),
                               .decay = Heads(gates.view(), 0),
                               .beta = all.view().Columns(beta, in_.out()),
                               .rate = rate_.view(),
                               .decay_bias = decay_bias_.view(),
                               .states = step.states(0),
                               .batch = &step.batch(),
                               .out = Heads(heads.view(), 0)},
                      .weight = out_norm_.view(),
                      .gate = Heads(gates.view(), 1),
                      .eps = eps_});
    return {out_(heads.view(), step), step};
  }

 private:
  [[nodiscard]] View Heads(View columns, int64_t part) const {
    return columns.Columns(part * shape_.Wide(), (part + 1) * shape_.Wide())
        .Heads(shape_.heads);
  }

  // [taps, channels] of three tensors [channels of one, 1, taps]; `all`: of all
  // ranks.
  [[nodiscard]] Tensor Taps(const WeightScope& w,
                            const DeltaAttentionShape& all) const {
    const int64_t channels = shape_.Channels();
    std::vector<float> taps(static_cast<size_t>(shape_.taps * channels));
    int64_t first = 0;
    for (const std::string_view name :
         {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
      const std::vector<float> one =
          w.Values(name, {all.Wide(), 1, all.taps}, split::Outputs(all.heads));
      for (size_t i = 0; i < one.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        const int64_t channel = first + at / shape_.taps;
        taps[static_cast<size_t>(at % shape_.taps * channels + channel)] =
            one[i];
      }
      first += shape_.Wide();
    }
    return w.Constant(taps, {shape_.taps, channels});
  }

  // [heads] of exp(A_log), in double and rounded once; `heads`: of all ranks,
  // which lie in columns.
  [[nodiscard]] static Tensor Rate(const WeightScope& w, int64_t heads) {
    std::vector<float> rate =
        w.Values("A_log", {1, 1, heads, 1}, split::Inputs(heads));
    std::transform(rate.begin(), rate.end(), rate.begin(), [](float log) {
      return static_cast<float>(std::exp(static_cast<double>(log)));
    });
    return w.Constant(rate);
  }

  DeltaAttentionShape shape_;  // of the rank
  float eps_;
  Linear in_;
  PackedMatrices gates_;  // [heads * head_dim, head_dim]: of decays, of outputs
  Linear out_;
  Tensor taps_;        // [taps, channels] f32
  Tensor rate_;        // [heads] f32
  Tensor decay_bias_;  // [heads, head_dim] f32
  Tensor out_norm_;    // [head_dim] f32
  KernelFn<ShortConvAndHeadMatmul> conv_and_gates_;
  KernelFn<DeltaRuleNormed> delta_rule_;
};

}  // namespace baton
