// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "runtime/base/status.h"
#include "runtime/config/model_config.h"

namespace baton {

// How far back a layer's rows see: over all positions, or over a window.
enum class LayerType { kFull, kSliding };

// `layer_types` of a config.json; empty where it has none. InvalidArgument: an
// unknown type, or not one for each of `num_layers`.
[[nodiscard]] StatusOr<std::vector<LayerType>> ReadLayerTypes(
    const ModelConfig& config, int num_layers);

}  // namespace baton
