// SPDX-License-Identifier: Apache-2.0
// A controller and its stages on manual executors and in-process data planes:
// no thread, no sleep. A seeded shuffle decides who runs next, so that a
// failing order can be run again.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "actors/controller_actor.h"
#include "actors/local_pipeline.h"
#include "actors/placement.h"
#include "actors/stage_actor.h"
#include "tests/testing/fake_clock.h"

namespace baton::testing {

// Of one of the repository; of any, where it is a path.
inline std::string TinyCheckpoint(const std::string& name) {
  return name.starts_with('/')
             ? name
             : std::string(BATON_SOURCE_DIR) + "/tests/checkpoints/" + name;
}

struct ManualPipelineOptions {
  std::string checkpoint = "nanbeige";
  int stages = 2;
  RouteKind route = RouteKind::kRing;
  DType dtype = DType::kBF16;
  int prefill_chunk = 4;
  int64_t kv_pages = 64;
  uint64_t seed = 1;
};

class ManualPipeline {
 public:
  explicit ManualPipeline(const ManualPipelineOptions& options)
      : random_(options.seed), network_(NewInprocNetwork()) {
    BATON_CHECK(DetectCpuIsa().ok());
    RegisterCpuKernels(kernels_, *DetectCpuIsa());
    StatusOr<OpenedModel> model =
        OpenModel(TinyCheckpoint(options.checkpoint), options.dtype,
                  WeightsCheck::kStrict);
    BATON_CHECK(model.ok());
    std::vector<StageConfig> names(static_cast<size_t>(options.stages));
    for (size_t i = 0; i < names.size(); ++i) {
      names[i].name = "s" + std::to_string(i);
    }
    StatusOr<Placement> placement = PlaceStages(
        model->info, CountBytes(model->info, model->tensors, options.dtype),
        options.route, names);
    BATON_CHECK(placement.ok());
    ControllerOptions controller;
    controller.placement = *placement;
    controller.decoder = model->info;
    controller.checkpoint = model->directory;
    controller.config = model->config_text;
    controller.dtype = options.dtype;
    controller.scheduler.slots = 0;
    controller.scheduler.prefill_chunk = options.prefill_chunk;
    controller.scheduler.kv_pages = options.kv_pages;
    controller.step_deadline = absl::Seconds(10);
    executors_.push_back(std::make_unique<ManualExecutor>(&clock));
    controller_ = std::make_unique<ControllerActor>(*executors_[0], controller);
    for (int i = 0; i < options.stages; ++i) AddStage(i);
    for (int i = 0; i < options.stages; ++i) Join(i);
  }

  // Runs something at random until nothing is left to run.
  void Settle() {
    int idle = 0;
    while (idle < 64) idle = RunOne() ? 0 : idle + 1;
  }
  // Looks `count` times for something to run.
  void RunSome(int count) {
    for (int i = 0; i < count; ++i) (void)RunOne();
  }

  void Join(int i) {
    StageJoined joined;
    joined.name = "s" + std::to_string(i);
    joined.data_address = stages_[static_cast<size_t>(i)]->DataAddress();
    joined.stage = stages_[static_cast<size_t>(i)]->ref();
    controller().Tell(std::move(joined));
  }

  // A process that dies: its actor and data plane are gone.
  void Kill(int i) { stages_[static_cast<size_t>(i)].reset(); }
  void Restart(int i) { stages_[static_cast<size_t>(i)] = MakeStage(i); }

  [[nodiscard]] ControllerRef controller() { return controller_->ref(); }
  [[nodiscard]] StageActor& stage(int i) {
    return *stages_[static_cast<size_t>(i)];
  }
  [[nodiscard]] ControllerStatus Snapshot() {
    ControllerStatus status;
    controller().Tell(GetStatus{
        Reply<ControllerStatus>([&status](StatusOr<ControllerStatus> answer) {
          if (answer.ok()) status = *std::move(answer);
        })});
    Settle();
    return status;
  }

  FakeClock clock;

 private:
  bool RunOne() {
    const size_t pick = random_() % (executors_.size() + stages_.size());
    if (pick < executors_.size()) return executors_[pick]->RunOne();
    auto& stage = stages_[pick - executors_.size()];
    return stage != nullptr && stage->data_plane().Progress();
  }
  void AddStage(int i) {
    executors_.push_back(std::make_unique<ManualExecutor>(&clock));
    stages_.push_back(MakeStage(i));
  }
  std::unique_ptr<StageActor> MakeStage(int i) {
    StageOptions stage;
    stage.name = "s" + std::to_string(i);
    stage.devices.push_back(NewCpuDevice(1));
    stage.kernels = &kernels_;
    stage.make_data_plane = [this](DataPlaneEvents events) {
      return StatusOr<std::unique_ptr<DataPlane>>(
          NewInprocDataPlane(network_, std::move(events)));
    };
    stage.on_step_done = [this](StepDone done) {
      controller().Tell(std::move(done));
    };
    stage.on_failed = [this](StageFailed failed) {
      controller().Tell(std::move(failed));
    };
    auto actor = StageActor::Create(*executors_[static_cast<size_t>(i) + 1],
                                    std::move(stage));
    BATON_CHECK(actor.ok());
    return *std::move(actor);
  }

  std::mt19937 random_;
  std::shared_ptr<InprocNetwork> network_;
  KernelRegistry kernels_;
  std::vector<std::unique_ptr<ManualExecutor>> executors_;
  std::vector<std::unique_ptr<StageActor>> stages_;
  std::unique_ptr<ControllerActor> controller_;
};

// A sink that keeps everything; what it keeps outlives it.
struct Outcome {
  std::vector<SampleResult> prompt;
  std::vector<SampleResult> tokens;
  bool ended = false;
  Status status;
};
class OutcomeSink : public RequestSink {
 public:
  explicit OutcomeSink(Outcome* outcome) : outcome_(outcome) {}
  void OnEvent(const TokenEvent& event) override {
    BATON_CHECK(!outcome_->ended);
    for (const auto& r : event.prompt_logprobs) outcome_->prompt.push_back(r);
    if (event.token) outcome_->tokens.push_back(*event.token);
  }
  void OnEnd(const Status& status) override {
    BATON_CHECK(!outcome_->ended);
    outcome_->ended = true;
    outcome_->status = status;
  }

 private:
  Outcome* outcome_;
};

inline SubmitRequest Submit(const std::string& id, std::vector<int32_t> prompt,
                            int64_t max_tokens, Outcome* outcome) {
  SubmitRequest submit;
  submit.request.id = id;
  submit.request.prompt = std::move(prompt);
  submit.request.max_tokens = max_tokens;
  submit.request.sampling.digest = true;
  submit.request.sampling.prompt_logprobs = 1;
  submit.sink = std::make_unique<OutcomeSink>(outcome);
  return submit;
}

}  // namespace baton::testing
