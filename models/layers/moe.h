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
#include "models/layers/mlp.h"
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

// The experts' matrices, and the two products with them. Ranks share every
// expert's ffn, so that they have as much to do whichever experts are chosen.
class ExpertMatrices {
 public:
  ExpertMatrices(const WeightScope& w, const ExpertsShape& shape,
                 const ExpertNames& names)
      : shape_(shape),
        gate_up_{.most = shape.experts},
        down_{.most = shape.experts} {
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

  [[nodiscard]] int64_t ffn() const { return down_.matrices[0].k; }  // a rank's
  // inner = silu(gate(x)) * up(x): [slots, ffn]; product: [slots, 2 * ffn].
  [[nodiscard]] GroupedMatmul::Args GateUp(ConstView x, ConstView experts,
                                           View inner, View product,
                                           const Step& step) const {
    return {.x = x,
            .experts = experts,
            .weights = gate_up_.matrices,
            .out = inner,
            .runs = step.batch().runs,
            .activation = {.kind = MatmulActivation::Kind::kSiluMul},
            .product = product};
  }
  // Memory for Down's [slots, hidden], to be summed over the ranks.
  [[nodiscard]] Scratch NewDown(int64_t slots, Step& step) const {
    return step.NewScratch(ffn() < shape_.ffn ? DType::kF32 : step.dtype(),
                           slots, shape_.hidden);
  }
  [[nodiscard]] GroupedMatmul::Args Down(ConstView inner, ConstView experts,
                                         View out, const Step& step) const {
    return {.x = inner,
            .experts = experts,
            .weights = down_.matrices,
            .out = out,
            .runs = step.batch().runs,
            .order = SlotOrder::kAsBefore};
  }

 private:
  static TensorRows RowsFrom(TensorRows stack, int64_t first) {
    stack.first = first;
    return stack;
  }

  ExpertsShape shape_;
  PackedMatrices gate_up_;  // [2 * ffn, hidden]: gate, then up
  PackedMatrices down_;     // [hidden, ffn]
};

// Of each row the sum over its experts of weight * down(silu(gate(x)) * up(x)).
// What an expert gives is summed over the ranks before it is weighed.
class GatedSiluExperts {
 public:
  GatedSiluExperts(const WeightScope& w, const ExpertsShape& shape,
                   const ExpertNames& names)
      : experts_(w, shape, names),
        matmul_(w.Kernel<GroupedMatmul>()),
        combine_(w.Kernel<CombineExperts>()) {}

  Output<Sum::kComplete> operator()(Input&& x, const Routing& routing,
                                    Step& step) const {
    const View chosen = routing.experts.view();  // [rows, top]
    const int64_t slots = chosen.dim(0) * chosen.dim(1);
    const Scratch inner = step.NewScratch(slots, experts_.ffn());
    {
      const Scratch product = step.NewScratch(slots, 2 * experts_.ffn());
      step.Run<GroupedMatmul>(matmul_,
                              experts_.GateUp(x.view(), chosen, inner.view(),
                                              product.view(), step));
    }
    Scratch partial = experts_.NewDown(slots, step);
    step.Run<GroupedMatmul>(
        matmul_, experts_.Down(inner.view(), chosen, partial.view(), step));
    const Scratch down = step.Reduced(std::move(partial), step.tp());
    Scratch sum = step.NewScratch(chosen.dim(0), x.view().dim(1));
    step.Run<CombineExperts>(combine_, {.y = down.view(),
                                        .weights = routing.weights.view(),
                                        .out = sum.view()});
    return {std::move(sum), step};
  }

 private:
  ExpertMatrices experts_;
  KernelFn<GroupedMatmul> matmul_;
  KernelFn<CombineExperts> combine_;
};

// The same, and the output of an MLP that every row has beside its experts,
// which nothing scales.
class SharedGatedSiluExperts {
 public:
  SharedGatedSiluExperts(const WeightScope& w, const ExpertsShape& shape,
                         const ExpertNames& names, const WeightScope& shared,
                         int64_t shared_ffn)
      : experts_(w, shape, names),
        shared_(shared, shape.hidden, shared_ffn),
        matmul_(w.Kernel<GroupedAndSharedMatmul>()),
        combine_(w.Kernel<CombineExperts>()) {}

  Output<Sum::kComplete> operator()(Input&& x, const Routing& routing,
                                    Step& step) const {
    const View chosen = routing.experts.view();  // [rows, top]
    const int64_t rows = chosen.dim(0);
    const int64_t slots = rows * chosen.dim(1);
    const Scratch inner = step.NewScratch(slots, experts_.ffn());
    const Scratch shared_inner = step.NewScratch(rows, shared_.ffn());
    {
      const Scratch product = step.NewScratch(slots, 2 * experts_.ffn());
      const Scratch shared_product = step.NewScratch(rows, 2 * shared_.ffn());
      step.Run<GroupedAndSharedMatmul>(
          matmul_, {.grouped = experts_.GateUp(x.view(), chosen, inner.view(),
                                               product.view(), step),
                    .shared = shared_.GateUp(x.view(), shared_inner.view(),
                                             shared_product.view(), step)});
    }
    Scratch partial = experts_.NewDown(slots, step);
    Scratch shared_partial = shared_.NewDown(rows, step);
    step.Run<GroupedAndSharedMatmul>(
        matmul_,
        {.grouped = experts_.Down(inner.view(), chosen, partial.view(), step),
         .shared =
             shared_.Down(shared_inner.view(), shared_partial.view(), step)});
    const Scratch shared = step.Reduced(std::move(shared_partial), step.tp());
    const Scratch down = step.Reduced(std::move(partial), step.tp());
    Scratch sum = step.NewScratch(rows, x.view().dim(1));
    step.Run<CombineExperts>(combine_, {.y = down.view(),
                                        .weights = routing.weights.view(),
                                        .out = sum.view(),
                                        .added = shared.view()});
    return {std::move(sum), step};
  }

 private:
  ExpertMatrices experts_;
  GatedSiluMlp shared_;
  KernelFn<GroupedAndSharedMatmul> matmul_;
  KernelFn<CombineExperts> combine_;
};

}  // namespace baton
