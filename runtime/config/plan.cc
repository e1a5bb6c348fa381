// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/plan.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <set>

namespace baton {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr int kMaxStages = 1024;
constexpr int kMaxInt = std::numeric_limits<int>::max();
// The controller keeps a flag and an id for each page of 16 tokens.
constexpr int64_t kMaxKvTokens = int64_t{1} << 32;

// One value of the file and where it stands.
class Value {
 public:
  Value(YAML::Node node, const std::string& file, std::string key)
      : node_(std::move(node)), file_(file), key_(std::move(key)) {}

  [[nodiscard]] const YAML::Node& node() const { return node_; }
  [[nodiscard]] const std::string& key() const { return key_; }
  [[nodiscard]] const std::string& file() const { return file_; }

  template <typename... Args>
  [[nodiscard]] Status Error(fmt::format_string<Args...> format,
                             Args&&... args) const {
    return InvalidArgument("{}:{}: {}", file_, node_.Mark().line + 1,
                           fmt::format(format, std::forward<Args>(args)...));
  }

  [[nodiscard]] StatusOr<std::string> Text() const {
    if (!node_.IsScalar() || node_.Scalar().empty()) {
      return Error("{}: expected a text", key_);
    }
    return node_.Scalar();
  }

  [[nodiscard]] StatusOr<int64_t> Integer(int64_t low, int64_t high) const {
    int64_t value = 0;
    if (node_.IsScalar()) {
      const std::string& text = node_.Scalar();
      const char* end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data(), end, value);
      if (error == std::errc() && stop == end && value >= low &&
          value <= high) {
        return value;
      }
    }
    return Error("{}: expected an integer from {} to {}", key_, low, high);
  }

  [[nodiscard]] StatusOr<absl::Duration> Duration() const {
    absl::Duration value;
    if (!node_.IsScalar() || !absl::ParseDuration(node_.Scalar(), &value) ||
        value < absl::Milliseconds(1) || value > absl::Hours(24 * 365)) {
      return Error("{}: expected a duration such as 500ms, 3s or 2m", key_);
    }
    return value;
  }

 private:
  YAML::Node node_;
  const std::string& file_;
  std::string key_;
};

using Setter = std::function<Status(const Value&)>;
using Setters = std::map<std::string, Setter>;

// Calls the setter of each key of a map.
Status ReadMap(const Value& map, const Setters& setters) {
  if (!map.node().IsMap()) {
    return map.Error("{}: expected a map of keys to values", map.key());
  }
  std::set<std::string> seen;
  for (const auto& entry : map.node()) {
    const Value key(entry.first, map.file(), map.key());
    if (!entry.first.IsScalar()) return key.Error("a key is not a text");
    const std::string& name = entry.first.Scalar();
    auto setter = setters.find(name);
    if (setter == setters.end()) return key.Error("unknown key {}", name);
    if (!seen.insert(name).second) return key.Error("{} is given twice", name);
    BATON_RETURN_IF_ERROR(
        setter->second(Value(entry.second, map.file(), name)));
  }
  return OkStatus();
}

// A setter from a getter of Value and a place to put what it gives.
template <typename Get, typename T>
Setter Into(Get get, T* to) {
  return [get, to](const Value& value) -> Status {
    auto result = get(value);
    if (!result.ok()) return result.status();
    *to = static_cast<T>(*std::move(result));
    return OkStatus();
  };
}
Setter TextInto(std::string* to) {
  return Into([](const Value& v) { return v.Text(); }, to);
}
Setter DurationInto(absl::Duration* to) {
  return Into([](const Value& v) { return v.Duration(); }, to);
}
template <typename T>
Setter IntegerInto(T* to, int64_t low, int64_t high) {
  return Into([low, high](const Value& v) { return v.Integer(low, high); }, to);
}
// A text that `parse` understands.
template <typename T>
Setter ParsedInto(StatusOr<T> (*parse)(const std::string&), T* to) {
  return [parse, to](const Value& value) -> Status {
    BATON_ASSIGN_OR_RETURN(const std::string text, value.Text());
    StatusOr<T> parsed = parse(text);
    if (!parsed.ok()) {
      return value.Error("{}: {}", value.key(), Message(parsed.status()));
    }
    *to = *parsed;
    return OkStatus();
  };
}

Status ReadLayers(const Value& value, StageConfig& stage) {
  if (!value.node().IsSequence() || value.node().size() != 2) {
    return value.Error("layers: expected [FIRST, END]");
  }
  UnrolledRange range;
  int* const parts[2] = {&range.begin, &range.end};
  for (size_t i = 0; i < 2; ++i) {
    const Value part(value.node()[i], value.file(), "layers");
    BATON_ASSIGN_OR_RETURN(const int64_t layer, part.Integer(0, kMaxInt));
    *parts[i] = static_cast<int>(layer);
  }
  if (range.begin >= range.end) {
    return value.Error("layers: [{}, {}] holds no layer", range.begin,
                       range.end);
  }
  stage.layers = range;
  return OkStatus();
}

bool IsStageName(const std::string& name) {
  return name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                  c == '-' || c == '_' || c == '.';
         });
}

Status ReadRanks(const Value& value, StageConfig& stage) {
  BATON_ASSIGN_OR_RETURN(const int64_t ranks, value.Integer(1, 8));
  if ((ranks & (ranks - 1)) != 0) {
    return value.Error("tp: {}, expected 1, 2, 4 or 8", ranks);
  }
  stage.tp = static_cast<int>(ranks);
  return OkStatus();
}

Status ReadStage(const Value& value, StageConfig& stage) {
  BATON_RETURN_IF_ERROR(ReadMap(
      value,
      {{"name", TextInto(&stage.name)},
       {"layers", [&stage](const Value& v) { return ReadLayers(v, stage); }},
       {"tp", [&stage](const Value& v) { return ReadRanks(v, stage); }}}));
  if (stage.name.empty()) return value.Error("a stage has no name");
  if (!IsStageName(stage.name)) {
    return value.Error(
        "stage name \"{}\": expected up to 64 letters, digits, '-', '_', '.'",
        stage.name);
  }
  return OkStatus();
}

// What the stages' layers say about each other.
Status CheckLayers(const Value& value, const StageConfig& stage,
                   const StageConfig* before) {
  const bool first = before == nullptr;
  if (!first && stage.layers.has_value() != before->layers.has_value()) {
    return value.Error("stage {}: layers are given for some stages only",
                       stage.name);
  }
  if (!stage.layers.has_value()) return OkStatus();
  const int expected = first ? 0 : before->layers->end;
  if (stage.layers->begin != expected) {
    return value.Error("stage {}: layers begin at {}, expected {}", stage.name,
                       stage.layers->begin, expected);
  }
  return OkStatus();
}

Status ReadStages(const Value& value, std::vector<StageConfig>& stages) {
  if (!value.node().IsSequence() || value.node().size() == 0) {
    return value.Error("stages: expected a list of at least one stage");
  }
  if (value.node().size() > kMaxStages) {
    return value.Error("stages: {} of them, at most {} are possible",
                       value.node().size(), kMaxStages);
  }
  std::set<std::string> names;
  for (const YAML::Node& node : value.node()) {
    const Value item(node, value.file(), "stages");
    StageConfig stage;
    BATON_RETURN_IF_ERROR(ReadStage(item, stage));
    if (!names.insert(stage.name).second) {
      return item.Error("two stages are named {}", stage.name);
    }
    BATON_RETURN_IF_ERROR(
        CheckLayers(item, stage, stages.empty() ? nullptr : &stages.back()));
    stages.push_back(std::move(stage));
  }
  return OkStatus();
}

Status ReadServeConfig(const Value& root, ServeConfig& config) {
  BATON_RETURN_IF_ERROR(ReadMap(
      root,
      {{"checkpoint", TextInto(&config.checkpoint)},
       {"route", ParsedInto(&ParseRoute, &config.route)},
       {"dtype", ParsedInto(&ParseComputeDType, &config.dtype)},
       {"listen", ParsedInto(&ParseAddress, &config.listen)},
       {"metrics_listen", ParsedInto(&ParseAddress, &config.metrics_listen)},
       {"stages",
        [&config](const Value& v) { return ReadStages(v, config.stages); }},
       {"kv_tokens", IntegerInto(&config.kv_tokens, 1, kMaxKvTokens)},
       {"prefill_chunk", IntegerInto(&config.prefill_chunk, 0, kMaxInt)},
       {"max_step_tokens", IntegerInto(&config.max_step_tokens, 1, kMaxInt)},
       {"max_sequences", IntegerInto(&config.max_sequences, 1, 1 << 20)},
       {"max_queue", IntegerInto(&config.max_queue, 0, kMaxInt)},
       {"micro_batches", IntegerInto(&config.micro_batches, 1, 1024)},
       {"step_deadline", DurationInto(&config.step_deadline)},
       {"load_deadline", DurationInto(&config.load_deadline)},
       {"join_deadline", DurationInto(&config.join_deadline)},
       {"lease", DurationInto(&config.lease)}}));
  if (config.stages.empty()) return root.Error("stages are missing");
  if (Status status = CheckServeConfig(config); !status.ok()) {
    return root.Error("{}", Message(status));
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::string> ParseAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = -1;
  if (colon != std::string::npos && colon > 0) {
    const char* end = text.data() + text.size();
    const auto [stop, error] =
        std::from_chars(text.data() + colon + 1, end, port);
    if (error != std::errc() || stop != end) port = -1;
  }
  if (port < 0 || port > 65535) {
    return InvalidArgument("expected HOST:PORT, found \"{}\"", text);
  }
  return text;
}

std::string_view Name(RouteKind kind) {
  switch (kind) {
    case RouteKind::kRing:
      return "ring";
    case RouteKind::kUnrolled:
      return "unrolled";
  }
  return "?";
}

StatusOr<RouteKind> ParseRoute(const std::string& text) {
  if (text == "ring") return RouteKind::kRing;
  if (text == "unrolled") return RouteKind::kUnrolled;
  return InvalidArgument("route \"{}\": expected ring or unrolled", text);
}

StatusOr<DType> ParseComputeDType(const std::string& text) {
  if (text == "bf16") return DType::kBF16;
  if (text == "f32") return DType::kF32;
  return InvalidArgument("dtype \"{}\": expected bf16 or f32", text);
}

Status CheckServeConfig(const ServeConfig& config) {
  if (config.max_step_tokens < config.max_sequences) {
    return InvalidArgument(
        "max_step_tokens {} is less than max_sequences {}: a step could not "
        "hold one token of each",
        config.max_step_tokens, config.max_sequences);
  }
  if (config.kv_tokens > kMaxKvTokens) {
    return InvalidArgument("kv_tokens {}: at most {}", config.kv_tokens,
                           kMaxKvTokens);
  }
  return OkStatus();
}

StatusOr<ServeConfig> ParseServeConfig(const std::string& text,
                                       const std::string& file) {
  if (text.size() > kMaxFileBytes) {
    return InvalidArgument("{}:1: {} bytes, at most {} are read", file,
                           text.size(), kMaxFileBytes);
  }
  try {  // yaml-cpp reports by throwing
    ServeConfig config;
    const YAML::Node root = YAML::Load(text);
    BATON_RETURN_IF_ERROR(
        ReadServeConfig(Value(root, file, "the file"), config));
    return config;
  } catch (const YAML::Exception& error) {
    return InvalidArgument("{}:{}: {}", file, error.mark.line + 1, error.msg);
  }
}

}  // namespace baton
