// SPDX-License-Identifier: Apache-2.0
#include "models/dense_config.h"

namespace baton {
namespace {

// Beyond any decoder; the bytes of all layers still fit 63 bits.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = int64_t{1} << 22;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096;
// Angles of the rotation are exact up to here.
constexpr int64_t kMaxPositions = int64_t{1} << 21;

// What no dense decoder here does.
Status CheckPlain(const ModelConfig& config) {
  for (const char* key :
       {"attention_bias", "mlp_bias", "quantization_config"}) {
    BATON_RETURN_IF_ERROR(config.RequireOff(key));
  }
  if (config.Has("partial_rotary_factor")) {
    BATON_ASSIGN_OR_RETURN(const double part,
                           config.Number("partial_rotary_factor"));
    if (part != 1) {
      return InvalidArgument("partial_rotary_factor is {}, expected 1", part);
    }
  }
  return OkStatus();
}

}  // namespace

StatusOr<int64_t> ReadSize(const ModelConfig& config, const std::string& key,
                           int64_t most) {
  BATON_ASSIGN_OR_RETURN(const int64_t size, config.Size(key));
  if (size > most) {
    return InvalidArgument("{} is {}, expected at most {}", key, size, most);
  }
  return size;
}

DecoderInfo DenseConfig::Info(const std::string& architecture) const {
  return {.architecture = architecture,
          .num_layers = num_layers,
          .num_loops = num_loops,
          .hidden = attention.hidden,
          .vocab = vocab,
          .max_positions = max_positions};
}

LayerState DenseConfig::State(LayerIndex, DType dtype) const {
  return {.dtype = dtype,
          .kv_heads = attention.kv_heads,
          .head_dim = attention.head_dim};
}

FusedRows HeadRows(const EndNames& names, const DenseConfig& c) {
  const TensorSplit split = split::Outputs(c.vocab);
  if (!c.tied_head) return {names.head, c.vocab, split};
  return {.name = names.embedding,
          .rows = c.vocab,
          .split = split,
          .repeated_as = fmt::format("{}.weight", names.head)};
}

StatusOr<DenseConfig> ReadBlockConfig(const ModelConfig& config,
                                      const std::string& positions_key) {
  BATON_RETURN_IF_ERROR(CheckPlain(config));
  DenseConfig c;
  AttentionShape& shape = c.attention;
  BATON_ASSIGN_OR_RETURN(const int64_t layers,
                         ReadSize(config, "num_hidden_layers", kMaxLayers));
  c.num_layers = static_cast<int>(layers);
  BATON_ASSIGN_OR_RETURN(shape.hidden,
                         ReadSize(config, "hidden_size", kMaxWidth));
  BATON_ASSIGN_OR_RETURN(shape.heads,
                         ReadSize(config, "num_attention_heads", kMaxHeads));
  BATON_ASSIGN_OR_RETURN(shape.kv_heads,
                         ReadSize(config, "num_key_value_heads", kMaxHeads));
  BATON_ASSIGN_OR_RETURN(c.ffn,
                         ReadSize(config, "intermediate_size", kMaxWidth));
  BATON_ASSIGN_OR_RETURN(c.vocab, ReadSize(config, "vocab_size", kMaxWidth));
  BATON_ASSIGN_OR_RETURN(c.max_positions,
                         ReadSize(config, positions_key, kMaxPositions));
  BATON_ASSIGN_OR_RETURN(const double eps, config.Number("rms_norm_eps"));
  c.eps = static_cast<float>(eps);
  if (!(c.eps > 0)) {
    return InvalidArgument("rms_norm_eps is {}, expected more than 0 in f32",
                           eps);
  }
  return c;
}

StatusOr<DenseConfig> ReadDenseConfig(const ModelConfig& config,
                                      const std::string& head_dim_key) {
  for (const char* key :
       {"sliding_window", "use_sliding_window", "tie_word_embeddings"}) {
    BATON_RETURN_IF_ERROR(config.RequireOff(key));
  }
  BATON_ASSIGN_OR_RETURN(DenseConfig c, ReadDenseSizes(config, head_dim_key));
  BATON_ASSIGN_OR_RETURN(c.rope, config.Rope());
  return c;
}

StatusOr<DenseConfig> ReadDenseSizes(const ModelConfig& config,
                                     const std::string& head_dim_key) {
  BATON_ASSIGN_OR_RETURN(DenseConfig c,
                         ReadBlockConfig(config, "max_position_embeddings"));
  AttentionShape& shape = c.attention;
  if (config.Has(head_dim_key)) {
    BATON_ASSIGN_OR_RETURN(shape.head_dim,
                           ReadSize(config, head_dim_key, kMaxHeadDim));
  } else if (shape.hidden % shape.heads == 0) {
    shape.head_dim = shape.hidden / shape.heads;
  } else {
    return InvalidArgument("hidden_size {} is no multiple of {} heads",
                           shape.hidden, shape.heads);
  }
  if (shape.heads % shape.kv_heads != 0) {
    return InvalidArgument(
        "num_attention_heads {} is no multiple of num_key_value_heads {}",
        shape.heads, shape.kv_heads);
  }
  if (shape.head_dim % 2 != 0) {
    return InvalidArgument("head_dim {} is odd", shape.head_dim);
  }
  return c;
}

}  // namespace baton
