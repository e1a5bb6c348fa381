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
    const Scratch inner = gate_up_.Gated(x.view(), step, kActivation);
    return {down_(inner.view(), step), step};  // inner: [rows, ffn]
  }

  // For ops that multiply beside something else: its two products, and memory
  // for the second one.
  [[nodiscard]] int64_t ffn() const { return gate_up_.out() / 2; }
  // inner: [rows, ffn]; product: [rows, 2 * ffn].
  [[nodiscard]] Matmul::Args GateUp(ConstView x, View inner, View product,
                                    const Step& step) const {
    Matmul::Args args =
        gate_up_.Args(x, inner, step.batch().runs, {.kind = kActivation});
    args.product = product;
    return args;
  }
  [[nodiscard]] Scratch NewDown(int64_t rows, Step& step) const {
    return down_.NewOut(rows, step);
  }
  [[nodiscard]] Matmul::Args Down(ConstView inner, View out,
                                  const Step& step) const {
    return down_.Args(inner, out, step.batch().runs);
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
