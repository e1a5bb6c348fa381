// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "kernels/ops/matmul.h"
#include "models/layers/weights.h"
#include "models/step.h"

namespace baton {

// y = x W^T without bias. W [out, in] is packed once, and may be the rows of
// several tensors of the checkpoint under each other. Of several ranks each has
// the outputs or the inputs that their splits say; then `in` and `out` are its
// own, and a sum over some inputs stays in f32.
class Linear {
 public:
  Linear(const WeightScope& w, std::initializer_list<FusedRows> parts,
         int64_t in)
      : weight_(w.Matrix(std::span(parts.begin(), parts.size()), in)),
        partial_(weight_.matrix.k < in),
        matmul_(w.Kernel<Matmul>()) {}

  [[nodiscard]] int64_t out() const { return weight_.matrix.n; }

  // x: [rows, in]; the result: [rows, out].
  [[nodiscard]] Scratch operator()(
      ConstView x, Step& step, const MatmulActivation& activation = {}) const {
    Scratch y = NewOut(x.dim(0), step);
    Into(x, y.view(), step.batch().runs, step, activation);
    return y;
  }
  // The same of a gated activation: [rows, out / 2].
  [[nodiscard]] Scratch Gated(ConstView x, Step& step,
                              MatmulActivation::Kind kind) const {
    const Scratch product = step.NewScratch(x.dim(0), out());
    Scratch y = step.NewScratch(x.dim(0), out() / 2);
    Matmul::Args args = Args(x, y.view(), step.batch().runs, {.kind = kind});
    args.product = product.view();
    step.Run<Matmul>(matmul_, args);
    return y;
  }
  // x: rows of the kinds that `runs` says (ops/matmul.h); out: [rows, out] in
  // the dtype of x, or f32; not x.
  void Into(ConstView x, View out, std::span<const RowRun> runs, Step& step,
            const MatmulActivation& activation = {}) const {
    step.Run<Matmul>(matmul_, Args(x, out, runs, activation));
  }

  // For ops that multiply beside something else: memory for [rows, out], and
  // what Into submits.
  [[nodiscard]] Scratch NewOut(int64_t rows, Step& step) const {
    return step.NewScratch(partial_ ? DType::kF32 : step.dtype(), rows, out());
  }
  [[nodiscard]] Matmul::Args Args(
      ConstView x, View out, std::span<const RowRun> runs,
      const MatmulActivation& activation = {}) const {
    return {.x = x,
            .weight = weight_.matrix,
            .out = out,
            .runs = runs,
            .activation = activation};
  }

 private:
  PackedWeight weight_;
  bool partial_;
  KernelFn<Matmul> matmul_;
};

}  // namespace baton
