// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

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

// Grouped-query attention with rotary positions over the whole head, or with
// none, and paged keys and values, of which the layer's state says how far back
// rows see. The output projection leaves its sum over ranks to whoever
// reads the stream next.
class GroupedQueryAttention {
 public:
  GroupedQueryAttention(const WeightScope& w, const AttentionShape& shape,
                        const std::optional<RopeFrequencies>& rope,
                        std::optional<PerHeadQueryKeyNorm> norm = std::nullopt)
      : shape_(shape),
        qkv_(w,
             {{"q_proj", shape.heads * shape.head_dim},
              {"k_proj", shape.kv_heads * shape.head_dim},
              {"v_proj", shape.kv_heads * shape.head_dim}},
             shape.hidden),
        norm_(std::move(norm)),
        out_(w, {{"o_proj", shape.hidden}}, shape.heads * shape.head_dim),
        inv_freq_(rope.has_value() ? w.Constant(rope->inv_freq) : Tensor()),
        amplitude_(rope.has_value() ? rope->amplitude : 1),
        rotate_and_store_(w.Kernel<RotateAndStore>()),
        attention_(w.Kernel<PagedAttention>()) {}

  Output<Sum::kPartial> operator()(Input&& x, Step& step) const {
    const int64_t q_columns = shape_.heads * shape_.head_dim;
    const int64_t kv_columns = shape_.kv_heads * shape_.head_dim;
    const Scratch qkv = qkv_(x.view(), step);  // [rows, q | k | v]
    const View all = qkv.view();
    const View q = all.Columns(0, q_columns).Heads(shape_.heads);
    const View k =
        all.Columns(q_columns, q_columns + kv_columns).Heads(shape_.kv_heads);
    const View v =
        all.Columns(q_columns + kv_columns, qkv_.out()).Heads(shape_.kv_heads);
    RotateAndStore::Args entry = {.q = q,
                                  .k = k,
                                  .v = v,
                                  .inv_freq = inv_freq_.view(),
                                  .amplitude = amplitude_,
                                  .pages = step.kv(),
                                  .batch = &step.batch()};
    if (norm_.has_value()) {
      entry.q_norm = norm_->q.view();
      entry.k_norm = norm_->k.view();
      entry.eps = norm_->eps;
    }
    step.Run<RotateAndStore>(rotate_and_store_, entry);
    const Scratch heads = step.NewScratch(x.view().dim(0), q_columns);
    step.Run<PagedAttention>(
        attention_,
        {.q = q,
         .pages = step.kv(),
         .batch = &step.batch(),
         .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
         .out = heads.view().Heads(shape_.heads)});
    return {out_(heads.view(), step), step};
  }

 private:
  AttentionShape shape_;
  Linear qkv_;
  std::optional<PerHeadQueryKeyNorm> norm_;
  Linear out_;
  Tensor inv_freq_;  // [head_dim / 2] f32, or empty
  float amplitude_;
  KernelFn<RotateAndStore> rotate_and_store_;
  KernelFn<PagedAttention> attention_;
};

}  // namespace baton
