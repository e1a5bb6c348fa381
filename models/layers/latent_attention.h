// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/ops/latent_attention.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/weights.h"
#include "models/residual/stream.h"
#include "models/step.h"

namespace baton {

struct LatentAttentionShape {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t latent = 0;
  int64_t own = 0;     // key dimensions that a head has for itself
  int64_t shared = 0;  // and those that it shares with all others
  int64_t value = 0;   // value dimensions of a head

  [[nodiscard]] int64_t HeadWidth() const { return own + shared; }  // of q
  // Of a rank: an equal run of heads, which look at all of a latent.
  [[nodiscard]] LatentAttentionShape OfRank(int ranks) const {
    LatentAttentionShape shape = *this;
    shape.heads = heads / ranks;
    return shape;
  }
};

// Multi-head latent attention without positions, absorbed
// (kernels/ops/latent_attention.h). The checkpoint has one matrix from latents
// to keys and values, head by head: key rows, then value rows. Ranks share the
// heads; each computes and keeps the latents.
class MultiHeadLatentAttention {
 public:
  MultiHeadLatentAttention(const WeightScope& w,
                           const LatentAttentionShape& shape, float latent_eps)
      : shape_(shape.OfRank(w.ranks())),
        q_kv_(w,
              {{"q_proj", shape.heads * shape.HeadWidth(),
                split::Outputs(shape.heads)},
               {"kv_a_proj_with_mqa", shape.latent + shape.shared,
                split::kWhole}},
              shape.hidden),
        norm_(w, "kv_a_layernorm", shape.latent, latent_eps),
        keys_{.most = shape_.heads},
        values_{.most = shape_.heads},
        out_(w, {{"o_proj", shape.hidden, split::Inputs(shape.heads)}},
             shape.heads * shape.value),
        head_matmul_(w.Kernel<HeadMatmul>()),
        latent_write_(w.Kernel<LatentWrite>()),
        attention_(w.Kernel<LatentAttention>()) {
    const WeightScope parts = w.In("kv_b_proj");
    TensorRows rows = {
        .name = w.FullName("kv_b_proj.weight"),
        .shape = {shape.heads * (shape.own + shape.value), shape.latent}};
    for (int64_t h = 0; h < shape.heads; ++h) {
      const WeightScope head = parts.In(std::to_string(h));
      const TensorSplit own = split::OneOf(shape.heads, h);
      head.AddTransposed(
          {.name = "key", .rows = shape.own, .split = own, .elsewhere = rows},
          shape.latent, keys_);
      rows.first += shape.own;
      const FusedRows value = {.name = "value",
                               .rows = shape.value,
                               .split = own,
                               .elsewhere = rows};
      head.AddMatrix({&value, 1}, shape.latent, values_);
      rows.first += shape.value;
    }
  }

  Output<Sum::kPartial> operator()(Input&& x, Step& step) const {
    const int64_t rows = x.view().dim(0);
    const int64_t q_columns = shape_.heads * shape_.HeadWidth();
    const int64_t latents = shape_.heads * shape_.latent;
    const Scratch all = q_kv_(x.view(), step);  // [rows, q | latent | shared]
    const View q = all.view().Columns(0, q_columns);
    const View kept = all.view().Columns(q_columns, q_kv_.out());
    const View latent = kept.Columns(0, shape_.latent);
    norm_.Apply(latent, latent, step);
    step.Run<LatentWrite>(latent_write_, {.rows = kept,
                                          .pages = step.latents(shape_.latent),
                                          .batch = &step.batch()});
    const Scratch q_latent = step.NewScratch(rows, latents);
    step.Run<HeadMatmul>(
        head_matmul_,
        {.x = q, .weights = keys_.matrices, .out = q_latent.view()});
    const Scratch context = step.NewScratch(rows, latents);
    step.Run<LatentAttention>(
        attention_,
        {.q_latent = q_latent.view().Heads(shape_.heads),
         .q = q.Heads(shape_.heads),
         .pages = step.latents(shape_.latent),
         .batch = &step.batch(),
         .scale = 1.0f / std::sqrt(static_cast<float>(shape_.HeadWidth())),
         .out = context.view().Heads(shape_.heads)});
    const Scratch heads = step.NewScratch(rows, shape_.heads * shape_.value);
    step.Run<HeadMatmul>(head_matmul_, {.x = context.view(),
                                        .weights = values_.matrices,
                                        .out = heads.view()});
    return {out_(heads.view(), step), step};
  }

 private:
  LatentAttentionShape shape_;  // of the rank
  Linear q_kv_;
  Norm norm_;
  PackedMatrices keys_;    // [latent, own] of each of the rank's heads
  PackedMatrices values_;  // [value, latent] of each of them
  Linear out_;
  KernelFn<HeadMatmul> head_matmul_;
  KernelFn<LatentWrite> latent_write_;
  KernelFn<LatentAttention> attention_;
};

}  // namespace baton
