// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/ops/activation.h"
#include "models/layers/linear.h"
#include "models/layers/weights.h"
#include "models/residual/stream.h"
#include "models/step.h"

namespace baton {

// down(silu(gate(x)) * up(x)).
class GatedSiluMlp {
 public:
  GatedSiluMlp(const WeightScope& w, int64_t hidden, int64_t ffn)
      : ffn_(ffn),
        gate_up_(w, {{"gate_proj", ffn}, {"up_proj", ffn}}, hidden),
        down_(w, {{"down_proj", hidden}}, ffn),
        silu_mul_(w.Kernel<SiluMul>()) {}

  Output<Sum::kPartial> operator()(Input&& x, Step& step) const {
    const Scratch gate_up = gate_up_(x.view(), step);  // [rows, gate | up]
    const Scratch inner = step.NewScratch(x.view().dim(0), ffn_);
    step.Run<SiluMul>(silu_mul_,
                      {.gate_up = gate_up.view(), .out = inner.view()});
    return {down_(inner.view(), step), step};
  }

 private:
  int64_t ffn_;
  Linear gate_up_;
  Linear down_;
  KernelFn<SiluMul> silu_mul_;
};

// max(x, 0)^2, in place.
class Relu2Activation {
 public:
  explicit Relu2Activation(const WeightScope& w) : relu2_(w.Kernel<Relu2>()) {}
  void operator()(View x, Step& step) const {
    step.Run<Relu2>(relu2_, {.x = x, .out = x});
  }

 private:
  KernelFn<Relu2> relu2_;
};

// xIELU with learned alphas, in place. The alphas are passed on as stored; the
// kernel applies the softplus.
class XieluActivation {
 public:
  explicit XieluActivation(const WeightScope& w)
      : alpha_p_(w.Scalar("alpha_p")),
        alpha_n_(w.Scalar("alpha_n")),
        beta_(w.Scalar("beta", 0.5f)),
        eps_(w.Scalar("eps", -1e-6f)),
        xielu_(w.Kernel<Xielu>()) {}
  void operator()(View x, Step& step) const {
    step.Run<Xielu>(xielu_, {.x = x,
                             .out = x,
                             .alpha_p = alpha_p_,
                             .alpha_n = alpha_n_,
                             .beta = beta_,
                             .eps = eps_});
  }

 private:
  float alpha_p_, alpha_n_, beta_, eps_;
  KernelFn<Xielu> xielu_;
};

// down(act(up(x))); there is no gate.
template <typename Activation>
class TwoMatrixMlp {
 public:
  TwoMatrixMlp(const WeightScope& w, int64_t hidden, int64_t ffn,
               Activation activation)
      : up_(w, {{"up_proj", ffn}}, hidden),
        down_(w, {{"down_proj", hidden}}, ffn),
        activation_(std::move(activation)) {}

  Output<Sum::kPartial> operator()(Input&& x, Step& step) const {
    const Scratch inner = up_(x.view(), step);  // [rows, ffn]
    activation_(inner.view(), step);
    return {down_(inner.view(), step), step};
  }

 private:
  Linear up_;
  Linear down_;
  Activation activation_;
};

}  // namespace baton
