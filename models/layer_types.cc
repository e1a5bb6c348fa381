// SPDX-License-Identifier: Apache-2.0
#include "models/layer_types.h"

#include <string>

namespace baton {

StatusOr<std::vector<LayerType>> ReadLayerTypes(const ModelConfig& config,
                                                int num_layers) {
  std::vector<LayerType> types;
  if (!config.Has("layer_types")) return types;
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         config.Texts("layer_types"));
  for (const std::string& name : names) {
    if (name == "full_attention") {
      types.push_back(LayerType::kFull);
    } else if (name == "sliding_attention") {
      types.push_back(LayerType::kSliding);
    } else {
      return InvalidArgument(
          "layer_types has \"{}\", expected full_attention or "
          "sliding_attention",
          name);
    }
  }
  if (static_cast<int>(types.size()) != num_layers) {
    return InvalidArgument("layer_types are {}, expected {}, one per layer",
                           types.size(), num_layers);
  }
  return types;
}

}  // namespace baton
