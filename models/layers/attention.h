// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "kernels/ops/attention.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
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

// What happens to queries and keys between projection and rotation: nothing.
struct PlainQueryKey {
  void operator()(View q, View k, Step& step) const {}
};

// An RMSNorm over each head's dimensions, one weight [head_dim] for all heads.
struct PerHeadQueryKeyNorm {
  PerHeadQueryKeyNorm(const WeightScope& w, int64_t head_dim, float eps)
      : q_norm(w, "q_norm", head_dim, eps),
        k_norm(w, "k_norm", head_dim, eps) {}
  void operator()(View q, View k, Step& step) const {
    q_norm.Apply(q, q, step);
    k_norm.Apply(k, k, step);
  }
  Norm q_norm, k_norm;
};

// Grouped-query attention with rotary positions over the whole head and paged
// keys and values. The output projection leaves its sum over ranks to whoever
// reads the stream next.
template <typename QueryKey = PlainQueryKey>
class GroupedQueryAttention {
 public:
  GroupedQueryAttention(const WeightScope& w, const AttentionShape& shape,
                        RopeFrequencies rope, QueryKey query_key = {})
      : shape_(shape),
        qkv_(w,
             {{"q_proj", shape.heads * shape.head_dim},
              {"k_proj", shape.kv_heads * shape.head_dim},
              {"v_proj", shape.kv_heads * shape.head_dim}},
             shape.hidden),
        query_key_(std::move(query_key)),
        out_(w, {{"o_proj", shape.hidden}}, shape.heads * shape.head_dim),
        inv_freq_(std::move(rope.inv_freq)),
        amplitude_(rope.amplitude),
        rope_(w.Kernel<Rope>()),
        kv_write_(w.Kernel<KvWrite>()),
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
    query_key_(q, k, step);
    Rotate(q, step);
    Rotate(k, step);
    step.Run<KvWrite>(
        kv_write_,
        {.k = k, .v = v, .pages = step.kv(), .batch = &step.batch()});
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
  void Rotate(View heads, Step& step) const {
    step.Run<Rope>(rope_, {.x = heads,
                           .positions = step.batch().positions,
                           .inv_freq = inv_freq_,
                           .amplitude = amplitude_});
  }

  AttentionShape shape_;
  Linear qkv_;
  QueryKey query_key_;
  Linear out_;
  std::vector<float> inv_freq_;  // [head_dim / 2]
  float amplitude_;
  KernelFn<Rope> rope_;
  KernelFn<KvWrite> kv_write_;
  KernelFn<PagedAttention> attention_;
};

}  // namespace baton
