// SPDX-License-Identifier: Apache-2.0
// Spark 2.5 (huggingface.co/XHToken/Spark-X2.5-4B). Pre-norm, odd in six ways.
// Three layers of four see a window; they rotate whole heads, and the fourth
// rotates the first quarter of each, with another base. Each head's output is
// scaled by a sigmoid of the layer's normed input. Queries, keys and values are
// one tensor. The FFN's gate is the exact GELU, by erf. The residual stream is
// f32 from the embedding to the last norm. The head is tied.
#include <utility>

#include "models/decoder_slice.h"
#include "models/layer_types.h"
#include "models/layers/attention.h"
#include "models/layers/mlp.h"
#include "models/layers/norm.h"
#include "models/residual/boundary.h"

namespace baton {
namespace {

struct SparkConfig : DenseConfig {
  int64_t window = 0;  // of sliding layers
  RopeConfig sliding_rope;
  std::vector<LayerType> types;  // per layer

  [[nodiscard]] bool Slides(LayerIndex layer) const {
    return types[static_cast<size_t>(layer.value())] == LayerType::kSliding;
  }
  [[nodiscard]] DType StreamType(DType) const { return DType::kF32; }
  [[nodiscard]] LayerState State(LayerIndex layer, DType dtype) const {
    LayerState state = DenseConfig::State(layer, dtype);
    if (Slides(layer)) state.window = window;
    return state;
  }
  [[nodiscard]] int64_t Rotated(const RopeConfig& r) const {
    return static_cast<int64_t>(static_cast<double>(attention.head_dim) *
                                r.part);
  }
  [[nodiscard]] RopeFrequencies RopeOf(LayerIndex layer) const {
    const RopeConfig& r = Slides(layer) ? sliding_rope : rope;
    return ComputeRope(r, Rotated(r));
  }
};

class SparkLayer {
 public:
  using Between = Pending<Sum::kComplete>;

  SparkLayer(const SparkConfig& c, const WeightScope& w)
      : attention_norm_(w, "input_layernorm", c.hidden(), c.eps),
        attention_(w.In("self_attn"), c.attention, c.RopeOf(w.layer())),
        ffn_norm_(w, "post_attention_layernorm", c.hidden(), c.eps),
        mlp_(w.In("mlp"), c.hidden(), c.ffn) {}

  Between Forward(StreamForm auto s, Step& step) const {
    auto [a, open] = boundary::Prepare(std::move(s), attention_norm_);
    Pending<Sum::kPartial> mid =
        std::move(open).Leave(attention_(std::move(a), step));
    auto [m, open2] = boundary::Prepare(std::move(mid), ffn_norm_);
    return std::move(open2).Leave(
        AllReduce(mlp_(std::move(m), step), step.tp()));
  }

 private:
  Norm attention_norm_;
  HeadGatedAttention attention_;
  Norm ffn_norm_;
  GatedGeluMlp mlp_;
};

// Switches that a copy of the configuration's code lists.
constexpr const char* kRefused[] = {"gsq_int4",
                                    "hadamard_spin",
                                    "dv_ssq",
                                    "selective_attention_preservation",
                                    "key_value_binding_sharpening",
                                    "kv_focus_factor"};

// What every checkpoint of the family has.
Status CheckFamily(const ModelConfig& config) {
  BATON_RETURN_IF_ERROR(config.RequireText("model_type", "spark2_5"));
  BATON_RETURN_IF_ERROR(config.RequireText("hidden_act", "gelu"));
  BATON_RETURN_IF_ERROR(config.RequireText("gate_attn_act_mode", "sigmoid"));
  BATON_ASSIGN_OR_RETURN(const bool gate,
                         config.BoolOr("headwise_attn_output_gate", true));
  if (!gate) {
    return InvalidArgument("headwise_attn_output_gate is false, expected true");
  }
  for (const char* key : kRefused) {
    BATON_RETURN_IF_ERROR(config.RequireOff(key));
  }
  return OkStatus();
}

struct Spark {
  static constexpr std::string_view kArchitecture = "Spark2_5ForCausalLM";
  static constexpr EndNames kNames = {.embedding = "model.embedding"};
  using Config = SparkConfig;
  using Layer = SparkLayer;

  static StatusOr<SparkConfig> Read(const ModelConfig& config) {
    BATON_RETURN_IF_ERROR(CheckFamily(config));
    BATON_ASSIGN_OR_RETURN(const DenseConfig sizes,
                           ReadDenseSizes(config, "head_dim"));
    SparkConfig c{sizes};
    BATON_ASSIGN_OR_RETURN(c.tied_head,
                           config.BoolOr("tie_word_embeddings", true));
    BATON_ASSIGN_OR_RETURN(c.window, config.Size("sliding_window"));
    BATON_ASSIGN_OR_RETURN(c.types, ReadLayerTypes(config, c.num_layers));
    if (c.types.empty()) return InvalidArgument("layer_types is missing");
    BATON_ASSIGN_OR_RETURN(c.rope, config.RopeOf("full_attention"));
    BATON_ASSIGN_OR_RETURN(c.sliding_rope, config.RopeOf("sliding_attention"));
    for (const RopeConfig& rope : {c.rope, c.sliding_rope}) {
      const int64_t rotated = c.Rotated(rope);
      if (rotated >= 2 && rotated % 2 == 0) continue;
      return InvalidArgument(
          "partial_rotary_factor {} of head_dim {} is {} dimensions, expected "
          "an even number",
          rope.part, c.attention.head_dim, rotated);
    }
    return c;
  }
};

}  // namespace

Decoder Spark25Decoder() { return DecoderOf<Spark>(); }

}  // namespace baton
