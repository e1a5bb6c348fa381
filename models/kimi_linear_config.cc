// SPDX-License-Identifier: Apache-2.0
#include "models/kimi_linear_config.h"

#include <algorithm>
#include <string>
#include <utility>

namespace baton {
namespace {

// Beyond any decoder; a state has heads * head_dim^2 elements.
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxTaps = 64;
constexpr int64_t kMaxLatent = 1 << 16;
constexpr int64_t kMaxWidth = 1 << 22;
constexpr int64_t kMaxExperts = 1 << 12;
constexpr int64_t kMaxSharedExperts = 64;

// Whether each layer is of one kind.
using Layers = std::vector<bool>;

Status CheckMaths(const ModelConfig& config) {
  BATON_RETURN_IF_ERROR(config.RequireText("model_type", "kimi_linear"));
  BATON_RETURN_IF_ERROR(config.RequireText("hidden_act", "silu"));
  BATON_RETURN_IF_ERROR(
      config.RequireText("moe_router_activation_func", "sigmoid"));
  for (const char* key :
       {"tie_word_embeddings", "q_lora_rank", "rope_scaling",
        "num_nextn_predict_layers", "gate_lower_bound", "sliding_window"}) {
    BATON_RETURN_IF_ERROR(config.RequireOff(key));
  }
  for (const char* key :
       {"mla_use_nope", "moe_renormalize", "use_grouped_topk"}) {
    BATON_ASSIGN_OR_RETURN(const bool on, config.BoolOr(key, true));
    if (!on) return InvalidArgument("{} is false, expected true", key);
  }
  BATON_ASSIGN_OR_RETURN(const int64_t every,
                         config.SizeOr("moe_layer_freq", 1));
  if (every != 1) {
    return InvalidArgument("moe_layer_freq is {}, expected 1", every);
  }
  return OkStatus();
}

// The layers whose text under `key` is `yes`; the others' must be `no`.
StatusOr<Layers> LayersByText(const ModelConfig& config, const char* key,
                              int layers, const char* yes, const char* no) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> types,
                         config.Texts(key));
  if (types.size() != static_cast<size_t>(layers)) {
    return InvalidArgument("{} has {} entries for {} layers", key, types.size(),
                           layers);
  }
  Layers found;
  for (const std::string& type : types) {
    if (type != yes && type != no) {
      return InvalidArgument("{} has \"{}\", expected {} or {}", key, type, yes,
                             no);
    }
    found.push_back(type == yes);
  }
  return found;
}

// From kda_layers and full_attn_layers, which count from 1.
StatusOr<Layers> PublishedLinearLayers(const ModelConfig& linear, int layers) {
  std::vector<int> seen(static_cast<size_t>(layers), 0);
  Layers found(static_cast<size_t>(layers), false);
  for (const auto& [key, is_linear] :
       {std::pair("kda_layers", true), std::pair("full_attn_layers", false)}) {
    BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> list, linear.Ids(key));
    for (const int32_t number : list) {
      if (number < 1 || number > layers) {
        return InvalidArgument("{} has layer {}, expected 1 to {}", key, number,
                               layers);
      }
      ++seen[static_cast<size_t>(number - 1)];
      found[static_cast<size_t>(number - 1)] = is_linear;
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] == 1) continue;
    return InvalidArgument(
        "kda_layers and full_attn_layers have layer {} {} times", i + 1,
        seen[i]);
  }
  return found;
}

StatusOr<DeltaAttentionShape> ReadDelta(const ModelConfig& config,
                                        const char* head_dim, const char* heads,
                                        const char* taps) {
  DeltaAttentionShape shape;
  BATON_ASSIGN_OR_RETURN(shape.head_dim,
                         ReadSize(config, head_dim, kMaxHeadDim));
  BATON_ASSIGN_OR_RETURN(shape.heads, ReadSize(config, heads, kMaxHeads));
  BATON_ASSIGN_OR_RETURN(shape.taps, ReadSize(config, taps, kMaxTaps));
  return shape;
}

Status Disagree(const char* a, const char* b) {
  return InvalidArgument("{} and {} disagree", a, b);
}

// Either layout, or both where they say the same.
Status ReadLinearAttention(const ModelConfig& config, KimiLinearConfig& c) {
  const bool published = config.Has("linear_attn_config");
  const bool saved = config.Has("layer_types");
  if (!published && !saved) {
    return InvalidArgument("linear_attn_config and layer_types are missing");
  }
  if (saved) {
    BATON_ASSIGN_OR_RETURN(c.linear_layers,
                           LayersByText(config, "layer_types", c.num_layers,
                                        "linear_attention", "full_attention"));
  }
  if (published) {
    BATON_ASSIGN_OR_RETURN(const ModelConfig linear,
                           config.Object("linear_attn_config"));
    BATON_RETURN_IF_ERROR(linear.RequireOff("gate_lower_bound"));
    BATON_ASSIGN_OR_RETURN(c.delta, ReadDelta(linear, "head_dim", "num_heads",
                                              "short_conv_kernel_size"));
    BATON_ASSIGN_OR_RETURN(Layers layers,
                           PublishedLinearLayers(linear, c.num_layers));
    if (saved && layers != c.linear_layers) {
      return Disagree("linear_attn_config", "layer_types");
    }
    c.linear_layers = std::move(layers);
  } else {
    BATON_ASSIGN_OR_RETURN(
        c.delta, ReadDelta(config, "linear_head_dim", "linear_num_heads",
                           "linear_conv_kernel_dim"));
  }
  c.delta.hidden = c.hidden();
  return OkStatus();
}

Status ReadLatentAttention(const ModelConfig& config, KimiLinearConfig& c) {
  LatentAttentionShape& shape = c.latent;
  shape.hidden = c.hidden();
  shape.heads = c.attention.heads;
  if (c.attention.kv_heads != shape.heads) {
    return InvalidArgument("num_key_value_heads is {}, expected the {} of q",
                           c.attention.kv_heads, shape.heads);
  }
  BATON_ASSIGN_OR_RETURN(shape.latent,
                         ReadSize(config, "kv_lora_rank", kMaxLatent));
  BATON_ASSIGN_OR_RETURN(shape.own,
                         ReadSize(config, "qk_nope_head_dim", kMaxHeadDim));
  BATON_ASSIGN_OR_RETURN(shape.shared,
                         ReadSize(config, "qk_rope_head_dim", kMaxHeadDim));
  BATON_ASSIGN_OR_RETURN(shape.value,
                         ReadSize(config, "v_head_dim", kMaxHeadDim));
  BATON_ASSIGN_OR_RETURN(const int64_t width,
                         config.SizeOr("qk_head_dim", shape.HeadWidth()));
  if (width != shape.HeadWidth()) {
    return InvalidArgument("qk_head_dim is {}, expected {} + {}", width,
                           shape.own, shape.shared);
  }
  return OkStatus();
}

// first_k_dense_replace or mlp_layer_types, or both where they say the same.
Status ReadMixtureLayers(const ModelConfig& config, KimiLinearConfig& c) {
  const bool saved = config.Has("mlp_layer_types");
  const bool published = config.Has("first_k_dense_replace");
  if (!published && !saved) {
    return InvalidArgument(
        "first_k_dense_replace and mlp_layer_types are missing");
  }
  if (saved) {
    BATON_ASSIGN_OR_RETURN(c.mixture_layers,
                           LayersByText(config, "mlp_layer_types", c.num_layers,
                                        "sparse", "dense"));
  }
  if (published) {
    int64_t dense = 0;
    if (!config.RequireOff("first_k_dense_replace").ok()) {
      BATON_ASSIGN_OR_RETURN(
          dense, ReadSize(config, "first_k_dense_replace", c.num_layers));
    }
    Layers layers(static_cast<size_t>(c.num_layers), true);
    std::fill_n(layers.begin(), dense, false);
    if (saved && layers != c.mixture_layers) {
      return Disagree("first_k_dense_replace", "mlp_layer_types");
    }
    c.mixture_layers = std::move(layers);
  }
  return OkStatus();
}

Status ReadRouting(const ModelConfig& config, KimiLinearConfig& c) {
  GroupedRouting& r = c.routing;
  BATON_ASSIGN_OR_RETURN(r.experts,
                         ReadSize(config, "num_experts", kMaxExperts));
  BATON_ASSIGN_OR_RETURN(r.groups,
                         ReadSize(config, "num_expert_group", r.experts));
  BATON_ASSIGN_OR_RETURN(r.top_groups,
                         ReadSize(config, "topk_group", r.groups));
  const int64_t size = r.experts / r.groups;
  if (r.experts % r.groups != 0 || (r.groups > 1 && size < 2)) {
    return InvalidArgument(
        "num_expert_group {} does not cut {} experts into groups of two or "
        "more",
        r.groups, r.experts);
  }
  BATON_ASSIGN_OR_RETURN(
      r.top, ReadSize(config, "num_experts_per_token", size * r.top_groups));
  BATON_ASSIGN_OR_RETURN(const double scale,
                         config.Number("routed_scaling_factor"));
  r.scale = static_cast<float>(scale);
  BATON_ASSIGN_OR_RETURN(c.expert_ffn,
                         ReadSize(config, "moe_intermediate_size", kMaxWidth));
  BATON_ASSIGN_OR_RETURN(
      const int64_t shared,
      ReadSize(config, "num_shared_experts", kMaxSharedExperts));
  c.shared_ffn = shared * c.expert_ffn;
  return OkStatus();
}

}  // namespace

LayerState KimiLinearConfig::State(LayerIndex layer, DType dtype) const {
  if (IsLinear(layer)) {
    return {.dtype = dtype, .slot_bytes = delta.SlotBytes(dtype)};
  }
  return {.dtype = dtype, .latent_width = latent.latent + latent.shared};
}

StatusOr<KimiLinearConfig> ReadKimiLinearConfig(const ModelConfig& config) {
  BATON_RETURN_IF_ERROR(CheckMaths(config));
  BATON_ASSIGN_OR_RETURN(const DenseConfig block,
                         ReadBlockConfig(config, "model_max_length"));
  KimiLinearConfig c{block};
  BATON_RETURN_IF_ERROR(ReadLinearAttention(config, c));
  BATON_RETURN_IF_ERROR(ReadLatentAttention(config, c));
  BATON_RETURN_IF_ERROR(ReadMixtureLayers(config, c));
  BATON_RETURN_IF_ERROR(ReadRouting(config, c));
  return c;
}

}  // namespace baton
