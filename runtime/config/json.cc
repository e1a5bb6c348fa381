// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/json.h"

#include <exception>
#include <limits>
#include <unordered_set>
#include <utility>

namespace baton {
namespace {

using nlohmann::json;

constexpr size_t kMaxLength = 80;  // of a quoted key or value

// Watches the parser: remembers the first key given twice and the first value
// that is too deep (such values are dropped as they come).
class Watch {
 public:
  explicit Watch(int max_depth) : max_depth_(max_depth) {}

  bool operator()(int depth, json::parse_event_t event, json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
        keys_.emplace_back();
        break;
      case json::parse_event_t::object_end:
        if (!keys_.empty()) keys_.pop_back();
        break;
      case json::parse_event_t::key:
        if (!keys_.empty()) Remember(value);
        break;
      case json::parse_event_t::array_start:
      case json::parse_event_t::array_end:
      case json::parse_event_t::value:
        break;
    }
    if (depth > max_depth_) too_deep_ = true;
    return depth <= max_depth_;
  }

  [[nodiscard]] bool too_deep() const { return too_deep_; }
  [[nodiscard]] const std::string& twice() const { return twice_; }
  [[nodiscard]] bool has_twice() const { return has_twice_; }

 private:
  void Remember(const json& key) {
    const std::string& name = key.get_ref<const std::string&>();
    if (!keys_.back().insert(name).second && !has_twice_) {
      twice_ = name.substr(0, kMaxLength);
      has_twice_ = true;
    }
  }

  int max_depth_;
  bool too_deep_ = false;
  bool has_twice_ = false;
  std::string twice_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the open objects
};

}  // namespace

StatusOr<json> ParseJsonObject(std::string_view text, const std::string& where,
                               JsonLimits limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return InvalidArgument("{}: {} bytes of JSON, at most {} are read", where,
                           text.size(), limits.max_bytes);
  }
  Watch watch(limits.max_depth);
  json root;
  try {
    root = json::parse(text.begin(), text.end(), std::ref(watch));
  } catch (const std::exception& error) {
    return InvalidArgument("{}: not valid JSON: {}", where, error.what());
  }
  if (watch.too_deep()) {
    return InvalidArgument("{}: JSON nested deeper than {} levels", where,
                           limits.max_depth);
  }
  if (watch.has_twice()) {
    return InvalidArgument("{}: key \"{}\" is given twice", where,
                           watch.twice());
  }
  if (!root.is_object()) {
    return InvalidArgument("{}: JSON is {}, expected an object", where,
                           Brief(root));
  }
  return root;
}

const json* FindValue(const json& object, const std::string& key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string Brief(const json& value) {
  if (value.is_object()) {
    return fmt::format("an object of {} keys", value.size());
  }
  if (value.is_array() && value.size() > 8) {
    return fmt::format("a list of {} values", value.size());
  }
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true,
                                json::error_handler_t::replace);
  if (text.size() > kMaxLength) text = text.substr(0, kMaxLength) + "...";
  return text;
}

StatusOr<int64_t> ToInteger(const json& value, const std::string& what,
                            int64_t low, int64_t high) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= kMax
                                               : value.is_number_integer();
  if (fits) {
    const auto number = value.get<int64_t>();
    if (number >= low && number <= high) return number;
  }
  return InvalidArgument("{} is {}, expected an integer from {} to {}", what,
                         Brief(value), low, high);
}

StatusOr<std::vector<int32_t>> IdsUnder(const json& object,
                                        const std::string& key,
                                        const std::string& where) {
  std::vector<int32_t> ids;
  const json* value = FindValue(object, key);
  if (value == nullptr) return ids;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& item : list) {
    BATON_ASSIGN_OR_RETURN(const int64_t id,
                           ToInteger(item, fmt::format("{}: {}", where, key), 0,
                                     std::numeric_limits<int32_t>::max()));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace baton
