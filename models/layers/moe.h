// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts: a router, and the experts' FFNs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/ops/matmul.h"
#include "kernels/ops/moe.h"
#include "models/layers/linear.h"
#include "models/layers/weights.h"
#include "models/residual/stream.h"
#include "models/step.h"

namespace baton {

// Which experts each row gets, and how much of each.
struct Routing {
  Scratch experts;  // [rows, top] i32
  Scratch weights;  // [rows, top] f32
};

// The `top` largest of softmax(gate(x)), over their sum; logits stay in f32.
class SoftmaxRouter {
 public:
  SoftmaxRouter(const WeightScope& w, const FusedRows& gate, int64_t hidden,
                int64_t top)
      : top_(top), gate_(w, {gate}, hidden), route_(w.Kernel<RouteTopK>()) {}

  Routing operator()(ConstView x, Step& step) const {
    const int64_t rows = x.dim(0);
    const Scratch logits = step.NewScratch(DType::kF32, rows, gate_.out());
    gate_.Into(x, logits.view(), step.batch().runs, step);
    Routing routing = {.experts = step.NewScratch(DType::kI32, rows, top_),
                       .weights = step.NewScratch(DType::kF32, rows, top_)};
    step.Run<RouteTopK>(route_, {.logits = logits.view(),
                                 .experts = routing.experts.view(),
                                 .weights = routing.weights.view()});
    return routing;
  }

 private:
  int64_t top_;
  Linear gate_;
  KernelFn<RouteTopK> route_;
};

// Scores are sigmoid(gate(x)). A correction bias helps to choose: the `top`
// experts of the `top_groups` best groups; their weights are the scores over
// the sum of these, times `scale` (kernels/ops/moe.h).
struct GroupedRouting {
  int64_t experts = 0;
  int64_t top = 0;
  int64_t groups = 1;
  int64_t top_groups = 1;
  float scale = 1;
};
class GroupedSigmoidRouter {
 public:
  GroupedSigmoidRouter(const WeightScope& w, int64_t hidden,
                       const GroupedRouting& routing)
      : routing_(routing),
        gate_(w, {{"gate", routing.experts, split::kWhole}}, hidden),
        bias_(w.Constant(
            w.Values("gate.e_score_correction_bias", {routing.experts}))),
        route_(w.Kernel<RouteGrouped>()) {}

  Routing operator()(ConstView x, Step& step) const {
    const int64_t rows = x.dim(0);
    const Scratch logits = step.NewScratch(DType::kF32, rows, gate_.out());
    gate_.Into(x, logits.view(), step.batch().runs, step);
    Routing chosen = {
        .experts = step.NewScratch(DType::kI32, rows, routing_.top),
        .weights = step.NewScratch(DType::kF32, rows, routing_.top)};
    step.Run<RouteGrouped>(route_, {.logits = logits.view(),
                                    .bias = bias_.view(),
                                    .groups = routing_.groups,
                                    .top_groups = routing_.top_groups,
                                    .scale = routing_.scale,
                                    .experts = chosen.experts.view(),
                                    .weights = chosen.weights.view()});
    return chosen;
  }

 private:
  GroupedRouting routing_;
  Linear gate_;
  Tensor bias_;  // [experts] f32
  KernelFn<RouteGrouped> route_;
};

struct ExpertsShape {
  int64_t experts = 0;
  int64_t hidden = 0;
  int64_t ffn = 0;  // of one expert
};

// An expert's matrices as tensors of its own, "<e>.<name>.weight", and where
// files stack those of all: gate_up_stack [experts, gate rows then up rows,
// hidden] and down_stack [experts, hidden, ffn].
struct ExpertNames {
  std::string_view gate, up, down;
  std::string gate_up_stack, down_stack;  // in full

  // Mixtral's, which others took over; `w` is the layer's scope.
  [[nodiscard]] static ExpertNames LikeMixtral(const WeightScope& w) {
    return {.gate = "w1",
            .up = "w3",
            .down = "w2",
            .gate_up_stack = w.FullName("mlp.experts.gate_up_proj"),
            .down_stack = w.FullName("mlp.experts.down_proj")};
  }
};

// Of each row the sum over its experts of weight * down(silu(gate(x)) * up(x)).
// Ranks share every expert's ffn, so that they have as much to do whichever
// experts are chosen; what an expert gives is summed before it is weighed.
class GatedSiluExperts {
 public:
  GatedSiluExperts(const WeightScope& w, const ExpertsShape& shape,
                   const ExpertNames& names)
      : shape_(shape),
        gate_up_{.most = shape.experts},
        down_{.most = shape.experts},
        matmul_(w.Kernel<GroupedMatmul>()),
        combine_(w.Kernel<CombineExperts>()) {
    const int64_t hidden = shape.hidden;
    const int64_t ffn = shape.ffn;
    const TensorRows gate_up = {names.gate_up_stack,
                                {shape.experts, 2 * ffn, hidden}};
    const TensorRows down = {names.down_stack, {shape.experts, hidden, ffn}};
    for (int64_t e = 0; e < shape.experts; ++e) {
      const WeightScope expert = w.Routed(std::to_string(e));
      const FusedRows inner[] = {{names.gate, ffn, split::Outputs(ffn),
                                  RowsFrom(gate_up, e * 2 * ffn)},
                                 {names.up, ffn, split::Outputs(ffn),
                                  RowsFrom(gate_up, e * 2 * ffn + ffn)}};
      expert.AddMatrix(inner, hidden, gate_up_);
      const FusedRows outer[] = {
          {names.down, hidden, split::Inputs(ffn), RowsFrom(down, e * hidden)}};
      expert.AddMatrix(outer, ffn, down_);
    }
  }

  Output<Sum::kComplete> operator()(Input&& x, const Routing& routing,
                                    Step& step) const {
    return {Of(x.view(), routing, {}, step), step};
  }
  // x: [rows, hidden]; the result as x. `added`: as x, added to it, or nothing.
  [[nodiscard]] Scratch Of(ConstView x, const Routing& routing, ConstView added,
                           Step& step) const {
    const int64_t rows = x.dim(0);
    const int64_t slots = rows * routing.experts.view().dim(1);
    const View experts = routing.experts.view();
    const int64_t ffn = down_.matrices[0].k;  // of the rank
    const Scratch inner = step.NewScratch(slots, ffn);
    {
      const Scratch gate_up = step.NewScratch(slots, 2 * ffn);
      step.Run<GroupedMatmul>(
          matmul_, {.x = x,
                    .experts = experts,
                    .weights = gate_up_.matrices,
                    .out = inner.view(),
                    .runs = step.batch().runs,
                    .activation = {.kind = MatmulActivation::Kind::kSiluMul},
                    .product = gate_up.view()});
    }
    Scratch partial = step.NewScratch(
        ffn < shape_.ffn ? DType::kF32 : step.dtype(), slots, shape_.hidden);
    step.Run<GroupedMatmul>(matmul_, {.x = inner.view(),
                                      .experts = experts,
                                      .weights = down_.matrices,
                                      .out = partial.view(),
                                      .runs = step.batch().runs,
                                      .order = SlotOrder::kAsBefore});
    const Scratch down = step.Reduced(std::move(partial), step.tp());
    Scratch sum = step.NewScratch(rows, shape_.hidden);
    step.Run<CombineExperts>(combine_, {.y = down.view(),
                                        .weights = routing.weights.view(),
                                        .out = sum.view(),
                                        .added = added});
    return sum;
  }

 private:
  static TensorRows RowsFrom(TensorRows stack, int64_t first) {
    stack.first = first;
    return stack;
  }

  ExpertsShape shape_;
  PackedMatrices gate_up_;  // [2 * ffn, hidden]: gate, then up
  PackedMatrices down_;     // [hidden, ffn]
  KernelFn<GroupedMatmul> matmul_;
  KernelFn<CombineExperts> combine_;
};

}  // namespace baton
