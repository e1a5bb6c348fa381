// SPDX-License-Identifier: Apache-2.0
// A checkpoint's config.json as typed facts. Both layouts are read: 4.x
// (rope_theta + rope_scaling, torch_dtype) and 5.x (rope_parameters, dtype).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace baton {

// One rotary embedding's parameters.
struct RopeConfig {
  enum class Kind { kPlain, kLlama3, kYarn };
  Kind kind = Kind::kPlain;
  double theta = 0;
  double factor = 1;
  double original_max_positions = 0;
  double part = 1;  // of each head that is rotated: its first dimensions
  // llama3
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  // YaRN
  double beta_fast = 32;
  double beta_slow = 1;
  std::optional<double> attention_factor;
  double mscale = 0;
  double mscale_all_dim = 0;
  bool truncate = true;
  // Frequencies are rounded to bf16, as a module that was cast as a whole
  // computes them (config key rope_frequency_dtype: "bfloat16"; ours).
  bool bf16_frequencies = false;
};

// The scaled frequencies [rotary_dim / 2] and the amplitude of cos and sin.
// Formulas: the Llama 3 release and the YaRN paper
// (arXiv 2309.00071); computed in double, rounded to fp32 once.
struct RopeFrequencies {
  std::vector<float> inv_freq;
  float amplitude = 1;
};
[[nodiscard]] RopeFrequencies ComputeRope(const RopeConfig& config,
                                          int64_t rotary_dim);

// config.json, opened. Getters name the key in their errors.
// InvalidArgument: missing, wrong type, out of range.
class ModelConfig {
 public:
  // `text` is the whole file; `where` names it in errors.
  [[nodiscard]] static StatusOr<ModelConfig> Parse(const std::string& text,
                                                   const std::string& where);
  ModelConfig(ModelConfig&&) noexcept;
  ModelConfig& operator=(ModelConfig&&) noexcept;
  ~ModelConfig();

  // architectures[0].
  [[nodiscard]] const std::string& architecture() const;
  [[nodiscard]] bool Has(const std::string& key) const;  // present, not null
  // A positive integer up to 2^31 - 1.
  [[nodiscard]] StatusOr<int64_t> Size(const std::string& key) const;
  [[nodiscard]] StatusOr<int64_t> SizeOr(const std::string& key,
                                         int64_t fallback) const;
  // A number that is finite in f32 too.
  [[nodiscard]] StatusOr<double> Number(const std::string& key) const;
  [[nodiscard]] StatusOr<bool> BoolOr(const std::string& key,
                                      bool fallback) const;
  [[nodiscard]] StatusOr<std::string> Text(const std::string& key) const;
  // The list of texts under `key`; absent: empty.
  [[nodiscard]] StatusOr<std::vector<std::string>> Texts(
      const std::string& key) const;
  // Integers under `key`: a number or a list of numbers; absent: empty.
  [[nodiscard]] StatusOr<std::vector<int32_t>> Ids(
      const std::string& key) const;
  // The object under `key`, as a config of the same architecture.
  [[nodiscard]] StatusOr<ModelConfig> Object(const std::string& key) const;
  [[nodiscard]] StatusOr<RopeConfig> Rope() const;
  // Of one type of layer, in rope_parameters; may rotate a part of each head.
  [[nodiscard]] StatusOr<RopeConfig> RopeOf(
      const std::string& layer_type) const;

  // Refuses maths this decoder does not do. InvalidArgument, names the key.
  // The key must be absent, null, false, 0, "", or an empty list or map.
  [[nodiscard]] Status RequireOff(const std::string& key) const;
  // The same of every key that begins with `prefix`.
  [[nodiscard]] Status RequireAllOff(const std::string& prefix) const;
  // The key must be absent or equal.
  [[nodiscard]] Status RequireText(const std::string& key,
                                   const std::string& value) const;

 private:
  struct Json;
  explicit ModelConfig(std::unique_ptr<Json> json);
  std::unique_ptr<Json> json_;
};

}  // namespace baton
