// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "models/layers/linear.h"
#include "models/layers/weights.h"
#include "models/residual/stream.h"
#include "models/step.h"
#include "runtime/config/model_config.h"

namespace baton {

struct AttentionShape {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  [[nodiscard]] int64_t QueryColumns() const { return heads * head_dim; }
  [[nodiscard]] int64_t KeyColumns() const { return kv_heads * head_dim; }

  // Of a rank: an equal run of heads, with the KV heads that these look at.
  [[nodiscard]] AttentionShape OfRank(int ranks) const {
    AttentionShape shape = *this;
    shape.heads = heads / ranks;
    shape.kv_heads = std::max<int64_t>(1, kv_heads / ranks);
    return shape;
  }
};

// An RMSNorm over each head's dimensions, one weight [head_dim] for all heads.
struct PerHeadQueryKeyNorm {
  PerHeadQueryKeyNorm(const WeightScope& w, int64_t head_dim, float eps)
      : q(w.Vector("q_norm", head_dim)),
        k(w.Vector("k_norm", head_dim)),
        eps(eps) {}
  Tensor q, k;  // [head_dim]
  float eps;
};

// What lies between the projections of an attention: rotary positions over the
// first dimensions of each head, or none, and softmax over paged keys and
// values, of which the layer's state says how far back rows see. A rank has its
// share of the heads.
class PagedHeads {
 public:
  PagedHeads(const WeightScope& w, const AttentionShape& shape,
             const std::optional<RopeFrequencies>& rope,
             std::optional<PerHeadQueryKeyNorm> norm = std::nullopt)
      : shape_(shape.OfRank(w.ranks())),
        norm_(std::move(norm)),
        inv_freq_(rope.has_value() ? w.Constant(rope->inv_freq) : Tensor()),
        amplitude_(rope.has_value() ? rope->amplitude : 1),
        attend_(w.Kernel<RotateAndAttend>()) {}

  // qkv: [rows, q | k | v | ...], of which q and k hold anything then; the
  // result: [rows, heads * head_dim].
  [[nodiscard]] Scratch operator()(View qkv, Step& step) const {
    const int64_t k_begin = shape_.QueryColumns();
    const int64_t v_begin = k_begin + shape_.KeyColumns();
    RotateAndStore::Args entry = {
        .q = qkv.Columns(0, k_begin).Heads(shape_.heads),
        .k = qkv.Columns(k_begin, v_begin).Heads(shape_.kv_heads),
        .v = qkv.Columns(v_begin, v_begin + shape_.KeyColumns())
                 .Heads(shape_.kv_heads),
        .inv_freq = inv_freq_.view(),
        .amplitude = amplitude_,
        .pages = step.kv(),
        .batch = &step.batch()};
    if (norm_.has_value()) {
      entry.q_norm = norm_->q.view();
      entry.k_norm = norm_->k.view();
      entry.eps = norm_->eps;
    }
    Scratch heads = step.NewScratch(qkv.dim(0), k_begin);
    step.Run<RotateAndAttend>(
        attend_,
        {.entry = entry,
         .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
         .out = heads.view().Heads(shape_.heads)});
    return heads;
  }

 private:
  AttentionShape shape_;  // of the rank
  std::optional<PerHeadQueryKeyNorm> norm_;
  Tensor inv_freq_;  // [rotated dimensions / 2] f32, or empty
  float amplitude_;
  KernelFn<RotateAndAttend> attend_;
};

// Grouped-query attention. The output projection leaves its sum over ranks to
// whoever reads the stream next.
class GroupedQueryAttention {
 public:
  GroupedQueryAttention(const WeightScope& w, const AttentionShape& shape,
                        const std::optional<RopeFrequencies>& rope,
                        std::optional<PerHeadQueryKeyNorm> norm = std::nullopt)
      : qkv_(w,
             {{"q_proj", shape.QueryColumns(), split::Outputs(shape.heads)},
              {"k_proj", shape.KeyColumns(),
               split::SharedOutputs(shape.kv_heads)},
              {"v_proj", shape.KeyColumns(),
               split::SharedOutputs(shape.kv_heads)}},
             shape.hidden),
        heads_(w, shape, rope, std::move(norm)),
        out_(w, {{"o_proj", shape.hidden, split::Inputs(shape.heads)}},
             shape.QueryColumns()) {}

  Output<Sum::kPartial> operator()(Input&& x, Step& step) const {
    const Scratch qkv = qkv_(x.view(), step);
    const Scratch heads = heads_(qkv.view(), step);
    return {out_(heads.view(), step), step};
  }

 private:
  Linear qkv_;
  PagedHeads heads_;
  Linear out_;
};

// Grouped-query attention whose heads are scaled, before the output projection,
// by sigmoids of a projection of their own of the same input. Files have
// queries, keys and values under each other in one tensor.
class HeadGatedAttention {
 public:
  HeadGatedAttention(const WeightScope& w, const AttentionShape& shape,
                     const RopeFrequencies& rope)
      : gates_(shape.OfRank(w.ranks()).heads),
        qkvg_(w,
              {{"q_k_v_proj", shape.QueryColumns() + 2 * shape.KeyColumns(),
                split::QueryKeyValue(shape.heads, shape.kv_heads)},
               {"g_proj", shape.heads, split::Outputs(shape.heads)}},
              shape.hidden),
        heads_(w, shape, rope),
        gate_(w.Kernel<GateHeads>()),
        out_(w, {{"out_proj", shape.hidden, split::Inputs(shape.heads)}},
             shape.QueryColumns()) {}

  Output<Sum::kPartial> operator()(Input&& x, Step& step) const {
    const Scratch qkvg = qkvg_(x.view(), step);  // [rows, q | k | v | gates]
    const Scratch heads = heads_(qkvg.view(), step);
    step.Run<GateHeads>(gate_, {.x = heads.view().Heads(gates_),
                                .gate = qkvg.view().Columns(
                                    qkvg_.out() - gates_, qkvg_.out())});
    return {out_(heads.view(), step), step};
  }

 private:
  int64_t gates_;  // one a head of the rank
  Linear qkvg_;
  PagedHeads heads_;
  KernelFn<GateHeads> gate_;
  Linear out_;
};

}  // namespace baton
