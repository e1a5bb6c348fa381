// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/model_config.h"

#include <cmath>
#include <limits>
#include <utility>

#include "runtime/config/json.h"
#include "runtime/config/rope_config.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();

StatusOr<const json*> Require(const json& root, const std::string& key,
                              const std::string& where) {
  const json* value = FindValue(root, key);
  if (value == nullptr) return InvalidArgument("{}: {} is missing", where, key);
  return value;
}

bool IsOff(const json& value) {
  switch (value.type()) {
    case json::value_t::boolean:
      return !value.get<bool>();
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
    case json::value_t::number_float:
      return value.get<double>() == 0;
    case json::value_t::string:
      return value.get_ref<const std::string&>().empty();
    case json::value_t::null:
    case json::value_t::array:
    case json::value_t::object:
      return value.empty();
    case json::value_t::binary:
    case json::value_t::discarded:
      return false;
  }
  return false;
}

}  // namespace

struct ModelConfig::Json {
  json root;
  std::string where;
  std::string architecture;
};

ModelConfig::ModelConfig(std::unique_ptr<Json> json) : json_(std::move(json)) {}
ModelConfig::ModelConfig(ModelConfig&&) noexcept = default;
ModelConfig& ModelConfig::operator=(ModelConfig&&) noexcept = default;
ModelConfig::~ModelConfig() = default;

StatusOr<ModelConfig> ModelConfig::Parse(const std::string& text,
                                         const std::string& where) {
  BATON_ASSIGN_OR_RETURN(json root, ParseJsonObject(text, where));
  BATON_ASSIGN_OR_RETURN(const json* names,
                         Require(root, "architectures", where));
  const bool list = names->is_array() && !names->empty();
  const auto* first =
      list ? names->front().get_ptr<const std::string*>() : nullptr;
  if (first == nullptr || first->empty() || first->size() > 128) {
    return InvalidArgument(
        "{}: architectures is {}, expected a list that starts with a name",
        where, Brief(*names));
  }
  std::string architecture = *first;
  return ModelConfig(std::make_unique<Json>(
      Json{std::move(root), where, std::move(architecture)}));
}

const std::string& ModelConfig::architecture() const {
  return json_->architecture;
}

bool ModelConfig::Has(const std::string& key) const {
  return FindValue(json_->root, key) != nullptr;
}

StatusOr<int64_t> ModelConfig::Size(const std::string& key) const {
  BATON_ASSIGN_OR_RETURN(const json* value,
                         Require(json_->root, key, json_->where));
  return ToInteger(*value, fmt::format("{}: {}", json_->where, key), 1,
                   kMaxSize);
}

StatusOr<int64_t> ModelConfig::SizeOr(const std::string& key,
                                      int64_t fallback) const {
  if (!Has(key)) return fallback;
  return Size(key);
}

StatusOr<double> ModelConfig::Number(const std::string& key) const {
  BATON_ASSIGN_OR_RETURN(const json* value,
                         Require(json_->root, key, json_->where));
  // Layers compute with it in f32.
  if (!value->is_number() || !std::isfinite(value->get<float>())) {
    return InvalidArgument("{}: {} is {}, expected a number that fits f32",
                           json_->where, key, Brief(*value));
  }
  return value->get<double>();
}

StatusOr<bool> ModelConfig::BoolOr(const std::string& key,
                                   bool fallback) const {
  const json* value = FindValue(json_->root, key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    return InvalidArgument("{}: {} is {}, expected true or false", json_->where,
                           key, Brief(*value));
  }
  return value->get<bool>();
}

StatusOr<std::string> ModelConfig::Text(const std::string& key) const {
  BATON_ASSIGN_OR_RETURN(const json* value,
                         Require(json_->root, key, json_->where));
  if (!value->is_string()) {
    return InvalidArgument("{}: {} is {}, expected text", json_->where, key,
                           Brief(*value));
  }
  return value->get<std::string>();
}

StatusOr<std::vector<std::string>> ModelConfig::Texts(
    const std::string& key) const {
  std::vector<std::string> texts;
  const json* list = FindValue(json_->root, key);
  if (list == nullptr) return texts;
  if (!list->is_array()) {
    return InvalidArgument("{}: {} is {}, expected a list", json_->where, key,
                           Brief(*list));
  }
  for (const json& value : *list) {
    if (!value.is_string()) {
      return InvalidArgument("{}: {} has {}, expected text", json_->where, key,
                             Brief(value));
    }
    texts.push_back(value.get<std::string>());
  }
  return texts;
}

StatusOr<std::vector<int32_t>> ModelConfig::Ids(const std::string& key) const {
  return IdsUnder(json_->root, key, json_->where);
}

StatusOr<ModelConfig> ModelConfig::Object(const std::string& key) const {
  BATON_ASSIGN_OR_RETURN(const json* value,
                         Require(json_->root, key, json_->where));
  if (!value->is_object()) {
    return InvalidArgument("{}: {} is {}, expected an object", json_->where,
                           key, Brief(*value));
  }
  return ModelConfig(std::make_unique<Json>(Json{
      *value, fmt::format("{}: {}", json_->where, key), json_->architecture}));
}

StatusOr<RopeConfig> ModelConfig::Rope() const {
  return ReadRope(json_->root, json_->where);
}

StatusOr<RopeConfig> ModelConfig::RopeOf(const std::string& layer_type) const {
  return ReadRopeOf(json_->root, layer_type, json_->where);
}

Status ModelConfig::RequireOff(const std::string& key) const {
  const json* value = FindValue(json_->root, key);
  if (value == nullptr || IsOff(*value)) return OkStatus();
  return InvalidArgument("{}: {} is {}, which this decoder does not do",
                         json_->where, key, Brief(*value));
}

Status ModelConfig::RequireAllOff(const std::string& prefix) const {
  for (const auto& item : json_->root.items()) {
    if (!item.key().starts_with(prefix)) continue;
    BATON_RETURN_IF_ERROR(RequireOff(item.key()));
  }
  return OkStatus();
}

Status ModelConfig::RequireText(const std::string& key,
                                const std::string& value) const {
  const json* found = FindValue(json_->root, key);
  if (found == nullptr) return OkStatus();
  if (found->is_string() && found->get_ref<const std::string&>() == value) {
    return OkStatus();
  }
  return InvalidArgument("{}: {} is {}, this decoder does only \"{}\"",
                         json_->where, key, Brief(*found), value);
}

}  // namespace baton
