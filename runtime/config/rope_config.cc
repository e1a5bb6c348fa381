// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/rope_config.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/config/json.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr double kLeast = 1e-9;
constexpr double kMost = 1e15;

struct KeysOfType {
  std::string_view type;
  std::span<const std::string_view> keys;
};
constexpr std::string_view kLlama3Keys[] = {"factor", "low_freq_factor",
                                            "high_freq_factor",
                                            "original_max_position_embeddings"};
constexpr std::string_view kYarnKeys[] = {
    "factor",           "original_max_position_embeddings",
    "beta_fast",        "beta_slow",
    "attention_factor", "mscale",
    "mscale_all_dim",   "truncate"};
// Besides those that all types have.
constexpr KeysOfType kKeysOfTypes[] = {{"llama3", kLlama3Keys},
                                       {"yarn", kYarnKeys}};

// One of the objects that hold rotary parameters, with its place for errors.
struct Section {
  const json& object;
  std::string where;  // "config.json: rope_scaling"

  [[nodiscard]] bool Has(const std::string& key) const {
    return FindValue(object, key) != nullptr;
  }

  // A number > 0, within bounds that keep every frequency finite.
  [[nodiscard]] StatusOr<double> Positive(const std::string& key) const {
    const json* value = FindValue(object, key);
    if (value == nullptr) {
      return InvalidArgument("{}: {} is missing", where, key);
    }
    if (value->is_number()) {
      const double number = value->get<double>();
      if (number >= kLeast && number <= kMost) return number;
    }
    return InvalidArgument("{}: {} is {}, expected a number from {} to {}",
                           where, key, Brief(*value), kLeast, kMost);
  }

  // As Positive; absent, null and 0 mean `fallback`, as in the reference.
  [[nodiscard]] StatusOr<double> PositiveOr(const std::string& key,
                                            double fallback) const {
    const json* value = FindValue(object, key);
    if (value == nullptr) return fallback;
    if (value->is_number() && value->get<double>() == 0) return fallback;
    return Positive(key);
  }
};

// "llama3" and the like. `type` is the older spelling of `rope_type`; files
// may have both.
StatusOr<std::string> ReadType(const Section& section) {
  std::string type;
  for (const char* key : {"rope_type", "type"}) {
    const json* value = FindValue(section.object, key);
    if (value == nullptr) continue;
    if (!value->is_string()) {
      return InvalidArgument("{}: {} is {}, expected text", section.where, key,
                             Brief(*value));
    }
    const auto text = value->get<std::string>();
    if (text.empty() || text.size() > 64) {
      return InvalidArgument("{}: {} is {}, expected a name", section.where,
                             key, Brief(*value));
    }
    if (!type.empty() && type != text) {
      return InvalidArgument("{}: rope_type is \"{}\" but type is \"{}\"",
                             section.where, type, text);
    }
    type = text;
  }
  if (!type.empty()) return type;
  if (section.Has("factor")) {
    return InvalidArgument("{}: factor without rope_type", section.where);
  }
  return std::string("default");
}

StatusOr<double> ReadTheta(const Section& root, const Section& section) {
  const bool inner = section.Has("rope_theta");
  BATON_ASSIGN_OR_RETURN(const double theta,
                         (inner ? section : root).Positive("rope_theta"));
  if (theta <= 1) {
    return InvalidArgument("{}: rope_theta is {}, expected a number > 1",
                           inner ? section.where : root.where, theta);
  }
  if (inner && root.Has("rope_theta")) {
    BATON_ASSIGN_OR_RETURN(const double outer, root.Positive("rope_theta"));
    if (outer != theta) {
      return InvalidArgument("{}: rope_theta is {} but {} has {}", root.where,
                             outer, section.where, theta);
    }
  }
  return theta;
}

Status ReadLlama3(const Section& section, RopeConfig& rope) {
  rope.kind = RopeConfig::Kind::kLlama3;
  BATON_ASSIGN_OR_RETURN(rope.factor, section.Positive("factor"));
  BATON_ASSIGN_OR_RETURN(rope.low_freq_factor,
                         section.Positive("low_freq_factor"));
  BATON_ASSIGN_OR_RETURN(rope.high_freq_factor,
                         section.Positive("high_freq_factor"));
  BATON_ASSIGN_OR_RETURN(rope.original_max_positions,
                         section.Positive("original_max_position_embeddings"));
  if (rope.low_freq_factor >= rope.high_freq_factor) {
    return InvalidArgument(
        "{}: low_freq_factor is {}, expected less than high_freq_factor {}",
        section.where, rope.low_freq_factor, rope.high_freq_factor);
  }
  return OkStatus();
}

Status ReadYarn(const Section& root, const Section& section, RopeConfig& rope) {
  rope.kind = RopeConfig::Kind::kYarn;
  BATON_ASSIGN_OR_RETURN(rope.original_max_positions,
                         section.Positive("original_max_position_embeddings"));
  const auto factor = section.object.find("factor");
  if (factor != section.object.end() && factor->is_null()) {
    BATON_ASSIGN_OR_RETURN(const double positions,
                           root.Positive("max_position_embeddings"));
    rope.factor = positions / rope.original_max_positions;
  } else {
    BATON_ASSIGN_OR_RETURN(rope.factor, section.Positive("factor"));
  }
  BATON_ASSIGN_OR_RETURN(rope.beta_fast, section.PositiveOr("beta_fast", 32));
  BATON_ASSIGN_OR_RETURN(rope.beta_slow, section.PositiveOr("beta_slow", 1));
  if (rope.beta_fast < rope.beta_slow) {
    return InvalidArgument(
        "{}: beta_fast is {}, expected at least beta_slow {}", section.where,
        rope.beta_fast, rope.beta_slow);
  }
  BATON_ASSIGN_OR_RETURN(rope.mscale, section.PositiveOr("mscale", 0));
  BATON_ASSIGN_OR_RETURN(rope.mscale_all_dim,
                         section.PositiveOr("mscale_all_dim", 0));
  if (section.Has("attention_factor")) {
    BATON_ASSIGN_OR_RETURN(rope.attention_factor,
                           section.Positive("attention_factor"));
  }
  if (const json* truncate = FindValue(section.object, "truncate")) {
    if (!truncate->is_boolean()) {
      return InvalidArgument("{}: truncate is {}, expected true or false",
                             section.where, Brief(*truncate));
    }
    rope.truncate = truncate->get<bool>();
  }
  return OkStatus();
}

Status ReadFrequencyType(const Section& root, RopeConfig& rope) {
  const json* type = FindValue(root.object, "rope_frequency_dtype");
  if (type == nullptr) return OkStatus();
  if (*type != "bfloat16" && *type != "float32") {
    return InvalidArgument(
        "{}: rope_frequency_dtype is {}, expected float32 or bfloat16",
        root.where, Brief(*type));
  }
  rope.bf16_frequencies = *type == "bfloat16";
  return OkStatus();
}

// Anything else in the section would be left out of the maths. Null is absent.
Status RefuseOthers(const Section& section, const std::string& type) {
  std::vector<std::string_view> known = {"rope_type", "type", "rope_theta",
                                         "partial_rotary_factor"};
  for (const auto& [of, keys] : kKeysOfTypes) {
    if (of == type) known.insert(known.end(), keys.begin(), keys.end());
  }
  for (const auto& item : section.object.items()) {
    if (item.value().is_null() ||
        std::find(known.begin(), known.end(), item.key()) != known.end()) {
      continue;
    }
    return InvalidArgument("{}: {} is {}, which rope_type \"{}\" does not have",
                           section.where, item.key(), Brief(item.value()),
                           type);
  }
  return OkStatus();
}

// Layers that share one rotation rotate whole heads; a file that asks for
// anything else is refused.
Status RefusePartial(const Section& section) {
  if (!section.Has("partial_rotary_factor")) return OkStatus();
  BATON_ASSIGN_OR_RETURN(const double part,
                         section.Positive("partial_rotary_factor"));
  if (part == 1) return OkStatus();
  return InvalidArgument("{}: partial_rotary_factor is {}, expected 1",
                         section.where, part);
}

StatusOr<RopeConfig> ReadSection(const Section& top, const Section& section) {
  RopeConfig rope;
  BATON_ASSIGN_OR_RETURN(rope.theta, ReadTheta(top, section));
  BATON_RETURN_IF_ERROR(ReadFrequencyType(top, rope));
  BATON_ASSIGN_OR_RETURN(const std::string type, ReadType(section));
  if (type == "llama3") {
    BATON_RETURN_IF_ERROR(ReadLlama3(section, rope));
  } else if (type == "yarn") {
    BATON_RETURN_IF_ERROR(ReadYarn(top, section, rope));
  } else if (type != "default") {
    return InvalidArgument(
        "{}: rope_type is \"{}\", expected default, llama3 or yarn",
        section.where, type);
  }
  BATON_RETURN_IF_ERROR(RefuseOthers(section, type));
  return rope;
}

}  // namespace

StatusOr<RopeConfig> ReadRope(const json& root, const std::string& where) {
  const json* scaling = FindValue(root, "rope_scaling");
  const json* parameters = FindValue(root, "rope_parameters");
  if (scaling != nullptr && parameters != nullptr) {
    return InvalidArgument("{}: both rope_scaling and rope_parameters", where);
  }
  const char* name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  const json* found = parameters != nullptr ? parameters : scaling;
  const json none = json::object();
  if (found == nullptr) found = &none;
  const Section top{root, where};
  const Section section{*found, fmt::format("{}: {}", where, name)};
  if (!found->is_object()) {
    return InvalidArgument("{} is {}, expected an object", section.where,
                           Brief(*found));
  }
  for (const json& value : *found) {
    if (!value.is_object()) continue;
    return InvalidArgument("{}: parameters by layer type are not supported",
                           section.where);
  }
  BATON_RETURN_IF_ERROR(RefusePartial(top));
  BATON_RETURN_IF_ERROR(RefusePartial(section));
  return ReadSection(top, section);
}

StatusOr<RopeConfig> ReadRopeOf(const json& root, const std::string& layer_type,
                                const std::string& where) {
  const json* parameters = FindValue(root, "rope_parameters");
  const json* found = parameters != nullptr && parameters->is_object()
                          ? FindValue(*parameters, layer_type)
                          : nullptr;
  if (found == nullptr || !found->is_object()) {
    return InvalidArgument("{}: rope_parameters has no object {}", where,
                           layer_type);
  }
  const Section top{root, where};
  const Section section{
      *found, fmt::format("{}: rope_parameters.{}", where, layer_type)};
  if (FindValue(root, "rope_scaling") != nullptr) {
    return InvalidArgument("{}: both rope_scaling and rope_parameters", where);
  }
  BATON_RETURN_IF_ERROR(RefusePartial(top));
  BATON_ASSIGN_OR_RETURN(RopeConfig rope, ReadSection(top, section));
  BATON_ASSIGN_OR_RETURN(rope.part,
                         section.PositiveOr("partial_rotary_factor", 1));
  if (rope.part > 1) {
    return InvalidArgument("{}: partial_rotary_factor is {}, expected up to 1",
                           section.where, rope.part);
  }
  return rope;
}

}  // namespace baton
