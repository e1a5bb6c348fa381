// SPDX-License-Identifier: Apache-2.0
// `baton parity`: the same requests over a list of cuts, chunk sizes, batch
// mates, transports and dtypes; every run must give the bits of the first.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/cli/cli.h"
#include "actors/cli/parity_plan.h"
#include "kernels/devices/devices.h"

namespace baton {
namespace {

struct Flags {
  std::string checkpoint;
  std::string golden;
  std::string pp = "1,2";
  std::vector<int> tp = {1};
  std::string route = "ring";
  std::vector<int> chunks = {0};
  std::vector<int> batches = {1};
  std::vector<std::string> transports = {"inproc"};
  std::vector<std::string> dtypes = {"bf16"};
  std::vector<std::string> devices = {"cpu"};
  std::string gpu_path = "best";
  std::string ucx_transports;
  int threads = 1;
  int max_tokens = 0;
  bool canary = false;
};

// Flips one bit of the first hidden row that leaves stage 0.
class CanaryPlane : public DataPlane {
 public:
  explicit CanaryPlane(std::unique_ptr<DataPlane> inner)
      : inner_(std::move(inner)) {}
  std::string Address() const override { return inner_->Address(); }
  Status Renew() override { return inner_->Renew(); }
  Status Connect(
      const SessionInfo& session, StageId self,
      const std::vector<std::pair<StageId, std::string>>& peers) override {
    armed_ = true;
    return inner_->Connect(session, self, peers);
  }
  Status Send(StageId to, const PacketHeader& header, Tensor payload) override {
    if (header.kind == PacketKind::kStream && std::exchange(armed_, false)) {
      // The lowest exponent bit of the first element.
      const int bit = header.dtype == DType::kF32 ? 23 : 7;
      payload.view().data()[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    return inner_->Send(to, header, std::move(payload));
  }
  void Consume(StageId from) override { inner_->Consume(from); }
  bool Progress() override { return inner_->Progress(); }
  void Wait(absl::Duration timeout) override { inner_->Wait(timeout); }
  void Interrupt() override { inner_->Interrupt(); }
  const TransportCounters& counters() const override {
    return inner_->counters();
  }

 private:
  std::unique_ptr<DataPlane> inner_;
  bool armed_ = true;
};

// The first difference between two runs of a case; empty if there is none.
std::string Difference(const Completion& a, const Completion& b) {
  auto compare = [](const std::vector<SampleResult>& x,
                    const std::vector<SampleResult>& y,
                    const char* what) -> std::string {
    if (x.size() != y.size()) {
      return fmt::format("{} {} positions instead of {}", y.size(), what,
                         x.size());
    }
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i]) continue;
      if (x[i].token != y[i].token) {
        return fmt::format("{} {}: token {} instead of {}", what, i, y[i].token,
                           x[i].token);
      }
      return fmt::format("{} {}: logprob off by {:.3g}, logits differ", what, i,
                         y[i].logprob - x[i].logprob);
    }
    return "";
  };
  std::string text = compare(a.prompt, b.prompt, "prompt position");
  if (text.empty()) text = compare(a.tokens, b.tokens, "generated token");
  return text;
}

class Parity {
 public:
  explicit Parity(const Flags& flags) : flags_(flags) {}

  StatusOr<bool> Run() {
    BATON_RETURN_IF_ERROR(CheckFlags());
    for (const std::string& dtype : flags_.dtypes) {
      BATON_RETURN_IF_ERROR(
          RunDType(dtype == "f32" ? DType::kF32 : DType::kBF16));
    }
    PrintSummary();
    return rows_ == identical_ && (golden_.empty() || golden_holds_);
  }

 private:
  Status CheckFlags() {
    for (const std::string& device : flags_.devices) {
      BATON_RETURN_IF_ERROR(ParseDeviceKind(device).status());
    }
    for (const std::string& dtype : flags_.dtypes) {
      if (dtype != "f32" && dtype != "bf16") {
        return InvalidArgument("--dtype {}: expected f32 or bf16", dtype);
      }
    }
    for (int chunk : flags_.chunks) {
      if (chunk < 0) return InvalidArgument("--chunk {}: negative", chunk);
    }
    for (int batch : flags_.batches) {
      if (batch < 1 || batch > 64) {
        return InvalidArgument("--batch {}: expected 1 to 64", batch);
      }
    }
    if (flags_.route != "ring" && flags_.route != "unrolled") {
      return InvalidArgument("--route {}: expected ring or unrolled",
                             flags_.route);
    }
    if (!flags_.golden.empty()) {
      BATON_ASSIGN_OR_RETURN(golden_, ReadGolden(flags_.golden));
    }
    return OkStatus();
  }

  Status RunDType(DType dtype) {
    BATON_ASSIGN_OR_RETURN(
        OpenedModel model,
        OpenModel(flags_.checkpoint, dtype, WeightsCheck::kStrict));
    const DecoderBytes bytes = CountBytes(model.info, model.tensors, dtype);
    const RouteKind route =
        flags_.route == "ring" ? RouteKind::kRing : RouteKind::kUnrolled;
    BATON_ASSIGN_OR_RETURN(std::vector<Placement> placements,
                           ParityPlacements(model, bytes, route, flags_.pp));
    placements = WithRanks(placements, flags_.tp);
    if (flags_.canary) BATON_RETURN_IF_ERROR(CheckHops(placements));
    BATON_ASSIGN_OR_RETURN(const DeviceKind kind,
                           ParseDeviceKind(flags_.devices[0]));
    for (int tp : flags_.tp) {
      BATON_RETURN_IF_ERROR(CheckRanks(model.tensors, tp, kind));
    }
    cases_ = ParityRequests(model, golden_, flags_.max_tokens);
    baseline_.clear();
    BATON_RETURN_IF_ERROR(RunBaseline(model, dtype));
    for (const std::string& name : flags_.transports) {
      BATON_ASSIGN_OR_RETURN(Transport transport, ParseTransport(name));
      for (const Placement& placement : placements) {
        BATON_RETURN_IF_ERROR(RunPlacement(model, placement, dtype, transport));
      }
    }
    return OkStatus();
  }

  // One stage, whole prompts, alone: what every row is compared with.
  Status RunBaseline(const OpenedModel& model, DType dtype) {
    BATON_ASSIGN_OR_RETURN(baseline_, RunAlone(model, dtype, Where(), cases_));
    if (golden_.empty()) return OkStatus();
    const bool open = reference_ == Reference::kUnknown;
    GoldenScore score;
    if (reference_ != Reference::kBf16Rope) {
      for (size_t i = 0; i < golden_.size(); ++i) {
        ScoreCase(golden_[i], baseline_[i], dtype, score);
      }
    }
    if (reference_ == Reference::kBf16Rope || (open && !score.Holds(dtype))) {
      // A reference that was cast to bf16 as a whole has rounded its rotary
      // frequencies too; compare with the same.
      GoldenScore rounded;
      BATON_RETURN_IF_ERROR(ScoreRounded(dtype, rounded));
      if (!open || rounded.Holds(dtype)) {
        if (open) Report(score, dtype, "exact rotary frequencies");
        reference_ = Reference::kBf16Rope;
        Report(rounded, dtype, "rotary frequencies rounded to bf16");
        Count(rounded, dtype);
        return OkStatus();
      }
    }
    if (open && score.Holds(dtype)) reference_ = Reference::kExactRope;
    Report(score, dtype, "exact rotary frequencies");
    Count(score, dtype);
    return OkStatus();
  }

  Status ScoreRounded(DType dtype, GoldenScore& score) {
    BATON_ASSIGN_OR_RETURN(const Bf16RopeCopy copy,
                           Bf16RopeCopy::Make(flags_.checkpoint));
    BATON_ASSIGN_OR_RETURN(OpenedModel model, OpenModel(copy.directory(), dtype,
                                                        WeightsCheck::kStrict));
    BATON_ASSIGN_OR_RETURN(std::vector<Completion> runs,
                           RunAlone(model, dtype, Where(), cases_));
    for (size_t i = 0; i < golden_.size(); ++i) {
      ScoreCase(golden_[i], runs[i], dtype, score);
    }
    return OkStatus();
  }

  [[nodiscard]] LocalStagesOptions Where() const {
    LocalStagesOptions options;
    options.devices = {flags_.devices[0]};
    options.threads = flags_.threads;
    return options;
  }

  static void Report(const GoldenScore& score, DType dtype, const char* how) {
    std::printf(
        "golden %s, %s: max |dlogprob| %.3g, mean %.3g over %lld, "
        "greedy %lld/%lld: %s\n",
        std::string(Name(dtype)).c_str(), how, score.max_error,
        score.mean_error(), static_cast<long long>(score.compared),
        static_cast<long long>(score.greedy_equal),
        static_cast<long long>(score.greedy_total),
        score.Holds(dtype) ? "holds" : "does not hold");
    for (const std::string& complaint : score.complaints) {
      std::printf("  %s\n", complaint.c_str());
    }
  }

  void Count(const GoldenScore& score, DType dtype) {
    golden_holds_ = golden_holds_ && score.Holds(dtype);
    greedy_equal_ += score.greedy_equal;
    greedy_total_ += score.greedy_total;
    // f32 is the sharper figure; bf16 counts where it is alone.
    if (dtype == DType::kF32 || !max_error_.has_value()) {
      max_error_ = score.max_error;
    }
  }

  Status RunPlacement(const OpenedModel& model, const Placement& placement,
                      DType dtype, Transport transport) {
    LocalStagesOptions options;
    for (const StagePlacement& stage : placement.stages) {
      options.names.push_back(stage.name);
    }
    options.devices = flags_.devices;
    BATON_ASSIGN_OR_RETURN(options.gpu_path, ParseGpuPath(flags_.gpu_path));
    options.threads = flags_.threads;
    options.transport = transport;
    options.ucx_transports = flags_.ucx_transports;
    if (flags_.canary) {
      options.gpu_path = GpuPath::kHost;  // where the bit is
      options.wrap =
          [](int index,
             std::unique_ptr<DataPlane> plane) -> std::unique_ptr<DataPlane> {
        if (index != 0) return plane;
        return std::make_unique<CanaryPlane>(std::move(plane));
      };
    }
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<LocalStages> stages,
                           LocalStages::Start(options));
    const int most =
        *std::max_element(flags_.batches.begin(), flags_.batches.end());
    for (int chunk : flags_.chunks) {
      ControllerHost controller(ParityController(model, placement, dtype, chunk,
                                                 KvTokensFor(cases_, most)),
                                stages.get());
      BATON_RETURN_IF_ERROR(controller.WaitUntilServing(absl::Minutes(10)));
      for (int batch : flags_.batches) {
        std::string difference;
        for (size_t i = 0; i < cases_.size() && difference.empty(); ++i) {
          std::vector<Request> requests = BatchMates(cases_, i, batch - 1);
          requests.insert(requests.begin(), cases_[i]);
          std::vector<StatusOr<Completion>> runs =
              RunRequests(controller.ref(), std::move(requests));
          for (const StatusOr<Completion>& run : runs) {
            if (!run.ok() && difference.empty()) {
              difference = ToString(run.status());
            }
          }
          if (difference.empty()) {
            difference = Difference(baseline_[i], *runs[0]);
          }
          if (!difference.empty()) {
            difference = fmt::format("case {}, {}", i, difference);
          }
        }
        PrintRow(placement, dtype, transport, chunk, batch, difference);
      }
    }
    return OkStatus();
  }

  void PrintRow(const Placement& placement, DType dtype, Transport transport,
                int chunk, int batch, const std::string& difference) {
    ++rows_;
    if (difference.empty()) ++identical_;
    const std::string row =
        fmt::format("{} route={} dtype={} transport={} chunk={} batch={}",
                    CutName(placement), flags_.route, Name(dtype),
                    Name(transport), chunk, batch);
    std::printf("%-72s %s\n", row.c_str(),
                difference.empty() ? "identical" : difference.c_str());
    std::fflush(stdout);
  }

  void PrintSummary() const {
    std::printf("parity: %d rows, %d identical", rows_, identical_);
    if (!golden_.empty()) {
      std::printf("; golden: max |dlogprob| %.3g, greedy %lld/%lld%s",
                  max_error_.value_or(0), static_cast<long long>(greedy_equal_),
                  static_cast<long long>(greedy_total_),
                  golden_holds_ ? "" : ", out of tolerance");
    }
    std::printf("\n");
  }

  // How the golden file's reference treated its rotary frequencies.
  enum class Reference { kUnknown, kExactRope, kBf16Rope };

  const Flags& flags_;
  std::vector<GoldenCase> golden_;
  Reference reference_ = Reference::kUnknown;
  std::vector<Request> cases_;
  std::vector<Completion> baseline_;
  int rows_ = 0;
  int identical_ = 0;
  bool golden_holds_ = true;
  std::optional<double> max_error_;
  int64_t greedy_equal_ = 0;
  int64_t greedy_total_ = 0;
};

}  // namespace

void AddParity(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand(
      "parity",
      "Run a checkpoint over cuts, chunks, batch mates and transports; every "
      "run must give the same bits");
  sub->add_option("checkpoint", flags->checkpoint, "Hugging Face directory")
      ->required();
  sub->add_option("--golden", flags->golden, "golden.json to compare with");
  sub->add_option("--pp", flags->pp,
                  "stage counts, or all: every single cut and every count");
  sub->add_option("--tp", flags->tp,
                  "ranks that share a stage's layers and its threads")
      ->delimiter(',')
      ->check(CLI::IsMember({1, 2, 4, 8}));
  sub->add_option("--route", flags->route, "ring or unrolled (loops)");
  sub->add_option("--chunk", flags->chunks,
                  "prompt tokens in a step; 0: the whole prompt")
      ->delimiter(',');
  sub->add_option("--batch", flags->batches,
                  "sequences in flight; the others are sampled mates")
      ->delimiter(',');
  sub->add_option("--transport", flags->transports, "inproc, ucx")
      ->delimiter(',');
  sub->add_option("--dtype", flags->dtypes, "f32, bf16")->delimiter(',');
  sub->add_option("--device", flags->devices,
                  "cpu, cuda, cuda:N: of the stages, in turn")
      ->delimiter(',');
  sub->add_option("--gpu-path", flags->gpu_path,
                  "between GPUs: best, direct, nccl or host")
      ->check(CLI::IsMember({"best", "direct", "nccl", "host"}));
  sub->add_option("--ucx-transports", flags->ucx_transports,
                  "UCX transports, as UCX_TLS");
  sub->add_option("--threads", flags->threads, "threads of each stage")
      ->check(CLI::Range(1, 1024));
  sub->add_option("--max-tokens", flags->max_tokens,
                  "tokens to generate; 0: as the golden file has")
      ->check(CLI::NonNegativeNumber);
  sub->add_flag("--canary", flags->canary,
                "flip one bit of one hidden row on one hop; must fail");
  sub->callback([flags, exit_code] {
    StatusOr<bool> same = Parity(*flags).Run();
    if (!same.ok()) {
      std::fprintf(stderr, "baton parity: %s\n",
                   ToString(same.status()).c_str());
      *exit_code = 1;
      return;
    }
    *exit_code = *same ? 0 : 1;
  });
}

}  // namespace baton
