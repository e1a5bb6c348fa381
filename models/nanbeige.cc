// SPDX-License-Identifier: Apache-2.0
// Nanbeige 4.2 (huggingface.co/Nanbeige/Nanbeige4.2-3B). A Llama block, odd in
// one way: the whole stack runs `num_loops` times over the same weights. After
// each loop the stream is folded and normed by the final norm, and the normed
// rows start the next loop's stream; the last loop's norm is the output norm.
// Every loop has the same positions and KV pages of its own.
#include <utility>

#include "models/decoder_slice.h"
#include "models/layers/attention.h"
#include "models/layers/mlp.h"
#include "models/layers/norm.h"
#include "models/residual/boundary.h"

namespace baton {
namespace {

struct NanbeigeConfig : DenseConfig {
  bool skip_loop_final_norm = false;
};

class NanbeigeLayer {
 public:
  using Between = Pending<Sum::kComplete>;

  NanbeigeLayer(const NanbeigeConfig& c, const WeightScope& w)
      : attention_norm_(w, "input_layernorm", c.hidden(), c.eps),
        attention_(w.In("self_attn"), c.attention, c.RopeTable()),
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
  GroupedQueryAttention attention_;
  Norm ffn_norm_;
  GatedSiluMlp mlp_;
};

constexpr int64_t kMaxLoops = 256;

// Switches of the research code that change the maths.
constexpr const char* kRefused[] = {"enable_hyper_connection",
                                    "enable_mhc",
                                    "enable_depth_attention",
                                    "loop_middle_layers",
                                    "enable_double_loop_split",
                                    "loop_middle_repeats",
                                    "loop_share_kv",
                                    "qk_layernorm",
                                    "emb_neighbor_num",
                                    "emb_split_num",
                                    "loop_loss_weights",
                                    "insert_ngram_layer_idx"};

struct Nanbeige {
  static constexpr std::string_view kArchitecture = "NanbeigeForCausalLM";
  static constexpr EndNames kNames = {};
  using Config = NanbeigeConfig;
  using Layer = NanbeigeLayer;

  static StatusOr<NanbeigeConfig> Read(const ModelConfig& config) {
    BATON_RETURN_IF_ERROR(config.RequireText("model_type", "nanbeige"));
    BATON_RETURN_IF_ERROR(config.RequireText("hidden_act", "silu"));
    for (const char* key : kRefused) {
      BATON_RETURN_IF_ERROR(config.RequireOff(key));
    }
    for (const char* prefix : {"mhc_", "ngram_"}) {
      BATON_RETURN_IF_ERROR(config.RequireAllOff(prefix));
    }
    BATON_ASSIGN_OR_RETURN(const int64_t slices,
                           config.SizeOr("pretraining_tp", 1));
    if (slices != 1) {
      return InvalidArgument("pretraining_tp is {}, expected 1", slices);
    }
    const char* head_dim = config.Has("head_dim") ? "head_dim" : "kv_channels";
    BATON_ASSIGN_OR_RETURN(DenseConfig dense,
                           ReadDenseConfig(config, head_dim));
    if (config.Has("num_loops")) {
      BATON_ASSIGN_OR_RETURN(const int64_t loops,
                             ReadSize(config, "num_loops", kMaxLoops));
      dense.num_loops = static_cast<int>(loops);
    }
    BATON_ASSIGN_OR_RETURN(const bool skip,
                           config.BoolOr("skip_loop_final_norm", false));
    return NanbeigeConfig{dense, skip};
  }

  static Written EndLoop(Pending<Sum::kComplete> s, const NanbeigeConfig& c,
                         const Norm& final_norm) {
    Hidden folded = boundary::Fold(std::move(s));
    if (c.skip_loop_final_norm) return boundary::Start(std::move(folded));
    return boundary::Start(boundary::LoopNorm(std::move(folded), final_norm));
  }
};

}  // namespace

Decoder NanbeigeDecoder() { return DecoderOf<Nanbeige>(); }

}  // namespace baton
