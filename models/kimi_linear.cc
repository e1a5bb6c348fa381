// SPDX-License-Identifier: Apache-2.0
// Kimi-Linear (arXiv 2510.26692;
// huggingface.co/moonshotai/Kimi-Linear-48B-A3B-Instruct). A pre-norm block,
// odd in these ways: most layers are Kimi Delta Attention, which keeps a state
// of fixed size and no keys, the others attend over latents; config.json lists
// which, counting from 1, and there is no rule. Nothing is rotated: the "rope"
// dimensions of keys are only what heads share. Latents are normed with 1e-6,
// whatever rms_norm_eps says. Dense FFNs come first, then mixtures of experts
// chosen by sigmoid scores with a correction bias, which must not reach their
// weights, beside shared experts, which nothing scales. The published bf16 code
// norms and gates with more roundings, and weighs experts with the bias (its
// own mistake); this follows transformers.
#include <utility>
#include <variant>

#include "models/decoder_slice.h"
#include "models/kimi_linear_config.h"
#include "models/layers/delta_attention.h"
#include "models/layers/latent_attention.h"
#include "models/layers/mlp.h"
#include "models/layers/moe.h"
#include "models/layers/norm.h"
#include "models/residual/boundary.h"

namespace baton {
namespace {

constexpr float kLatentEps = 1e-6f;

// Routed experts, and shared ones that see every row.
class KimiMixture {
 public:
  KimiMixture(const KimiLinearConfig& c, const WeightScope& layer,
              const WeightScope& w)
      : router_(w, c.hidden(), c.routing),
        experts_(w.In("experts"), c.Experts(), ExpertNames::LikeMixtral(layer),
                 w.In("shared_experts"), c.shared_ffn) {}

  Output<Sum::kComplete> operator()(Input&& x, Step& step) const {
    const Routing routing = router_(x.view(), step);
    return experts_(std::move(x), routing, step);
  }

 private:
  GroupedSigmoidRouter router_;
  SharedGatedSiluExperts experts_;
};

using Mixer = std::variant<KimiDeltaAttention, MultiHeadLatentAttention>;
Mixer MixerOf(const KimiLinearConfig& c, const WeightScope& w) {
  if (c.IsLinear(w.layer())) return KimiDeltaAttention(w, c.delta, c.eps);
  return MultiHeadLatentAttention(w, c.latent, kLatentEps);
}

using Ffn = std::variant<GatedSiluMlp, KimiMixture>;
Ffn FfnOf(const KimiLinearConfig& c, const WeightScope& w) {
  if (c.IsMixture(w.layer())) {
    return KimiMixture(c, w, w.In("block_sparse_moe"));
  }
  // transformers saves every FFN under the name of the mixtures.
  return GatedSiluMlp(w.In("mlp", "block_sparse_moe"), c.hidden(), c.ffn);
}

Output<Sum::kPartial> Run(const Mixer& mixer, Input&& x, Step& step) {
  return std::visit([&](const auto& m) { return m(std::move(x), step); },
                    mixer);
}

// A mixture sums over ranks before it weighs, a dense FFN here.
Output<Sum::kComplete> Complete(const GatedSiluMlp& mlp, Input&& x,
                                Step& step) {
  return AllReduce(mlp(std::move(x), step), step.tp());
}
Output<Sum::kComplete> Complete(const KimiMixture& mixture, Input&& x,
                                Step& step) {
  return mixture(std::move(x), step);
}
Output<Sum::kComplete> Run(const Ffn& ffn, Input&& x, Step& step) {
  return std::visit(
      [&](const auto& f) { return Complete(f, std::move(x), step); }, ffn);
}

class KimiLayer {
 public:
  using Between = Pending<Sum::kComplete>;

  KimiLayer(const KimiLinearConfig& c, const WeightScope& w)
      : attention_norm_(w, "input_layernorm", c.hidden(), c.eps),
        mixer_(MixerOf(c, w.In("self_attn"))),
        ffn_norm_(w, "post_attention_layernorm", c.hidden(), c.eps),
        ffn_(FfnOf(c, w)) {}

  Between Forward(StreamForm auto s, Step& step) const {
    auto [a, open] = boundary::Prepare(std::move(s), attention_norm_);
    Pending<Sum::kPartial> mid =
        std::move(open).Leave(Run(mixer_, std::move(a), step));
    auto [m, open2] = boundary::Prepare(std::move(mid), ffn_norm_);
    return std::move(open2).Leave(Run(ffn_, std::move(m), step));
  }

 private:
  Norm attention_norm_;
  Mixer mixer_;
  Norm ffn_norm_;
  Ffn ffn_;
};

struct KimiLinear {
  static constexpr std::string_view kArchitecture = "KimiLinearForCausalLM";
  static constexpr EndNames kNames = {};
  using Config = KimiLinearConfig;
  using Layer = KimiLayer;

  static StatusOr<KimiLinearConfig> Read(const ModelConfig& config) {
    return ReadKimiLinearConfig(config);
  }
};

}  // namespace

Decoder KimiLinearDecoder() { return DecoderOf<KimiLinear>(); }

}  // namespace baton
