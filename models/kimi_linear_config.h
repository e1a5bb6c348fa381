// SPDX-License-Identifier: Apache-2.0
// Kimi-Linear's config.json, as it was published and as transformers saves it.
#pragma once

#include <cstdint>
#include <vector>

#include "models/dense_config.h"
#include "models/layers/delta_attention.h"
#include "models/layers/latent_attention.h"
#include "models/layers/moe.h"

namespace baton {

struct KimiLinearConfig : DenseConfig {
  DeltaAttentionShape delta;
  LatentAttentionShape latent;
  GroupedRouting routing;
  int64_t expert_ffn = 0;
  int64_t shared_ffn = 0;            // of the shared experts together
  std::vector<bool> linear_layers;   // the others attend over latents
  std::vector<bool> mixture_layers;  // the others have a dense FFN

  [[nodiscard]] bool IsLinear(LayerIndex layer) const {
    return linear_layers[static_cast<size_t>(layer.value())];
  }
  [[nodiscard]] bool IsMixture(LayerIndex layer) const {
    return mixture_layers[static_cast<size_t>(layer.value())];
  }
  [[nodiscard]] DecoderInfo Info(const std::string& architecture) const {
    DecoderInfo info = DenseConfig::Info(architecture);
    info.experts = routing.experts;
    info.experts_per_row = routing.top;
    return info;
  }
  [[nodiscard]] ExpertsShape Experts() const {
    return {.experts = routing.experts, .hidden = hidden(), .ffn = expert_ffn};
  }
  // A latent of each position, or a slot.
  [[nodiscard]] LayerState State(LayerIndex layer, DType dtype) const;
};

// InvalidArgument: names the key that is missing, out of range or asks for
// maths that there is not; or the two keys of both layouts that disagree.
[[nodiscard]] StatusOr<KimiLinearConfig> ReadKimiLinearConfig(
    const ModelConfig& config);

}  // namespace baton
