// SPDX-License-Identifier: Apache-2.0
// Soak: random prompts, lengths, sampling and aborts on three stages for a
// while. A witness request in between must give the same tokens each time; at
// the end no page and no sequence is left, and memory has not grown.
//
//   soak [--minutes M] [--seed S] [--transport inproc|ucx] [--checkpoint DIR]
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "actors/local_pipeline.h"
#include "actors/placement.h"
#include "runtime/base/log.h"

namespace baton {
namespace {

constexpr int kStages = 3;
constexpr int kOutstanding = 12;
constexpr int64_t kGrowthAllowed = 2 << 20;

struct Flags {
  double minutes = 1;
  unsigned seed = 1;
  std::string transport = "ucx";
  std::string checkpoint;
};

// Of this process alone: UCX touches its shared-memory queues, whose size is
// fixed, little by little as large packets land in their elements.
int64_t PrivateBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  int64_t shared = 0;
  file >> size >> resident >> shared;
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

// What the soak's requests did; filled from the controller's thread.
class Ledger {
 public:
  void Start(const Request& request) {
    absl::MutexLock lock(&mutex_);
    live_[request.id] = request;
    ++started_;
  }
  void Token(const std::string& id, const SampleResult& token) {
    absl::MutexLock lock(&mutex_);
    got_[id].push_back(token);
    ++tokens_;
  }
  void End(const std::string& id, const Status& status) {
    absl::MutexLock lock(&mutex_);
    const Request& request = live_.at(id);
    const auto count = static_cast<int64_t>(got_[id].size());
    if (status.ok() && count != request.max_tokens) {
      Complain(fmt::format("{} gave {} tokens instead of {}", id, count,
                           request.max_tokens));
    }
    if (!status.ok() && status.code() != StatusCode::kCancelled) {
      Complain(fmt::format("{} ended with {}", id, ToString(status)));
    }
    if (status.code() == StatusCode::kCancelled) ++aborted_;
    if (id.rfind("witness", 0) == 0 && status.ok()) {
      if (witness_.empty()) witness_ = got_[id];
      if (witness_ != got_[id]) Complain(id + " differs from the first");
      ++witnesses_;
    }
    live_.erase(id);
    got_.erase(id);
  }
  [[nodiscard]] size_t live() const {
    absl::MutexLock lock(&mutex_);
    return live_.size();
  }
  [[nodiscard]] std::string AnyLive(size_t pick) const {
    absl::MutexLock lock(&mutex_);
    if (live_.empty()) return "";
    auto it = live_.begin();
    std::advance(it, static_cast<int64_t>(pick % live_.size()));
    return it->first;
  }
  [[nodiscard]] bool clean() const {
    absl::MutexLock lock(&mutex_);
    return complaints_ == 0 && live_.empty() && witnesses_ > 1;
  }
  [[nodiscard]] std::string Line() const {
    absl::MutexLock lock(&mutex_);
    return fmt::format(
        "requests={} aborted={} witnesses={} tokens={} complaints={}", started_,
        aborted_, witnesses_, tokens_, complaints_);
  }

 private:
  void Complain(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (++complaints_ <= 20) std::fprintf(stderr, "soak: %s\n", what.c_str());
  }

  mutable absl::Mutex mutex_;
  std::map<std::string, Request> live_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<SampleResult>> got_ ABSL_GUARDED_BY(mutex_);
  std::vector<SampleResult> witness_ ABSL_GUARDED_BY(mutex_);
  int64_t started_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t aborted_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t witnesses_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t complaints_ ABSL_GUARDED_BY(mutex_) = 0;
};

class LedgerSink : public RequestSink {
 public:
  LedgerSink(Ledger* ledger, std::string id)
      : ledger_(ledger), id_(std::move(id)) {}
  void OnEvent(const TokenEvent& event) override {
    if (event.token.has_value()) ledger_->Token(id_, *event.token);
  }
  void OnEnd(const Status& status) override { ledger_->End(id_, status); }

 private:
  Ledger* ledger_;
  std::string id_;
};

class Soak {
 public:
  explicit Soak(const Flags& flags) : flags_(flags), random_(flags.seed) {}

  StatusOr<bool> Run() {
    BATON_RETURN_IF_ERROR(Start());
    const absl::Time start = absl::Now();
    const absl::Duration length = absl::Minutes(1) * flags_.minutes;
    absl::Time next_line = start;
    int64_t settled = 0;  // private bytes at half time
    while (absl::Now() - start < length) {
      if (ledger_.live() < kOutstanding) {
        Submit();
      } else {
        absl::SleepFor(absl::Milliseconds(1));
      }
      if (random_() % 400 == 0) {
        controller_->ref().Tell(AbortRequest{ledger_.AnyLive(random_())});
      }
      if (settled == 0 && absl::Now() - start > length / 2) {
        settled = PrivateBytes();
      }
      if (absl::Now() >= next_line) {
        next_line = absl::Now() + std::min(absl::Seconds(30), length / 4);
        PrintLine(absl::Now() - start);
      }
    }
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (ledger_.live() > 0 && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    return Judge(settled, absl::Now() - start);
  }

 private:
  Status Start() {
    BATON_ASSIGN_OR_RETURN(model_, OpenModel(flags_.checkpoint, DType::kBF16,
                                             WeightsCheck::kStrict));
    LocalStagesOptions options;
    std::vector<StageConfig> names(kStages);
    for (int i = 0; i < kStages; ++i) {
      names[static_cast<size_t>(i)].name = fmt::format("s{}", i);
      options.names.push_back(names[static_cast<size_t>(i)].name);
    }
    BATON_ASSIGN_OR_RETURN(options.transport, ParseTransport(flags_.transport));
    BATON_ASSIGN_OR_RETURN(stages_, LocalStages::Start(options));
    ControllerOptions controller;
    BATON_ASSIGN_OR_RETURN(
        controller.placement,
        PlaceStages(model_.info,
                    CountBytes(model_.info, model_.tensors, DType::kBF16),
                    RouteKind::kRing, names));
    controller.decoder = model_.info;
    controller.checkpoint = model_.directory;
    controller.config = model_.config_text;
    controller.scheduler.slots = 0;
    controller.scheduler.prefill_chunk = 32;
    // Too few pages for all, so that sequences are preempted too.
    controller.scheduler.kv_pages = 80;
    controller_ =
        std::make_unique<ControllerHost>(std::move(controller), stages_.get());
    return controller_->WaitUntilServing(absl::Minutes(1));
  }

  void Submit() {
    Request r;
    const bool witness = next_ % 50 == 0;
    r.id = fmt::format("{}-{}", witness ? "witness" : "r", next_++);
    const int prompt = witness ? 23 : 1 + static_cast<int>(random_() % 180);
    for (int i = 0; i < prompt; ++i) {
      const uint32_t pick = witness ? static_cast<uint32_t>(i * 37) : random_();
      r.prompt.push_back(static_cast<int32_t>(pick % model_.info.vocab));
    }
    const int64_t room = model_.info.max_positions - prompt;
    r.max_tokens =
        witness
            ? 40
            : std::min<int64_t>(room, 1 + static_cast<int64_t>(random_() % 90));
    if (!witness && random_() % 2 == 0) {
      r.sampling.temperature = 0.9F;
      r.sampling.top_k = static_cast<int>(random_() % 50);
      r.sampling.top_p = 0.95F;
      r.sampling.seed = random_();
    }
    r.sampling.top_logprobs = static_cast<int>(witness ? 3 : random_() % 3);
    r.sampling.digest = witness;
    ledger_.Start(r);
    SubmitRequest submit;
    submit.sink = std::make_unique<LedgerSink>(&ledger_, r.id);
    submit.request = std::move(r);
    controller_->ref().Tell(std::move(submit));
  }

  void PrintLine(absl::Duration elapsed) {
    const ControllerStatus status = controller_->GetStatusNow();
    std::printf(
        "%6.0f s %s preemptions=%lld steps=%lld pages=%lld/%lld "
        "private=%.1f MB\n",
        absl::ToDoubleSeconds(elapsed), ledger_.Line().c_str(),
        static_cast<long long>(status.preemptions),
        static_cast<long long>(status.steps_done),
        static_cast<long long>(status.pages_used),
        static_cast<long long>(status.pages_total),
        static_cast<double>(PrivateBytes()) / 1e6);
    std::fflush(stdout);
  }

  bool Judge(int64_t settled, absl::Duration elapsed) {
    PrintLine(elapsed);
    const ControllerStatus status = controller_->GetStatusNow();
    int64_t sequences = 0;
    // The last release is on its way to the stages; each answers after it.
    controller_->Drain(absl::Seconds(10));
    for (int i = 0; i < kStages; ++i) {
      stages_->host(i).RunOnStage(
          [&](StageActor& stage) { sequences += stage.sequences(); });
    }
    const int64_t growth = PrivateBytes() - settled;
    std::printf(
        "soak: pages in use %lld, sequences on stages %lld, private "
        "memory %+.1f MB since half time\n",
        static_cast<long long>(status.pages_used),
        static_cast<long long>(sequences), static_cast<double>(growth) / 1e6);
    return ledger_.clean() && status.pages_used == 0 && sequences == 0 &&
           growth <= kGrowthAllowed;
  }

  const Flags& flags_;
  std::mt19937 random_;
  OpenedModel model_;
  Ledger ledger_;
  std::unique_ptr<LocalStages> stages_;
  std::unique_ptr<ControllerHost> controller_;
  int next_ = 0;
};

int Main(int argc, char** argv) {
  Flags flags;
  flags.checkpoint = BATON_SOURCE_DIR "/tests/checkpoints/nanbeige";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    if (key == "--minutes") flags.minutes = std::atof(argv[i + 1]);
    if (key == "--seed") flags.seed = static_cast<unsigned>(atoi(argv[i + 1]));
    if (key == "--transport") flags.transport = argv[i + 1];
    if (key == "--checkpoint") flags.checkpoint = argv[i + 1];
  }
  SetLogLevel(LogLevel::kWarn);
  StatusOr<bool> clean = Soak(flags).Run();
  if (!clean.ok()) {
    std::fprintf(stderr, "soak: %s\n", ToString(clean.status()).c_str());
    return 1;
  }
  std::printf("soak: %s\n", *clean ? "clean" : "NOT CLEAN");
  return *clean ? 0 : 1;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
