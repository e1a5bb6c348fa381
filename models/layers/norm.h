// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/ops/norm.h"
#include "models/layers/weights.h"
#include "models/step.h"

namespace baton {

// RMSNorm over the last dimension (kernels/ops/norm.h).
class Norm {
 public:
  Norm(const WeightScope& w, std::string_view name, int64_t size, float eps)
      : weight_(w.Vector(name, size)),
        eps_(eps),
        norm_(w.Kernel<RmsNorm>()),
        add_norm_(w.Kernel<AddRmsNorm>()),
        norm_add_(w.Kernel<RmsNormAdd>()),
        reduce_add_norm_(w.Kernel<AllReduceAddRmsNorm>()) {}

  // x: [rows, size] or [rows, heads, size]; out may alias x.
  void Apply(ConstView x, View out, Step& step) const {
    step.Run<RmsNorm>(
        norm_, {.x = x, .weight = weight_.view(), .out = out, .eps = eps_});
  }
  // stream += update, rounded; out = norm(stream). out may alias update.
  void AddAndApply(View stream, ConstView update, View out, Step& step) const {
    step.Run<AddRmsNorm>(add_norm_, {.stream = stream,
                                     .update = update,
                                     .weight = weight_.view(),
                                     .out = out,
                                     .eps = eps_});
  }

  // The same with the ranks' sum of `partial` for an update; out aliases
  // nothing.
  void ReduceAddAndApply(View stream, ConstView partial, View out,
                         Step& step) const {
    step.Run<AllReduceAddRmsNorm>(reduce_add_norm_, {.group = &step.tp(),
                                                     .partial = partial,
                                                     .stream = stream,
                                                     .weight = weight_.view(),
                                                     .out = out,
                                                     .eps = eps_});
  }
  // stream += norm(update), which is rounded first.
  void ApplyAndAdd(ConstView update, View stream, Step& step) const {
    step.Run<RmsNormAdd>(norm_add_, {.update = update,
                                     .weight = weight_.view(),
                                     .stream = stream,
                                     .eps = eps_});
  }

 private:
  Tensor weight_;  // [size]
  float eps_;
  KernelFn<RmsNorm> norm_;
  KernelFn<AddRmsNorm> add_norm_;
  KernelFn<RmsNormAdd> norm_add_;
  KernelFn<AllReduceAddRmsNorm> reduce_add_norm_;
};

}  // namespace baton
