// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <random>
#include <utility>

#include "runtime/config/model_config.h"

namespace baton {
namespace {

constexpr int kMaxLogprobs = 64;
constexpr size_t kMaxIdBytes = 1024;

uint64_t RandomSeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

StatusOr<std::vector<int32_t>> ToIds(const std::vector<uint32_t>& from,
                                     int64_t limit, std::string_view what) {
  std::vector<int32_t> ids;
  ids.reserve(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] >= limit) {
      return InvalidArgument("{} {} at position {}: expected less than {}",
                             what, from[i], i, limit);
    }
    ids.push_back(static_cast<int32_t>(from[i]));
  }
  return ids;
}

StatusOr<int> ToLogprobs(int32_t asked, std::string_view what) {
  if (asked < 0 || asked > kMaxLogprobs) {
    return InvalidArgument("{} {}: expected 0 to {}", what, asked,
                           kMaxLogprobs);
  }
  return asked;
}

StatusOr<int64_t> MaxTokens(const GenerateCall& call, const ModelFacts& facts) {
  const auto prompt = static_cast<int64_t>(call.prompt.size());
  const int64_t left = facts.context - prompt;
  if (left < 1) {
    return InvalidArgument(
        "the prompt has {} tokens and the context {}: nothing is left to "
        "generate",
        prompt, facts.context);
  }
  if (call.max_tokens.has_value()) return *call.max_tokens;
  // No number was asked for: what the KV pool can hold is enough.
  return std::max<int64_t>(1, std::min(left, facts.kv_tokens - prompt));
}

StatusOr<SamplingParams> Sampling(const GenerateCall& call,
                                  uint64_t random_seed) {
  SamplingParams sampling;
  sampling.temperature = call.temperature.value_or(1.0f);
  sampling.top_p = call.top_p.value_or(1.0f);
  sampling.min_p = call.min_p.value_or(0.0f);
  // More than any vocabulary has is the same as all.
  sampling.top_k = static_cast<int>(std::min<uint32_t>(
      call.top_k.value_or(0), std::numeric_limits<int32_t>::max()));
  sampling.seed =
      call.seed.has_value() ? static_cast<uint64_t>(*call.seed) : random_seed;
  if (call.logprobs.has_value()) {
    BATON_ASSIGN_OR_RETURN(sampling.top_logprobs,
                           ToLogprobs(*call.logprobs, "logprobs"));
  }
  if (call.prompt_logprobs.has_value()) {
    BATON_ASSIGN_OR_RETURN(
        sampling.prompt_logprobs,
        ToLogprobs(*call.prompt_logprobs, "prompt_logprobs"));
    // 0 asks for the prompt's own tokens; one alternative is computed along.
    sampling.prompt_logprobs = std::max(sampling.prompt_logprobs, 1);
  }
  return sampling;
}

}  // namespace

StatusOr<ModelFacts> FactsOf(const OpenedModel& model,
                             const ControllerOptions& options,
                             const std::string& name) {
  namespace fs = std::filesystem;
  BATON_ASSIGN_OR_RETURN(
      const ModelConfig config,
      ModelConfig::Parse(model.config_text, model.directory + "/config.json"));
  std::error_code ignored;
  const fs::path path =
      fs::weakly_canonical(fs::path(model.directory), ignored);
  ModelFacts facts;
  facts.path = path.string();
  facts.name = name.empty() ? path.filename().string() : name;
  if (fs::exists(path / "tokenizer.json", ignored)) {
    facts.tokenizer_path = facts.path;
  }
  facts.architecture = model.info.architecture;
  if (StatusOr<std::string> type = config.Text("model_type"); type.ok()) {
    facts.model_type = *std::move(type);
  }
  facts.dtype = std::string(Name(options.dtype));
  facts.vocab = model.info.vocab;
  facts.context = model.info.max_positions;
  facts.kv_tokens = options.scheduler.kv_pages * kPageTokens;
  facts.max_sequences = options.scheduler.max_sequences;
  facts.eos_ids = model.eos_ids;
  const auto first = [&config](const char* key) -> std::optional<int32_t> {
    StatusOr<std::vector<int32_t>> ids = config.Ids(key);
    if (!ids.ok() || ids->empty()) return std::nullopt;
    return ids->front();
  };
  facts.bos_id = first("bos_token_id");
  facts.pad_id = first("pad_token_id");
  return facts;
}

StatusOr<Request> MakeRequest(const GenerateCall& call, const ModelFacts& facts,
                              std::string id, uint64_t random_seed) {
  if (call.prompt.empty()) return InvalidArgument("the prompt is empty");
  Request request;
  request.id = std::move(id);
  BATON_ASSIGN_OR_RETURN(request.prompt,
                         ToIds(call.prompt, facts.vocab, "prompt id"));
  BATON_ASSIGN_OR_RETURN(request.max_tokens, MaxTokens(call, facts));
  BATON_ASSIGN_OR_RETURN(request.sampling, Sampling(call, random_seed));
  BATON_ASSIGN_OR_RETURN(
      request.stop_ids,
      ToIds(call.stop_ids, std::numeric_limits<int32_t>::max(),
            "stop token id"));
  if (!call.ignore_eos) {
    request.stop_ids.insert(request.stop_ids.end(), facts.eos_ids.begin(),
                            facts.eos_ids.end());
  }
  return request;
}

Gateway::Gateway(ControllerRef controller, ModelFacts facts)
    : controller_(std::move(controller)), facts_(std::move(facts)) {}

StatusOr<std::string> Gateway::Issue(const std::string& request_id) {
  if (request_id.size() > kMaxIdBytes) {
    return InvalidArgument("request_id: {} bytes, at most {} are allowed",
                           request_id.size(), kMaxIdBytes);
  }
  absl::MutexLock lock(&mutex_);
  std::string ticket = std::to_string(next_++);
  // A request without an id cannot be aborted by it.
  const std::string key = request_id.empty() ? "\n" + ticket : request_id;
  if (!tickets_.emplace(key, ticket).second) {
    return MakeStatus(StatusCode::kAlreadyExists,
                      "request_id {} is that of a live request", request_id);
  }
  return ticket;
}

std::string Gateway::Submit(const GenerateCall& call,
                            std::unique_ptr<RequestSink> sink) {
  StatusOr<std::string> ticket = Issue(call.request_id);
  if (!ticket.ok()) {
    sink->OnEnd(ticket.status());
    return "";
  }
  StatusOr<Request> request = MakeRequest(call, facts_, *ticket, RandomSeed());
  if (!request.ok()) {
    Forget(*ticket);
    sink->OnEnd(request.status());
    return "";
  }
  controller_.Tell(SubmitRequest{*std::move(request), std::move(sink)});
  return *ticket;
}

void Gateway::Abort(const std::string& ticket) {
  controller_.Tell(AbortRequest{ticket});
}

bool Gateway::AbortById(const std::string& request_id) {
  std::string ticket;
  {
    absl::MutexLock lock(&mutex_);
    auto found = tickets_.find(request_id);
    if (found == tickets_.end()) return false;
    ticket = found->second;
  }
  Abort(ticket);
  return true;
}

void Gateway::Forget(const std::string& ticket) {
  absl::MutexLock lock(&mutex_);
  for (auto it = tickets_.begin(); it != tickets_.end(); ++it) {
    if (it->second == ticket) {
      tickets_.erase(it);
      return;
    }
  }
}

int64_t Gateway::live() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(tickets_.size());
}

}  // namespace baton
