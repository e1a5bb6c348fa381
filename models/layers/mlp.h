// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/ops/matmul.h"
#include "models/layers/linear.h"
#include "models/layers/weights.h"
#include "models/residual/stream.h"
#include "models/step.h"

namespace baton {

// down(act(gate(x)) * up(x)), of a gated activation.
template <MatmulActivation::Kind kActivation>
class GatedMlp {
 public:
  GatedMlp(const WeightScope& w, int64_t hidden, int64_t ffn)
      : gate_up_(w,
                 {{"gate_proj", ffn, split::Outputs(ffn)},
                  {"up_proj", ffn, split::Outputs(ffn)}},
                 hidden),
        down_(w, {{"down_proj", hidden, split::Inputs(ffn)}}, ffn) {}

  Output<Sum::kPartial> operator()(Input&& x, Step& step) const {
    return {Of(x.view(), step), step};
  }
  // x: [rows, hidden]; the result as x, still to be summed over the ranks.
  [[nodiscard]] Scratch Of(ConstView x, Step& step) const {
    const Scratch inner = gate_up_.Gated(x, step, kActivation);  // [rows, ffn]
    return down_(inner.view(), step);
  }

 private:
  Linear gate_up_;
  Linear down_;
};
using GatedSiluMlp = GatedMlp<MatmulActivation::Kind::kSiluMul>;
using GatedGeluMlp = GatedMlp<MatmulActivation::Kind::kGeluMul>;

// max(x, 0)^2.
class Relu2Activation {
 public:
  [[nodiscard]] MatmulActivation AfterMatmul() const {
    return {.kind = MatmulActivation::Kind::kRelu2};
  }
};

// xIELU with learned alphas. They are passed on as stored; the kernel applies
// the softplus.
class XieluActivation {
 public:
  explicit XieluActivation(const WeightScope& w)
      : parameters_{.kind = MatmulActivation::Kind::kXielu,
                    .alpha_p = w.Scalar("alpha_p"),
                    .alpha_n = w.Scalar("alpha_n"),
                    .beta = w.Scalar("beta", 0.5f),
                    .eps = w.Scalar("eps", -1e-6f)} {}
  [[nodiscard]] MatmulActivation AfterMatmul() const { return parameters_; }

 private:
  MatmulActivation parameters_;
};

// down(act(up(x))); there is no gate.
template <typename Activation>
class TwoMatrixMlp {
 public:
  TwoMatrixMlp(const WeightScope& w, int64_t hidden, int64_t ffn,
               Activation activation)
      : up_(w, {{"up_proj", ffn, split::Outputs(ffn)}}, hidden),
        down_(w, {{"down_proj", hidden, split::Inputs(ffn)}}, ffn),
        activation_(std::move(activation)) {}

  Output<Sum::kPartial> operator()(Input&& x, Step& step) const {
    const Scratch inner =  // [rows, ffn]
        up_(x.view(), step, activation_.AfterMatmul());
    return {down_(inner.view(), step), step};
  }

 private:
  Linear up_;
  Linear down_;
  Activation activation_;
};

}  // namespace baton
