// SPDX-License-Identifier: Apache-2.0
// Mixtral (arXiv 2401.04088; huggingface.co/mistralai/Mixtral-8x7B-v0.1). A
// Llama block, odd in one way: the FFN is a mixture of experts. A router gives
// each row the experts with the largest softmax logits (two of eight), weighs
// them by these over their sum, and drops no row. Logits are not rounded to
// bf16, as the published bf16 code rounds them: there a near-tie may go the
// other way. Files have one tensor a matrix of each expert (w1 is the gate, w3
// up, w2 down), or stack them as transformers 5 holds them.
#include <utility>

#include "models/decoder_slice.h"
#include "models/layers/attention.h"
#include "models/layers/moe.h"
#include "models/layers/norm.h"
#include "models/residual/boundary.h"

namespace baton {
namespace {

struct MixtralConfig : DenseConfig {
  int64_t experts = 0;
  int64_t top = 0;  // experts of a row

  [[nodiscard]] DecoderInfo Info(const std::string& architecture) const {
    DecoderInfo info = DenseConfig::Info(architecture);
    info.experts = experts;
    info.experts_per_row = top;
    return info;
  }
  [[nodiscard]] ExpertsShape Experts() const {
    return {.experts = experts, .hidden = hidden(), .ffn = ffn};
  }
};

FusedRows GateRows(const MixtralConfig& c, const WeightScope& w) {
  return {"block_sparse_moe.gate", c.experts, split::kWhole,
          TensorRows{w.FullName("mlp.gate.weight"), {c.experts, c.hidden()}}};
}

class MixtralLayer {
 public:
  using Between = Pending<Sum::kComplete>;

  MixtralLayer(const MixtralConfig& c, const WeightScope& w)
      : attention_norm_(w, "input_layernorm", c.hidden(), c.eps),
        attention_(w.In("self_attn"), c.attention, c.RopeTable()),
        ffn_norm_(w, "post_attention_layernorm", c.hidden(), c.eps),
        router_(w, GateRows(c, w), c.hidden(), c.top),
        experts_(w.In("block_sparse_moe.experts"), c.Experts(),
                 ExpertNames::LikeMixtral(w)) {}

  Between Forward(StreamForm auto s, Step& step) const {
    auto [a, open] = boundary::Prepare(std::move(s), attention_norm_);
    Pending<Sum::kPartial> mid =
        std::move(open).Leave(attention_(std::move(a), step));
    auto [m, open2] = boundary::Prepare(std::move(mid), ffn_norm_);
    const Routing routing = router_(m.view(), step);
    return std::move(open2).Leave(experts_(std::move(m), routing, step));
  }

 private:
  Norm attention_norm_;
  GroupedQueryAttention attention_;
  Norm ffn_norm_;
  SoftmaxRouter router_;
  GatedSiluExperts experts_;
};

constexpr int64_t kMaxExperts = 1024;

struct Mixtral {
  static constexpr std::string_view kArchitecture = "MixtralForCausalLM";
  static constexpr EndNames kNames = {};
  using Config = MixtralConfig;
  using Layer = MixtralLayer;

  static StatusOr<MixtralConfig> Read(const ModelConfig& config) {
    BATON_RETURN_IF_ERROR(config.RequireText("model_type", "mixtral"));
    BATON_RETURN_IF_ERROR(config.RequireText("hidden_act", "silu"));
    // Every number is a window; null is none.
    if (config.Has("sliding_window")) {
      return InvalidArgument(
          "sliding_window is set, expected null: there is no window here");
    }
    BATON_ASSIGN_OR_RETURN(const DenseConfig dense,
                           ReadDenseConfig(config, "head_dim"));
    MixtralConfig c{dense};
    BATON_ASSIGN_OR_RETURN(c.experts,
                           ReadSize(config, "num_local_experts", kMaxExperts));
    BATON_ASSIGN_OR_RETURN(c.top,
                           ReadSize(config, "num_experts_per_tok", c.experts));
    return c;
  }
};

}  // namespace

Decoder MixtralDecoder() { return DecoderOf<Mixtral>(); }

}  // namespace baton
