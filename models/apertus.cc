// SPDX-License-Identifier: Apache-2.0
// Apertus (swiss-ai, arXiv 2509.14233;
// huggingface.co/swiss-ai/Apertus-8B-2509). Pre-norm decoder, odd in three
// ways: queries and keys are RMS-normed per head before rotation; the FFN has
// two matrices and no gate, with xIELU (arXiv 2411.13010) between them, whose
// alphas are learned per layer and stored before their softplus; and the norms
// have names of their own.
#include <utility>

#include "models/decoder_slice.h"
#include "models/layers/attention.h"
#include "models/layers/mlp.h"
#include "models/layers/norm.h"
#include "models/residual/boundary.h"

namespace baton {
namespace {

struct ApertusConfig : DenseConfig {};

class ApertusLayer {
 public:
  using Between = Pending<Sum::kComplete>;

  ApertusLayer(const ApertusConfig& c, const WeightScope& w)
      : attention_norm_(w, "attention_layernorm", c.hidden(), c.eps),
        attention_(w.In("self_attn"), c.attention, c.RopeTable(),
                   PerHeadQueryKeyNorm(w.In("self_attn"), c.attention.head_dim,
                                       c.eps)),
        ffn_norm_(w, "feedforward_layernorm", c.hidden(), c.eps),
        mlp_(w.In("mlp"), c.hidden(), c.ffn,
             XieluActivation(w.In("mlp").In("act_fn"))) {}

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
  TwoMatrixMlp<XieluActivation> mlp_;
};

struct Apertus {
  static constexpr std::string_view kArchitecture = "ApertusForCausalLM";
  static constexpr EndNames kNames = {};
  using Config = ApertusConfig;
  using Layer = ApertusLayer;

  static StatusOr<ApertusConfig> Read(const ModelConfig& config) {
    BATON_RETURN_IF_ERROR(config.RequireText("model_type", "apertus"));
    BATON_RETURN_IF_ERROR(config.RequireText("hidden_act", "xielu"));
    BATON_RETURN_IF_ERROR(config.RequireOff("post_norm"));
    BATON_ASSIGN_OR_RETURN(const bool qk_norm, config.BoolOr("qk_norm", true));
    if (!qk_norm) return InvalidArgument("qk_norm is false, expected true");
    BATON_ASSIGN_OR_RETURN(const DenseConfig dense,
                           ReadDenseConfig(config, "head_dim"));
    return ApertusConfig{dense};
  }
};

}  // namespace

Decoder ApertusDecoder() { return DecoderOf<Apertus>(); }

}  // namespace baton
