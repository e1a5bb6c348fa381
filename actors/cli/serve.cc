// SPDX-License-Identifier: Apache-2.0
// `baton serve`: the controller with its gRPC front. Stages live in this
// process, or join from others where a config names them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "actors/cli/cli.h"
#include "actors/gateway.h"
#include "actors/grpc/controller_service.h"
#include "actors/grpc/vllm_service.h"
#include "actors/local_pipeline.h"
#include "actors/serve_plan.h"
#include "kernels/devices/devices.h"
#include "runtime/base/log.h"
#include "runtime/base/metrics.h"

namespace baton {
namespace {

constexpr int kPollMs = 100;
constexpr uint64_t kRandomSeed = 1;

// What is absent leaves the config's value.
struct Flags {
  std::string checkpoint;
  std::string config;
  std::string name;
  std::optional<std::string> listen, metrics, dtype, route;
  std::optional<int64_t> kv_tokens;
  std::optional<int> prefill_chunk, max_step_tokens, max_sequences;
  int stages = 1;
  int tp = 1;
  std::vector<std::string> devices = {"cpu"};
  std::string gpu_path = "best";
  int threads = 0;
  std::string transport = "inproc";
  std::string ucx_transports;
  bool random_weights = false;
  int drain_seconds = 30;
};

template <typename T, typename U>
void Override(T& value, const std::optional<U>& flag) {
  if (flag.has_value()) value = *flag;
}

StatusOr<ServeConfig> ConfigOf(const Flags& flags) {
  ServeConfig config;
  if (!flags.config.empty()) {
    BATON_ASSIGN_OR_RETURN(config, ReadServeConfig(flags.config));
  } else {
    config.stages = NumberedStages(flags.stages, flags.tp);
  }
  const bool on_gpu = std::any_of(
      flags.devices.begin(), flags.devices.end(), [](const std::string& name) {
        return ParseDeviceKind(name).value_or(DeviceKind::kCpu) ==
               DeviceKind::kCuda;
      });
  if (flags.config.empty() && on_gpu) {
    // Enough rows that matrix products are not bound by memory.
    config.prefill_chunk = 2048;
    config.max_step_tokens = 4096;
  }
  if (!flags.checkpoint.empty()) config.checkpoint = flags.checkpoint;
  Override(config.listen, flags.listen);
  Override(config.metrics_listen, flags.metrics);
  Override(config.kv_tokens, flags.kv_tokens);
  Override(config.prefill_chunk, flags.prefill_chunk);
  Override(config.max_step_tokens, flags.max_step_tokens);
  Override(config.max_sequences, flags.max_sequences);
  if (flags.dtype.has_value()) {
    BATON_ASSIGN_OR_RETURN(config.dtype, ParseComputeDType(*flags.dtype));
  }
  if (flags.route.has_value()) {
    BATON_ASSIGN_OR_RETURN(config.route, ParseRoute(*flags.route));
  }
  if (config.checkpoint.empty()) {
    return InvalidArgument("no checkpoint is given");
  }
  return config;
}

// The state of the pipeline as gateways scrape it.
struct LoadMetrics {
  explicit LoadMetrics(const std::string& model)
      : running("vllm:num_requests_running", "Requests that run",
                {{"model_name", model}}),
        waiting("vllm:num_requests_waiting", "Requests that wait",
                {{"model_name", model}}),
        kv_usage("vllm:kv_cache_usage_perc", "Part of the KV pages in use",
                 {{"model_name", model}}) {}
  void Set(const ControllerStatus& status) {
    running.Set(static_cast<double>(status.running));
    waiting.Set(static_cast<double>(status.waiting));
    kv_usage.Set(static_cast<double>(status.pages_used) /
                 static_cast<double>(std::max<int64_t>(1, status.pages_total)));
  }
  Gauge running, waiting, kv_usage;
};

class Server {
 public:
  Server(Flags flags, ServeConfig config)
      : flags_(std::move(flags)), config_(std::move(config)) {}

  Status Run() {
    BATON_RETURN_IF_ERROR(Start());
    BATON_RETURN_IF_ERROR(WaitUntilServing());
    while (!Interrupted()) {
      Watch();
      WaitForSignal(kPollMs);
    }
    Stop();
    return OkStatus();
  }

 private:
  [[nodiscard]] bool embedded() const { return flags_.config.empty(); }

  Status Start() {
    BATON_ASSIGN_OR_RETURN(
        const OpenedModel model,
        OpenModel(config_.checkpoint, config_.dtype,
                  flags_.random_weights ? WeightsCheck::kConfigOnly
                                        : WeightsCheck::kStrict));
    BATON_ASSIGN_OR_RETURN(ControllerOptions options,
                           PlanController(config_, model));
    // Stages of other processes resolve it in their own directory.
    options.checkpoint = std::filesystem::absolute(config_.checkpoint).string();
    if (flags_.random_weights) options.random_seed = kRandomSeed;
    BATON_ASSIGN_OR_RETURN(ModelFacts facts,
                           FactsOf(model, options, flags_.name));
    if (!config_.metrics_listen.empty()) {
      BATON_ASSIGN_OR_RETURN(metrics_,
                             MetricsServer::Start(config_.metrics_listen));
    }
    load_.emplace(facts.name);
    if (embedded()) {
      BATON_RETURN_IF_ERROR(StartStages());
    }
    controller_ =
        std::make_unique<ControllerHost>(std::move(options), stages_.get());
    gateway_ = std::make_unique<Gateway>(controller_->ref(), std::move(facts));
    front_ = NewVllmService(gateway_.get());
    ControllerServiceOptions joins;
    joins.controller = controller_->ref();
    joins.lease = config_.lease;
    joins.load_deadline = config_.load_deadline;
    joins_ = NewControllerService(joins);
    BATON_ASSIGN_OR_RETURN(
        server_,
        RpcServer::Start(config_.listen, {front_.get(), joins_.get()}));
    server_->SetServing("", true);
    server_->SetServing(kVllmServiceName, false);
    Say("listening on {}", server_->address());
    return OkStatus();
  }

  Status StartStages() {
    LocalStagesOptions options;
    for (const StageConfig& stage : config_.stages) {
      options.names.push_back(stage.name);
    }
    options.devices = flags_.devices;
    BATON_ASSIGN_OR_RETURN(options.gpu_path, ParseGpuPath(flags_.gpu_path));
    options.threads = flags_.threads;
    options.ucx_transports = flags_.ucx_transports;
    BATON_ASSIGN_OR_RETURN(options.transport, ParseTransport(flags_.transport));
    options.on_load_progress = [this](int index, int64_t done, int64_t total) {
      OnProgress(index, done, total);
    };
    options.stops = &Interrupted;
    BATON_ASSIGN_OR_RETURN(stages_, LocalStages::Start(options));
    return OkStatus();
  }

  // At most every two seconds. Thread: the stages'.
  void OnProgress(int index, int64_t done, int64_t total) {
    absl::MutexLock lock(&progress_mutex_);
    if (absl::Now() - progressed_ < absl::Seconds(2)) return;
    progressed_ = absl::Now();
    LogInfo("stage.loading", "stage={} bytes={}/{}",
            config_.stages[static_cast<size_t>(index)].name, done, total);
  }

  // Looks at the controller and tells health and metrics.
  ControllerStatus Watch() {
    ControllerStatus status = controller_->GetStatusNow();
    const bool serving = status.state == ControllerState::kServing;
    if (serving != serving_) {
      serving_ = serving;
      server_->SetServing(kVllmServiceName, serving);
    }
    load_->Set(status);
    return status;
  }

  // The controller's answer to whether it serves, once it is there. Outlives
  // the call that asks.
  struct Answer {
    absl::Mutex mutex;
    std::optional<Status> status ABSL_GUARDED_BY(mutex);

    std::optional<Status> Get() {
      absl::MutexLock lock(&mutex);
      return status;
    }
  };
  std::shared_ptr<Answer> AskWhetherServing() {
    auto answer = std::make_shared<Answer>();
    controller_->ref().Tell(
        AwaitServing{Reply<Done>([answer](StatusOr<Done> done) {
          absl::MutexLock lock(&answer->mutex);
          answer->status = done.status();
        })});
    return answer;
  }

  // Whether a start that failed so is no reason to end: stages of other
  // processes come back, and the controller tries again, for a join deadline.
  [[nodiscard]] bool MayStartLater(const Status& failure) {
    if (Interrupted()) return true;  // it failed for that
    if (embedded() || (failure.code() != StatusCode::kUnavailable &&
                       failure.code() != StatusCode::kDeadlineExceeded)) {
      return false;
    }
    const absl::Time now = absl::Now();
    if (!failed_since_.has_value()) failed_since_ = now;
    return now - *failed_since_ <= config_.join_deadline;
  }

  Status WaitUntilServing() {
    absl::Time waiting_since = absl::Now();
    std::string said;
    std::shared_ptr<Answer> answer = AskWhetherServing();
    while (!Interrupted()) {
      const ControllerStatus status = Watch();
      if (const std::optional<Status> ended = answer->Get();
          ended.has_value() && !ended->ok()) {
        if (!MayStartLater(*ended)) return *ended;
        answer = AskWhetherServing();
      }
      if (status.state == ControllerState::kServing) {
        SayServing(status);
        return OkStatus();
      }
      if (status.state != ControllerState::kWaiting) {
        waiting_since = absl::Now();
      } else if (absl::Now() - waiting_since > config_.join_deadline) {
        return DeadlineExceeded("after {}: {}",
                                absl::FormatDuration(config_.join_deadline),
                                status.detail);
      }
      if (status.detail != said) {
        said = status.detail;
        LogInfo("serve.waiting", "state={} detail=\"{}\"", Name(status.state),
                said);
      }
      WaitForSignal(kPollMs);
    }
    return OkStatus();
  }

  void SayServing(const ControllerStatus& status) const {
    Say("serving {} on {} ({} stages, {} passes, {} KV tokens, {})",
        gateway_->facts().name, server_->address(),
        status.placement.num_stages(), status.placement.passes,
        gateway_->facts().kv_tokens, gateway_->facts().dtype);
  }

  void Stop() {
    LogInfo("serve.draining", "running={}", gateway_->live());
    server_->SetServing(kVllmServiceName, false);
    controller_->Drain(absl::Seconds(flags_.drain_seconds));
    server_->Shutdown(absl::Seconds(2));
    LogInfo("serve.stopped", "address={}", server_->address());
  }

  // A line for whoever started this, on stdout.
  template <typename... Args>
  static void Say(fmt::format_string<Args...> format, Args&&... args) {
    std::printf("baton: %s\n",
                fmt::format(format, std::forward<Args>(args)...).c_str());
    std::fflush(stdout);
  }

  const Flags flags_;
  const ServeConfig config_;
  bool serving_ = false;
  std::optional<absl::Time> failed_since_;  // the first start that failed
  absl::Mutex progress_mutex_;
  absl::Time progressed_ ABSL_GUARDED_BY(progress_mutex_) =
      absl::InfinitePast();
  std::optional<LoadMetrics> load_;
  // Started in this order, stopped in the reverse.
  std::unique_ptr<MetricsServer> metrics_;
  std::unique_ptr<LocalStages> stages_;
  std::unique_ptr<ControllerHost> controller_;
  std::unique_ptr<Gateway> gateway_;
  std::unique_ptr<RpcService> front_;
  std::unique_ptr<RpcService> joins_;
  std::unique_ptr<RpcServer> server_;
};

void AddFlags(CLI::App& sub, Flags& flags) {
  sub.add_option("checkpoint", flags.checkpoint, "Hugging Face directory");
  CLI::Option* config = sub.add_option(
      "--config", flags.config, "YAML file that names the stages to wait for");
  sub.add_option("--stages", flags.stages, "stages inside this process")
      ->check(CLI::Range(1, 1024))
      ->excludes(config);
  sub.add_option("--tp", flags.tp,
                 "ranks that share a stage's layers and its threads")
      ->check(CLI::IsMember({1, 2, 4, 8}))
      ->excludes(config);
  sub.add_option("--listen", flags.listen,
                 "HOST:PORT of the front; port 0: any free one")
      ->check(AddressProblem);
  sub.add_option("--metrics", flags.metrics, "HOST:PORT for Prometheus")
      ->check(AddressProblem);
  sub.add_option("--name", flags.name,
                 "what the model is served as; default: the directory's name");
  sub.add_option("--dtype", flags.dtype, "bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}));
  sub.add_option("--route", flags.route, "ring or unrolled")
      ->check(CLI::IsMember({"ring", "unrolled"}));
  sub.add_option("--kv-tokens", flags.kv_tokens, "tokens the KV cache holds")
      ->check(CLI::PositiveNumber);
  sub.add_option("--prefill-chunk", flags.prefill_chunk,
                 "prompt tokens of a sequence in a step; 0: all")
      ->check(CLI::NonNegativeNumber);
  sub.add_option("--max-step-tokens", flags.max_step_tokens, "rows of a step")
      ->check(CLI::PositiveNumber);
  sub.add_option("--max-sequences", flags.max_sequences,
                 "sequences that run at once")
      ->check(CLI::PositiveNumber);
  sub.add_option("--device", flags.devices,
                 "cpu, cuda, cuda:N: of the embedded stages, in turn")
      ->delimiter(',');
  sub.add_option("--gpu-path", flags.gpu_path,
                 "between GPUs: best, direct, nccl or host")
      ->check(CLI::IsMember({"best", "direct", "nccl", "host"}));
  sub.add_option("--threads", flags.threads,
                 "threads of each embedded CPU stage")
      ->check(CLI::Range(1, 1024));
  sub.add_option("--transport", flags.transport,
                 "between embedded stages: inproc or ucx")
      ->check(CLI::IsMember({"inproc", "ucx"}))
      ->excludes(config);
  sub.add_option("--ucx-transports", flags.ucx_transports,
                 "such as tcp,self; default: UCX chooses");
  sub.add_flag("--random-weights", flags.random_weights,
               "seeded random weights: a config.json is enough");
  sub.add_option("--drain-seconds", flags.drain_seconds,
                 "how long running requests may take after a signal")
      ->check(CLI::Range(0, 86400));
}

}  // namespace

void AddServe(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("serve", "Serve a checkpoint over gRPC");
  AddFlags(*sub, *flags);
  sub->callback([flags, exit_code] {
    SetLogNode("controller");
    if (flags->threads == 0) {
      const int cores =
          static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
      flags->threads = std::max(1, cores / flags->stages);
    }
    StatusOr<ServeConfig> config = ConfigOf(*flags);
    if (!config.ok()) {
      *exit_code = Fail(config.status());
      return;
    }
    CatchSignals();
    Status status = Server(*flags, *std::move(config)).Run();
    if (!status.ok()) *exit_code = Fail(status);
  });
}

}  // namespace baton
