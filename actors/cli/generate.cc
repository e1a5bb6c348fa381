// SPDX-License-Identifier: Apache-2.0
// `baton generate`: sends token ids, prints tokens as they stream.
#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/time/clock.h"
#include "actors/cli/cli.h"
#include "actors/grpc/generate_client.h"
#include "runtime/base/log.h"
#include "runtime/weights/file.h"
#include "runtime/weights/tokenizer.h"

namespace baton {
namespace {

struct Flags {
  std::string server = "127.0.0.1:50051";
  std::string ids;
  std::string ids_file;
  std::string tokenizer;
  GenerateCall call;
  bool json = false;
};

// "1, 2 3" -> {1, 2, 3}; commas, spaces and newlines separate.
StatusOr<std::vector<uint32_t>> ParseIds(const std::string& text) {
  std::vector<uint32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  constexpr std::string_view kSeparators = ", \t\r\n[]";
  while (at < end) {
    if (kSeparators.find(*at) != std::string_view::npos) {
      ++at;
      continue;
    }
    uint32_t id = 0;
    const auto [stop, error] = std::from_chars(at, end, id);
    if (error != std::errc() ||
        (stop < end && kSeparators.find(*stop) == std::string_view::npos)) {
      return InvalidArgument(
          "token ids: \"{}\" is not an id",
          std::string(at, std::min<ptrdiff_t>(end - at, 20)));
    }
    ids.push_back(id);
    at = stop;
  }
  return ids;
}

nlohmann::json ToJson(const std::vector<SampleResult>& results) {
  nlohmann::json list = nlohmann::json::array();
  for (const SampleResult& result : results) {
    nlohmann::json top = nlohmann::json::array();
    for (const TokenLogprob& t : result.top) {
      top.push_back({{"id", t.token}, {"logprob", t.logprob}});
    }
    list.push_back({{"id", result.token},
                    {"logprob", result.logprob},
                    {"top", std::move(top)}});
  }
  return list;
}

// Prints a generation as it comes: text where there is a tokenizer, ids where
// not, one JSON object at the end with --json.
class Printer {
 public:
  Printer(bool json, std::optional<TokenTable> table)
      : json_(json), table_(std::move(table)) {
    if (table_.has_value()) text_.emplace(&*table_);
  }

  void Chunk(const GenerateChunk& chunk) {
    if (!first_.has_value()) first_ = absl::Now();
    last_ = absl::Now();
    generated_ += static_cast<int64_t>(chunk.ids.size());
    Append(logprobs_, chunk.logprobs);
    Append(prompt_logprobs_, chunk.prompt_logprobs);
    for (size_t i = 0; i < chunk.ids.size(); ++i) {
      ids_.push_back(chunk.ids[i]);
      if (text_.has_value()) whole_text_ += Show(text_->Push(chunk.ids[i]));
      if (json_ || text_.has_value()) continue;
      std::printf("%d ", chunk.ids[i]);
      if (i < chunk.logprobs.size()) PrintLogprob(chunk.logprobs[i]);
    }
    std::fflush(stdout);
  }

  void End(const GenerateSummary& summary) {
    if (text_.has_value()) whole_text_ += Show(text_->Finish());
    const double first =
        absl::ToDoubleSeconds(first_.value_or(absl::Now()) - start_);
    const double rest = absl::ToDoubleSeconds(last_ - first_.value_or(last_));
    const double rate =
        generated_ > 1 ? static_cast<double>(generated_ - 1) / rest : 0;
    if (json_) {
      nlohmann::json out = {{"ids", ids_},
                            {"finish_reason", summary.finish_reason},
                            {"prompt_tokens", summary.prompt_tokens},
                            {"generated_tokens", generated_},
                            {"first_token_seconds", first}};
      if (std::isfinite(rate)) out["tokens_per_second"] = rate;
      if (text_.has_value()) out["text"] = whole_text_;
      if (!logprobs_.empty()) out["logprobs"] = ToJson(logprobs_);
      if (!prompt_logprobs_.empty()) {
        out["prompt_logprobs"] = ToJson(prompt_logprobs_);
      }
      std::printf("%s\n", out.dump().c_str());
      return;
    }
    if (text_.has_value()) {
      std::printf("\n");
      for (size_t i = 0; i < ids_.size(); ++i) {
        std::printf("%d ", ids_[i]);
        if (i < logprobs_.size()) PrintLogprob(logprobs_[i]);
      }
    }
    std::printf(
        "\n%lld prompt tokens, %lld generated (%s), first token %.3f s, %.1f "
        "tok/s\n",
        static_cast<long long>(summary.prompt_tokens),
        static_cast<long long>(generated_), summary.finish_reason.c_str(),
        first, std::isfinite(rate) ? rate : 0.0);
  }

 private:
  static void Append(std::vector<SampleResult>& to,
                     const std::vector<SampleResult>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }
  std::string Show(std::string text) const {
    if (!json_) std::fwrite(text.data(), 1, text.size(), stdout);
    return text;
  }
  static void PrintLogprob(const SampleResult& result) {
    std::printf("(%.4f", static_cast<double>(result.logprob));
    for (const TokenLogprob& top : result.top) {
      std::printf(" %d:%.4f", top.token, static_cast<double>(top.logprob));
    }
    std::printf(") ");
  }

  const bool json_;
  std::optional<TokenTable> table_;
  std::optional<TextStream> text_;
  std::string whole_text_;
  std::vector<int32_t> ids_;
  std::vector<SampleResult> logprobs_, prompt_logprobs_;
  int64_t generated_ = 0;
  const absl::Time start_ = absl::Now();
  std::optional<absl::Time> first_;
  absl::Time last_ = start_;
};

// The tokenizer that was named, or the server's if it is on this machine.
StatusOr<std::optional<TokenTable>> FindTokenizer(const Flags& flags) {
  std::string directory = flags.tokenizer;
  if (directory.empty()) {
    BATON_ASSIGN_OR_RETURN(const ServedModel model, AskModel(flags.server));
    directory = model.tokenizer_path;
  }
  if (directory.empty()) return std::optional<TokenTable>();
  StatusOr<TokenTable> table = TokenTable::Open(directory);
  if (table.ok()) return std::make_optional(*std::move(table));
  if (!flags.tokenizer.empty()) return table.status();
  LogDebug("generate.no_text", "tokenizer={} status={}", directory,
           ToString(table.status()));
  return std::optional<TokenTable>();
}

Status Run(Flags flags) {
  std::string text = flags.ids;
  if (!flags.ids_file.empty()) {
    BATON_ASSIGN_OR_RETURN(text, ReadFile(flags.ids_file));
  }
  BATON_ASSIGN_OR_RETURN(flags.call.prompt, ParseIds(text));
  BATON_ASSIGN_OR_RETURN(std::optional<TokenTable> table, FindTokenizer(flags));
  Printer printer(flags.json, std::move(table));
  BATON_ASSIGN_OR_RETURN(
      const GenerateSummary summary,
      Generate(
          flags.server, flags.call,
          [&printer](const GenerateChunk& chunk) { printer.Chunk(chunk); },
          [] { return Interrupted(); }));
  printer.End(summary);
  return OkStatus();
}

void AddFlags(CLI::App& sub, Flags& flags) {
  GenerateCall& call = flags.call;
  sub.add_option("--server", flags.server, "HOST:PORT of baton serve")
      ->capture_default_str()
      ->check(AddressProblem);
  CLI::Option* ids =
      sub.add_option("--ids", flags.ids, "token ids of the prompt: 1,2,3");
  sub.add_option("--ids-file", flags.ids_file, "file with the token ids")
      ->excludes(ids);
  sub.add_option("--max-tokens", call.max_tokens,
                 "tokens to generate; default: what the context leaves");
  sub.add_option("--temperature", call.temperature, "0: greedy; default: 1");
  sub.add_option("--top-k", call.top_k, "0: all");
  sub.add_option("--top-p", call.top_p, "0 or 1: all");
  sub.add_option("--min-p", call.min_p, "0: all");
  sub.add_option("--seed", call.seed, "default: random")
      ->check(CLI::Range(std::numeric_limits<int32_t>::min(),
                         std::numeric_limits<int32_t>::max()));
  sub.add_option("--logprobs", call.logprobs,
                 "logprobs of the tokens, with this many alternatives");
  sub.add_option("--prompt-logprobs", call.prompt_logprobs,
                 "the same for the prompt; seen with --json");
  sub.add_option("--stop-ids", call.stop_ids, "token ids that end it")
      ->delimiter(',');
  sub.add_flag("--ignore-eos", call.ignore_eos,
               "do not stop at the checkpoint's end tokens");
  sub.add_option("--tokenizer", flags.tokenizer,
                 "directory of a tokenizer.json, to print text");
  sub.add_flag("--json", flags.json, "print one JSON object at the end");
}

}  // namespace

void AddGenerate(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand(
      "generate", "Send token ids to a server and print what it generates");
  AddFlags(*sub, *flags);
  sub->callback([flags, exit_code] {
    CatchSignals();
    if (Status status = Run(*flags); !status.ok()) *exit_code = Fail(status);
  });
}

}  // namespace baton
