// SPDX-License-Identifier: Apache-2.0
// `baton bench`: prompt and decode speed of whole pipelines in this process,
// beside the memory read rate of this machine. All contestants take turns, so
// that a noisy machine disturbs them alike; the ratios are what counts.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/cli/bench_report.h"
#include "actors/cli/cli.h"
#include "actors/cli/speed.h"
#include "actors/local_pipeline.h"
#include "actors/placement.h"
#include "kernels/devices/devices.h"
#include "kernels/devices/read_rate.h"

namespace baton {
namespace {

struct Flags {
  std::string checkpoint;
  bool random_weights = false;
  std::vector<int> stages = {1};
  std::vector<int> batches = {1};
  int prompt = 128;
  int tokens = 32;
  std::vector<std::string> devices = {"cpu"};
  std::string gpu_path = "best";
  int threads = 1;
  int rounds = 5;
  int micro_batches = 0;  // 0: as many as stages
  std::optional<int> prefill_chunk, max_step_tokens;
  int tp = 1;
  std::string dtype = "bf16";
  std::string route = "ring";
  std::string transport = "inproc";
  std::string json;
};

// "VmHWM" or "VmRSS" of this process, in bytes.
int64_t ProcessMemory(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) {
      return std::strtoll(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
    }
  }
  return 0;
}

// A pipeline that stays loaded while others take their turns.
struct Contestant {
  LocalStages* hosts = nullptr;
  ControllerHost* controller = nullptr;
};

// Of the stages' last visits, which generate unless tokens are few.
double HostMicroseconds(LocalStages& hosts) {
  std::vector<double> seconds;
  for (int i = 0; i < hosts.size(); ++i) {
    hosts.host(i).RunOnStage([&](StageActor& stage) {
      const StageTimes& times = stage.times();
      const auto* first = times.host_seconds.data();
      seconds.insert(seconds.end(), first,
                     first + std::min(times.visits, StageTimes::kRecent));
    });
  }
  return 1e6 * Median(std::move(seconds));
}

class Bench {
 public:
  explicit Bench(const Flags& flags) : flags_(flags) {}

  Status Run() {
    const DType dtype = flags_.dtype == "f32" ? DType::kF32 : DType::kBF16;
    BATON_ASSIGN_OR_RETURN(
        model_, OpenModel(flags_.checkpoint, dtype,
                          flags_.random_weights ? WeightsCheck::kConfigOnly
                                                : WeightsCheck::kStrict));
    BATON_ASSIGN_OR_RETURN(const DeviceKind kind,
                           ParseDeviceKind(flags_.devices[0]));
    BATON_RETURN_IF_ERROR(CheckRanks(model_.tensors, flags_.tp, kind));
    bytes_ = CountBytes(model_.info, model_.tensors, dtype, kind, flags_.tp);
    for (int stages : flags_.stages) {
      BATON_RETURN_IF_ERROR(AddPipeline(stages, dtype));
    }
    BATON_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<Device>> devices,
                           OpenDevices(flags_.devices[0], flags_.threads));
    BATON_ASSIGN_OR_RETURN(const std::unique_ptr<ReadRate> read_rate,
                           ReadRate::Of(*devices[0], flags_.threads));
    report_.probe_name =
        fmt::format("{}, {} thread(s)", flags_.devices[0], flags_.threads);
    for (int round = 0; round < flags_.rounds; ++round) {
      for (size_t i = 0; i < contestants_.size(); ++i) {
        BATON_RETURN_IF_ERROR(
            Turn(contestants_[i], *read_rate, report_.rows[i]));
      }
      std::fprintf(stderr, "\rbaton bench: round %d of %d", round + 1,
                   flags_.rounds);
    }
    std::fprintf(stderr, "\n");
    report_.Print();
    if (flags_.json.empty()) return OkStatus();
    report_.setup = {{"checkpoint", flags_.checkpoint},
                     {"devices", flags_.devices},
                     {"threads", flags_.threads},
                     {"tp", flags_.tp},
                     {"transport", flags_.transport},
                     {"dtype", flags_.dtype},
                     {"micro_batches", flags_.micro_batches}};
    return report_.Write(flags_.json);
  }

 private:
  Status Turn(const Contestant& c, ReadRate& read_rate, BenchRow& row) {
    BATON_ASSIGN_OR_RETURN(const double before, read_rate.Measure());
    BATON_ASSIGN_OR_RETURN(const Speed speed, MeasureSpeed(c.controller->ref(),
                                                           LoadOf(row.batch)));
    row.host_us.push_back(HostMicroseconds(*c.hosts));
    BATON_ASSIGN_OR_RETURN(const double after, read_rate.Measure());
    const double rate = 2 / (1 / before + 1 / after);
    report_.probe.push_back(rate);
    row.prompt.push_back(speed.prompt_tokens_per_s);
    row.decode.push_back(speed.decode_tokens_per_s);
    row.decode_share.push_back(row.step_bytes * speed.decode_tokens_per_s /
                               row.batch / rate);
    return OkStatus();
  }

  [[nodiscard]] SpeedLoad LoadOf(int batch) const {
    return {.batch = batch,
            .prompt = flags_.prompt,
            .tokens = flags_.tokens,
            .vocab = model_.info.vocab};
  }

  // Bytes a decode step moves at least: weights, all but the embedding, of
  // which it reads a row, loops reading the layers again, of experts as many as
  // rows that choose evenly would; and the sequences' keys and values, half the
  // generated ones on average, or other state, which is also written.
  [[nodiscard]] double StepBytes(int batch) const {
    double layers = 0;
    for (int64_t layer : bytes_.layers) layers += static_cast<double>(layer);
    const DecoderInfo& info = model_.info;
    if (info.experts > 0) {
      const double left_out = 1 - static_cast<double>(info.experts_per_row) /
                                      static_cast<double>(info.experts);
      layers -= static_cast<double>(bytes_.routed) * std::pow(left_out, batch);
    }
    const double context = flags_.prompt + flags_.tokens / 2.0;
    double kv = 0;
    for (const LayerState& state : info.states) {
      const auto window = static_cast<double>(state.window);
      const LayerState held = state.OfRank(flags_.tp);
      kv += static_cast<double>(flags_.tp * held.TokenBytes()) *
            (window > 0 ? std::min(window, context) : context) * batch;
      kv += 2.0 * static_cast<double>(state.slot_bytes) * batch;
    }
    return layers * info.num_loops + static_cast<double>(bytes_.final) + kv;
  }

  Status AddPipeline(int stages, DType dtype) {
    LocalStagesOptions options;
    std::vector<StageConfig> names = NumberedStages(stages, flags_.tp);
    for (const StageConfig& stage : names) options.names.push_back(stage.name);
    options.devices = flags_.devices;
    BATON_ASSIGN_OR_RETURN(options.gpu_path, ParseGpuPath(flags_.gpu_path));
    options.threads = flags_.threads;
    BATON_ASSIGN_OR_RETURN(options.transport, ParseTransport(flags_.transport));
    const RouteKind route =
        flags_.route == "unrolled" ? RouteKind::kUnrolled : RouteKind::kRing;
    ControllerOptions controller;
    BATON_ASSIGN_OR_RETURN(controller.placement,
                           PlaceStages(model_.info, bytes_, route, names));
    controller.decoder = model_.info;
    controller.checkpoint = model_.directory;
    controller.config = model_.config_text;
    controller.random_seed = flags_.random_weights ? 1 : 0;
    controller.dtype = dtype;
    controller.scheduler.slots = flags_.micro_batches;
    if (flags_.prefill_chunk.has_value()) {
      controller.scheduler.prefill_chunk = *flags_.prefill_chunk;
    }
    if (flags_.max_step_tokens.has_value()) {
      controller.scheduler.max_step_tokens = *flags_.max_step_tokens;
    }
    const int most =
        *std::max_element(flags_.batches.begin(), flags_.batches.end());
    controller.scheduler.kv_pages =
        most * ((flags_.prompt + flags_.tokens) / kPageTokens + 2);
    const int64_t resident = ProcessMemory("VmRSS");
    BATON_ASSIGN_OR_RETURN(const int64_t free, FreeGpuBytes(stages));
    const absl::Time start = absl::Now();
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<LocalStages> hosts,
                           LocalStages::Start(options));
    auto host =
        std::make_unique<ControllerHost>(std::move(controller), hosts.get());
    BATON_RETURN_IF_ERROR(host->WaitUntilServing(absl::Minutes(30)));
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    BATON_ASSIGN_OR_RETURN(const int64_t left, FreeGpuBytes(stages));
    // One warm-up, which also touches the KV pool.
    BATON_RETURN_IF_ERROR(MeasureSpeed(host->ref(), LoadOf(most)).status());
    ReportLoad(stages, seconds, resident, free - left, *host);
    for (int batch : flags_.batches) {
      contestants_.push_back({.hosts = hosts.get(), .controller = host.get()});
      report_.rows.push_back(
          {.stages = stages, .batch = batch, .step_bytes = StepBytes(batch)});
    }
    stages_.push_back(std::move(hosts));
    controllers_.push_back(std::move(host));
    return OkStatus();
  }

  // On the GPUs of so many stages, together; 0 without any.
  StatusOr<int64_t> FreeGpuBytes(int stages) const {
    int64_t bytes = 0;
    for (size_t i = 0; i < flags_.devices.size(); ++i) {
      const std::string& name = flags_.devices[i];
      if (i >= static_cast<size_t>(stages) || name == "cpu") continue;
      BATON_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<Device>> devices,
                             OpenDevices(name, 1));
      for (const std::unique_ptr<Device>& device : devices) {
        BATON_ASSIGN_OR_RETURN(const int64_t free, device->FreeBytes());
        bytes += free;
      }
    }
    return bytes;
  }

  void ReportLoad(int stages, double seconds, int64_t resident,
                  int64_t gpu_bytes, ControllerHost& host) {
    const ControllerStatus status = host.GetStatusNow();
    StageBytes total;
    for (const StageBytes& stage :
         PredictBytes(model_.info, bytes_, status.placement,
                      {.pages = status.pages_total,
                      .window_pages = status.window_pages_total,
                      .state_slots = status.state_slots_total})) {
      total.weights += stage.weights;
      total.kv += stage.kv;
    }
    // The high-water mark tells of loading only for the first pipeline.
    const int64_t peak = ProcessMemory("VmHWM") - resident;
    const double allowed = static_cast<double>(total.weights) * 1.1 +
                           static_cast<double>(total.kv) + 100e6 * stages;
    std::printf(
        "%d stage(s): weights %s in %.2f s (%.2f GB/s), KV %s, peak "
        "resident %s, %.2f of weights x 1.1 + KV + 100 MB a stage\n",
        stages, HumanBytes(total.weights).c_str(), seconds,
        static_cast<double>(total.weights) / 1e9 / seconds,
        HumanBytes(total.kv).c_str(), HumanBytes(peak).c_str(),
        static_cast<double>(peak) / allowed);
    if (gpu_bytes > 0) {
      std::printf("%d stage(s): %s taken on GPUs, %.3f of weights + KV\n",
                  stages, HumanBytes(gpu_bytes).c_str(),
                  static_cast<double>(gpu_bytes) /
                      static_cast<double>(total.weights + total.kv));
    }
    report_.load.push_back({{"stages", stages},
                            {"gpu_bytes", gpu_bytes},
                            {"weight_bytes", total.weights},
                            {"kv_bytes", total.kv},
                            {"load_seconds", seconds},
                            {"peak_resident_bytes", peak},
                            {"allowed_bytes", allowed}});
  }

  const Flags& flags_;
  OpenedModel model_;
  DecoderBytes bytes_;
  std::vector<std::unique_ptr<LocalStages>> stages_;
  std::vector<std::unique_ptr<ControllerHost>> controllers_;  // stop first
  std::vector<Contestant> contestants_;
  BenchReport report_;
};

}  // namespace

void AddBench(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand(
      "bench", "Prompt and decode speed beside the machine's read rate");
  sub->add_option("checkpoint", flags->checkpoint, "Hugging Face directory")
      ->required();
  sub->add_flag("--random-weights", flags->random_weights,
                "needs only a config.json");
  const CLI::Range positive(1, 1 << 20);
  sub->add_option("--stages", flags->stages, "stage counts, compared in turn")
      ->delimiter(',')
      ->check(positive);
  sub->add_option("--tp", flags->tp,
                  "ranks that share a stage's layers and its threads")
      ->check(CLI::IsMember({1, 2, 4, 8}));
  sub->add_option("--batch", flags->batches, "sequences in flight")
      ->delimiter(',')
      ->check(CLI::Range(1, 64));
  sub->add_option("--prompt", flags->prompt, "prompt tokens")->check(positive);
  sub->add_option("--tokens", flags->tokens, "tokens to generate, 2 or more")
      ->check(CLI::Range(2, 1 << 20));
  sub->add_option("--device", flags->devices,
                  "cpu, cuda, cuda:N: of the stages, in turn")
      ->delimiter(',');
  sub->add_option("--gpu-path", flags->gpu_path,
                  "between GPUs: best, direct, nccl or host")
      ->check(CLI::IsMember({"best", "direct", "nccl", "host"}));
  sub->add_option("--threads", flags->threads, "threads of each CPU stage")
      ->check(CLI::Range(1, 1024));
  sub->add_option("--micro-batches", flags->micro_batches,
                  "slots that share the sequences; 0: as many as stages")
      ->check(CLI::Range(0, 64));
  sub->add_option("--prefill-chunk", flags->prefill_chunk,
                  "prompt tokens of a sequence in a step; 0: all")
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--max-step-tokens", flags->max_step_tokens, "rows of a step")
      ->check(CLI::Range(64, 1 << 20));
  sub->add_option("--rounds", flags->rounds, "turns of each contestant")
      ->check(positive);
  sub->add_option("--dtype", flags->dtype, "bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}));
  sub->add_option("--route", flags->route, "ring or unrolled (loops)")
      ->check(CLI::IsMember({"ring", "unrolled"}));
  sub->add_option("--transport", flags->transport, "inproc or ucx")
      ->check(CLI::IsMember({"inproc", "ucx"}));
  sub->add_option("--json", flags->json, "also write the figures here");
  sub->callback([flags, exit_code] {
    const Status status = Bench(*flags).Run();
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace baton
