// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/base/check.h"
#include "runtime/base/ids.h"

namespace baton {

// The order of a decoder's layers: the whole stack once per loop. The only
// place that turns (loop, layer) into an unrolled layer and back.
class LoopPlan {
 public:
  LoopPlan(int num_layers, int num_loops)
      : num_layers_(num_layers), num_loops_(num_loops) {
    BATON_CHECK(num_layers > 0 && num_loops > 0);
  }

  [[nodiscard]] UnrolledLayer At(int loop, LayerIndex layer) const {
    BATON_CHECK(loop >= 0 && loop < num_loops_);
    BATON_CHECK(layer.value() >= 0 && layer.value() < num_layers_);
    return UnrolledLayer(loop * num_layers_ + layer.value());
  }
  [[nodiscard]] LayerIndex Physical(UnrolledLayer layer) const {
    return LayerIndex(layer.value() % num_layers_);
  }
  [[nodiscard]] bool EndsLoop(UnrolledLayer layer) const {
    return (layer.value() + 1) % num_layers_ == 0;
  }
  [[nodiscard]] bool EndsDecoder(UnrolledLayer layer) const {
    return layer.value() + 1 == num_layers_ * num_loops_;
  }
  [[nodiscard]] int unrolled_layers() const { return num_layers_ * num_loops_; }

 private:
  int num_layers_;
  int num_loops_;
};

}  // namespace baton
