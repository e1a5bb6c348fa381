// SPDX-License-Identifier: Apache-2.0
// The sizes that every dense decoder's config.json has under the same keys.
#pragma once

#include <cstdint>
#include <string>

#include "models/decoder.h"
#include "models/layers/attention.h"
#include "models/layers/weights.h"
#include "runtime/base/status.h"
#include "runtime/config/model_config.h"

namespace baton {

struct DenseConfig {
  int num_layers = 0;
  int num_loops = 1;
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;
  float eps = 0;
  bool tied_head = false;  // the head's rows are the embedding's
  AttentionShape attention;
  RopeConfig rope;

  [[nodiscard]] int64_t hidden() const { return attention.hidden; }
  [[nodiscard]] RopeFrequencies RopeTable() const {
    return ComputeRope(rope, attention.head_dim);
  }
  // All but the layers' states.
  [[nodiscard]] DecoderInfo Info(const std::string& architecture) const;
  // Of the residual stream, where weights and activations are `dtype`.
  [[nodiscard]] DType StreamType(DType dtype) const { return dtype; }
  // What a physical layer keeps of a sequence: keys and values of every
  // position. A config whose layers keep something else hides it.
  [[nodiscard]] LayerState State(LayerIndex layer, DType dtype) const;
};

// A size of 1 to `most`. InvalidArgument: missing, or out of range.
[[nodiscard]] StatusOr<int64_t> ReadSize(const ModelConfig& config,
                                         const std::string& key, int64_t most);

// What is left without the rotation and the head size; positions are under
// `positions_key`. InvalidArgument: a key is missing or out of range; biases or
// quantization.
[[nodiscard]] StatusOr<DenseConfig> ReadBlockConfig(
    const ModelConfig& config, const std::string& positions_key);

// All but the rotation. InvalidArgument: as ReadBlockConfig; heads do not
// divide into KV heads; an odd head size. `head_dim_key`: its value, or hidden
// / heads where the config has no such key.
[[nodiscard]] StatusOr<DenseConfig> ReadDenseSizes(
    const ModelConfig& config, const std::string& head_dim_key);

// With one rotation for all layers. InvalidArgument: as ReadDenseSizes and
// ModelConfig::Rope; a sliding window, a tied head.
[[nodiscard]] StatusOr<DenseConfig> ReadDenseConfig(
    const ModelConfig& config, const std::string& head_dim_key);

// Where a checkpoint keeps what only the ends of a decoder have.
struct EndNames {
  const char* embedding = "model.embed_tokens";
  const char* final_norm = "model.norm";
  const char* head = "lm_head";
};

// The head's rows. Those of a tied one are in the embedding's tensor, which is
// then declared by both ends; a file may have them under the head's own name
// once more.
[[nodiscard]] FusedRows HeadRows(const EndNames& names, const DenseConfig& c);

}  // namespace baton
