// SPDX-License-Identifier: Apache-2.0
// Decoders whose stages have several ranks.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/models/cuts.h"

namespace baton::testing {

// A tiny checkpoint's config with sizes that ranks can share, and random
// weights.
struct Shared {
  explicit Shared(const std::string& name, const nlohmann::json& sizes = {}) {
    nlohmann::json json = nlohmann::json::parse(
        std::ifstream(TinyCheckpoint::Directory(name) + "/config.json"));
    json.update({{"hidden_size", 128},
                 {"num_attention_heads", 8},
                 {"num_key_value_heads", 2},
                 {"head_dim", 32},
                 {"intermediate_size", 512},
                 {"vocab_size", 320}});
    if (json.contains("linear_attn_config")) json.merge_patch(KimiSizes());
    if (!sizes.is_null()) json.merge_patch(sizes);
    config.emplace(ModelConfig::Parse(json.dump(), name).value());
    decoder = FindDecoder(config->architecture()).value();
    info = decoder->describe(*config, DType::kF32).value();
    tensors = decoder->tensors(*config).value();
  }
  static nlohmann::json KimiSizes() {
    return {{"num_key_value_heads", 8},
            {"v_head_dim", 32},
            {"moe_intermediate_size", 256},
            {"linear_attn_config", {{"head_dim", 32}, {"num_heads", 8}}}};
  }
  Stages Whole() const { return {{{0, info.unrolled_layers()}}}; }
  Pipeline Run(DType dtype, const Stages& stages, int ranks) const {
    return {*decoder, *config, *weights, dtype, stages, ranks};
  }

  std::optional<ModelConfig> config;
  const Decoder* decoder = nullptr;
  DecoderInfo info;
  std::vector<TensorDecl> tensors;
  std::unique_ptr<WeightSource> weights = NewRandomWeights(3);
};

inline std::vector<int32_t> Prompt() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 40; ++i) ids.push_back(i * 37 % 320);
  return ids;
}

}  // namespace baton::testing
