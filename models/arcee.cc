// SPDX-License-Identifier: Apache-2.0
// Arcee AFM (huggingface.co/arcee-ai/AFM-4.5B-Base). A Llama block, odd in two
// ways: the FFN has two matrices and no gate, with the squared ReLU of Primer
// (arXiv 2109.08668) between them; and YaRN (arXiv 2309.00071) scales cosine
// and sine, so that attention scores grow by the square of its amplitude.
#include <utility>

#include "models/decoder_slice.h"
#include "models/layers/attention.h"
#include "models/layers/mlp.h"
#include "models/layers/norm.h"
#include "models/residual/boundary.h"

namespace baton {
namespace {

struct ArceeConfig : DenseConfig {};

class ArceeLayer {
 public:
  using Between = Pending<Sum::kComplete>;

  ArceeLayer(const ArceeConfig& c, const WeightScope& w)
      : attention_norm_(w, "input_layernorm", c.hidden(), c.eps),
        attention_(w.In("self_attn"), c.attention, c.RopeTable()),
        ffn_norm_(w, "post_attention_layernorm", c.hidden(), c.eps),
        mlp_(w.In("mlp"), c.hidden(), c.ffn, Relu2Activation()) {}

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
  GroupedQueryAttention attention_;
  Norm ffn_norm_;
  TwoMatrixMlp<Relu2Activation> mlp_;
};

struct Arcee {
  static constexpr std::string_view kArchitecture = "ArceeForCausalLM";
  static constexpr EndNames kNames = {};
  using Config = ArceeConfig;
  using Layer = ArceeLayer;

  static StatusOr<ArceeConfig> Read(const ModelConfig& config) {
    BATON_RETURN_IF_ERROR(config.RequireText("model_type", "arcee"));
    BATON_RETURN_IF_ERROR(config.RequireText("hidden_act", "relu2"));
    BATON_ASSIGN_OR_RETURN(const DenseConfig dense,
                           ReadDenseConfig(config, "head_dim"));
    return ArceeConfig{dense};
  }
};

}  // namespace

Decoder ArceeDecoder() { return DecoderOf<Arcee>(); }

}  // namespace baton
