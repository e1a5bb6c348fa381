// SPDX-License-Identifier: Apache-2.0
// EXAONE 4.0 (arXiv 2507.11407; huggingface.co/LGAI-EXAONE/EXAONE-4.0-32B).
// Odd in four ways. Post-norm: sublayers read the stream as it is, and what
// they compute is normed before it is added. Queries and keys are RMS-normed
// per head before rotation. The larger model is a hybrid: three layers of four
// see a window, and the fourth sees all positions but rotates nothing; where
// there is no window at all, every layer rotates. The smaller one has a tied
// head.
#include <algorithm>
#include <utility>

#include "models/decoder_slice.h"
#include "models/layer_types.h"
#include "models/layers/attention.h"
#include "models/layers/mlp.h"
#include "models/layers/norm.h"
#include "models/residual/boundary.h"

namespace baton {
namespace {

struct Exaone4Config : DenseConfig {
  int64_t window = 0;            // of sliding layers; 0: there are none
  std::vector<LayerType> types;  // per layer

  [[nodiscard]] bool Slides(LayerIndex layer) const {
    return types[static_cast<size_t>(layer.value())] == LayerType::kSliding;
  }
  [[nodiscard]] LayerState State(LayerIndex layer, DType dtype) const {
    LayerState state = DenseConfig::State(layer, dtype);
    if (Slides(layer)) state.window = window;
    return state;
  }
  [[nodiscard]] std::optional<RopeFrequencies> RopeOf(LayerIndex layer) const {
    if (window > 0 && !Slides(layer)) return std::nullopt;
    return RopeTable();
  }
};

class Exaone4Layer {
 public:
  using Between = Written;

  Exaone4Layer(const Exaone4Config& c, const WeightScope& w)
      : attention_(w.In("self_attn"), c.attention, c.RopeOf(w.layer()),
                   PerHeadQueryKeyNorm(w.In("self_attn"), c.attention.head_dim,
                                       c.eps)),
        attention_norm_(w, "post_attention_layernorm", c.hidden(), c.eps),
        mlp_(w.In("mlp"), c.hidden(), c.ffn),
        ffn_norm_(w, "post_feedforward_layernorm", c.hidden(), c.eps) {}

  Between Forward(Written s, Step& step) const {
    auto [a, open] = boundary::Read(std::move(s));
    Written mid = std::move(open).AddPostNorm(
        AllReduce(attention_(std::move(a), step), step.tp()), attention_norm_);
    auto [m, open2] = boundary::Read(std::move(mid));
    return std::move(open2).AddPostNorm(
        AllReduce(mlp_(std::move(m), step), step.tp()), ffn_norm_);
  }

 private:
  GroupedQueryAttention attention_;
  Norm attention_norm_;
  GatedSiluMlp mlp_;
  Norm ffn_norm_;
};

constexpr int64_t kMaxPattern = 4096;

// Every how many layers one sees all: a number, or a text such as "LLLG".
StatusOr<int64_t> ReadPattern(const ModelConfig& config) {
  const std::string key = "sliding_window_pattern";
  const StatusOr<std::string> text = config.Text(key);
  if (!text.ok()) return ReadSize(config, key, kMaxPattern);
  const auto length = static_cast<int64_t>(text->size());
  if (text->find('G') + 1 != text->size() ||
      std::count(text->begin(), text->end(), 'L') != length - 1) {
    return InvalidArgument("{} is \"{}\", expected one G after Ls", key, *text);
  }
  return length;
}

// For files without `layer_types`.
StatusOr<std::vector<LayerType>> TypesOfPattern(const ModelConfig& config,
                                                const Exaone4Config& c) {
  std::vector<LayerType> types(static_cast<size_t>(c.num_layers),
                               LayerType::kFull);
  if (c.window == 0) return types;
  BATON_ASSIGN_OR_RETURN(const int64_t pattern, ReadPattern(config));
  for (int64_t i = 0; i < c.num_layers; ++i) {
    if ((i + 1) % pattern == 0) continue;
    types[static_cast<size_t>(i)] = LayerType::kSliding;
  }
  return types;
}

struct Exaone4 {
  static constexpr std::string_view kArchitecture = "Exaone4ForCausalLM";
  static constexpr EndNames kNames = {};
  using Config = Exaone4Config;
  using Layer = Exaone4Layer;

  static StatusOr<Exaone4Config> Read(const ModelConfig& config) {
    BATON_RETURN_IF_ERROR(config.RequireText("model_type", "exaone4"));
    BATON_RETURN_IF_ERROR(config.RequireText("hidden_act", "silu"));
    BATON_ASSIGN_OR_RETURN(const DenseConfig sizes,
                           ReadDenseSizes(config, "head_dim"));
    Exaone4Config c{sizes};
    BATON_ASSIGN_OR_RETURN(c.rope, config.Rope());
    BATON_ASSIGN_OR_RETURN(c.tied_head,
                           config.BoolOr("tie_word_embeddings", false));
    BATON_ASSIGN_OR_RETURN(c.window, config.SizeOr("sliding_window", 0));
    BATON_ASSIGN_OR_RETURN(c.types, ReadLayerTypes(config, c.num_layers));
    if (c.types.empty()) {
      BATON_ASSIGN_OR_RETURN(c.types, TypesOfPattern(config, c));
    }
    const bool slides =
        std::count(c.types.begin(), c.types.end(), LayerType::kSliding) > 0;
    if (slides && c.window == 0) {
      return InvalidArgument(
          "layer_types slide, but sliding_window is null, expected a number");
    }
    return c;
  }
};

}  // namespace

Decoder Exaone4Decoder() { return DecoderOf<Exaone4>(); }

}  // namespace baton
