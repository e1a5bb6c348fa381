// SPDX-License-Identifier: Apache-2.0
#include "actors/cli/golden.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/weights/file.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr double kMaxErrorF32 = 1e-3;
constexpr double kMeanErrorBf16 = 0.05;
constexpr double kMarginF32 = 2e-3;
constexpr double kMarginBf16 = 0.15;

StatusOr<GoldenCase> ParseCase(const Json& json, const std::string& where) {
  GoldenCase c;
  try {  // the library reports wrong types by throwing
    c.prompt = json.at("prompt_ids").get<std::vector<int32_t>>();
    const auto ids =
        json.at("topk_ids").get<std::vector<std::vector<int32_t>>>();
    const auto logprobs =
        json.at("topk_logprobs").get<std::vector<std::vector<float>>>();
    const auto greedy = json.at("greedy_ids").get<std::vector<int32_t>>();
    const auto greedy_logprobs =
        json.at("greedy_logprobs").get<std::vector<float>>();
    c.margin = json.at("greedy_margin").get<std::vector<double>>();
    if (c.prompt.empty() || ids.size() != c.prompt.size() ||
        logprobs.size() != ids.size() ||
        greedy_logprobs.size() != greedy.size() ||
        c.margin.size() != greedy.size()) {
      return InvalidArgument("{}: lists of different lengths", where);
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i].size() != logprobs[i].size()) {
        return InvalidArgument("{}: position {}: lists of different lengths",
                               where, i);
      }
      auto& top = c.top.emplace_back();
      for (size_t k = 0; k < ids[i].size(); ++k) {
        top.push_back({ids[i][k], logprobs[i][k]});
      }
    }
    for (size_t i = 0; i < greedy.size(); ++i) {
      c.greedy.push_back({greedy[i], greedy_logprobs[i]});
    }
  } catch (const Json::exception& error) {
    return InvalidArgument("{}: {}", where, error.what());
  }
  return c;
}

void Compare(double golden, double run, const std::string& where,
             GoldenScore& score) {
  const double error = std::abs(golden - run);
  if (std::isnan(error)) score.complaints.push_back(where + ": not a number");
  score.max_error = std::max(score.max_error, error);
  score.sum_error += error;
  ++score.compared;
}

}  // namespace

StatusOr<std::vector<GoldenCase>> ReadGolden(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("cases") ||
      !json["cases"].is_array() || json["cases"].empty()) {
    return InvalidArgument("{}: not a golden file: no \"cases\"", path);
  }
  std::vector<GoldenCase> cases;
  for (const Json& entry : json["cases"]) {
    BATON_ASSIGN_OR_RETURN(
        GoldenCase c,
        ParseCase(entry, fmt::format("{}: case {}", path, cases.size())));
    cases.push_back(std::move(c));
  }
  return cases;
}

bool GoldenScore::Holds(DType dtype) const {
  const bool close = dtype == DType::kF32 ? max_error <= kMaxErrorF32
                                          : mean_error() <= kMeanErrorBf16;
  return compared > 0 && close && complaints.empty() &&
         greedy_equal == greedy_total;
}

void ScoreCase(const GoldenCase& golden, const Completion& run, DType dtype,
               GoldenScore& score) {
  // The last prompt position's logprobs come with the first generated token.
  std::vector<const SampleResult*> rows;
  for (const SampleResult& r : run.prompt) rows.push_back(&r);
  if (!run.tokens.empty()) rows.push_back(&run.tokens.front());
  if (rows.size() != golden.top.size()) {
    score.complaints.push_back(fmt::format("{} prompt positions, golden has {}",
                                           rows.size(), golden.top.size()));
    return;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const TokenLogprob& want : golden.top[i]) {
      auto found = std::find_if(
          rows[i]->top.begin(), rows[i]->top.end(),
          [&](const TokenLogprob& t) { return t.token == want.token; });
      const std::string where = fmt::format("prompt position {}", i);
      if (found == rows[i]->top.end()) {
        score.complaints.push_back(
            fmt::format("{}: golden token {} is not among the best {}", where,
                        want.token, kGoldenTop));
        continue;
      }
      Compare(want.logprob, found->logprob, where, score);
    }
  }
  const double border = dtype == DType::kF32 ? kMarginF32 : kMarginBf16;
  for (size_t i = 0; i < golden.greedy.size(); ++i) {
    const bool equal =
        i < run.tokens.size() && run.tokens[i].token == golden.greedy[i].token;
    // Past a near-tie that went the other way the texts differ by right.
    if (golden.margin[i] < border && (dtype == DType::kBF16 || !equal)) return;
    ++score.greedy_total;
    if (!equal) {
      score.complaints.push_back(
          fmt::format("greedy token {}: {} instead of {} (margin {:.4f})", i,
                      i < run.tokens.size() ? run.tokens[i].token : -1,
                      golden.greedy[i].token, golden.margin[i]));
      return;
    }
    ++score.greedy_equal;
    Compare(golden.greedy[i].logprob, run.tokens[i].logprob,
            fmt::format("greedy token {}", i), score);
  }
}

StatusOr<Bf16RopeCopy> Bf16RopeCopy::Make(const std::string& checkpoint) {
  namespace fs = std::filesystem;
  BATON_ASSIGN_OR_RETURN(const std::string text,
                         ReadFile(checkpoint + "/config.json"));
  Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return InvalidArgument("{}/config.json is not an object", checkpoint);
  }
  config["rope_frequency_dtype"] = "bfloat16";
  std::error_code error;
  std::string pattern =
      (fs::temp_directory_path(error) / "baton-parity-XXXXXX").string();
  if (error || mkdtemp(pattern.data()) == nullptr) {
    return Internal("make a temporary directory: {}", std::strerror(errno));
  }
  Bf16RopeCopy copy(pattern);
  for (const auto& entry : fs::directory_iterator(checkpoint, error)) {
    const fs::path name = entry.path().filename();
    if (name == "config.json") continue;
    fs::create_symlink(fs::absolute(entry.path()), pattern / name, error);
    if (error) break;
  }
  if (error) return Internal("link {}: {}", checkpoint, error.message());
  std::ofstream(pattern + "/config.json") << config.dump(1);
  return copy;
}

Bf16RopeCopy::~Bf16RopeCopy() {
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

}  // namespace baton
