// SPDX-License-Identifier: Apache-2.0
#include "actors/local_pipeline.h"

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "kernels/devices/devices.h"
#include "runtime/weights/file.h"

namespace baton {
namespace {

// Gathers a request's events; whoever waits reads them after `done` counts
// down.
class CollectSink : public RequestSink {
 public:
  CollectSink(StatusOr<Completion>* out, absl::BlockingCounter* done)
      : out_(out), done_(done) {}
  void OnEvent(const TokenEvent& event) override {
    for (const SampleResult& r : event.prompt_logprobs) {
      completion_.prompt.push_back(r);
    }
    if (event.token.has_value()) completion_.tokens.push_back(*event.token);
    if (event.finished.has_value()) completion_.reason = *event.finished;
  }
  void OnEnd(const Status& status) override {
    if (status.ok()) {
      *out_ = std::move(completion_);
    } else {
      *out_ = status;
    }
    done_->DecrementCount();
  }

 private:
  StatusOr<Completion>* out_;
  absl::BlockingCounter* done_;
  Completion completion_;
};

}  // namespace

StatusOr<Transport> ParseTransport(const std::string& name) {
  if (name == "inproc") return Transport::kInproc;
  if (name == "ucx") return Transport::kUcx;
  return InvalidArgument("transport {}: expected inproc or ucx", name);
}

std::string_view Name(Transport transport) {
  return transport == Transport::kInproc ? "inproc" : "ucx";
}

StatusOr<std::unique_ptr<LocalStages>> LocalStages::Start(
    const LocalStagesOptions& options) {
  std::unique_ptr<LocalStages> stages(new LocalStages);
  stages->names_ = options.names;
  BATON_RETURN_IF_ERROR(RegisterKernels(stages->kernels_));
  std::shared_ptr<InprocNetwork> network = NewInprocNetwork();
  for (size_t i = 0; i < options.names.size(); ++i) {
    const int index = static_cast<int>(i);
    StageOptions stage;
    stage.name = options.names[i];
    BATON_ASSIGN_OR_RETURN(
        stage.devices, OpenDevices(options.devices[i % options.devices.size()],
                                   options.threads));
    stage.kernels = &stages->kernels_;
    stage.gpu_path = options.gpu_path;
    stage.make_data_plane =
        [options, network, index](
            DataPlaneEvents events) -> StatusOr<std::unique_ptr<DataPlane>> {
      std::unique_ptr<DataPlane> plane;
      if (options.transport == Transport::kInproc) {
        plane = NewInprocDataPlane(network, std::move(events));
      } else {
        UcxOptions ucx;
        ucx.transports = options.ucx_transports;
        BATON_ASSIGN_OR_RETURN(plane, NewUcxDataPlane(ucx, std::move(events)));
      }
      if (options.wrap) plane = options.wrap(index, std::move(plane));
      return plane;
    };
    stage.on_step_done = [s = stages.get()](StepDone done) {
      s->controller().Tell(std::move(done));
    };
    stage.on_failed = [s = stages.get()](StageFailed failed) {
      s->controller().Tell(std::move(failed));
    };
    if (options.on_load_progress) {
      stage.on_load_progress = [f = options.on_load_progress, index](
                                   int64_t done, int64_t total) {
        f(index, done, total);
      };
    }
    stage.stops = options.stops;
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<StageHost> host,
                           StageHost::Start(std::move(stage)));
    stages->hosts_.push_back(std::move(host));
  }
  return stages;
}

void LocalStages::Attach(ControllerRef controller) {
  absl::MutexLock lock(&mutex_);
  controller_ = std::move(controller);
}

ControllerRef LocalStages::controller() const {
  absl::MutexLock lock(&mutex_);
  return controller_;
}

ControllerHost::ControllerHost(ControllerOptions options, LocalStages* stages)
    : executor_("controller") {
  absl::Notification made;
  executor_.Post([&] {
    actor_ = std::make_unique<ControllerActor>(executor_, std::move(options));
    ref_ = actor_->ref();
    made.Notify();
  });
  made.WaitForNotification();
  if (stages == nullptr) return;
  stages->Attach(ref_);
  for (int i = 0; i < stages->size(); ++i) {
    StageJoined joined;
    joined.name = stages->names()[static_cast<size_t>(i)];
    joined.data_address = stages->host(i).data_address();
    joined.stage = stages->host(i).stage();
    ref_.Tell(std::move(joined));
  }
}

ControllerHost::~ControllerHost() {
  executor_.Post([this] { actor_.reset(); });
  executor_.Stop();
}

Status ControllerHost::WaitUntilServing(absl::Duration timeout) {
  // Shared: the answer may come after this has given up.
  struct State {
    absl::Notification done;
    Status status;
  };
  auto state = std::make_shared<State>();
  ref_.Tell(AwaitServing{Reply<Done>([state](const StatusOr<Done>& answer) {
    state->status = answer.status();
    state->done.Notify();
  })});
  if (!state->done.WaitForNotificationWithTimeout(timeout)) {
    return DeadlineExceeded("not serving after {}: {}",
                            absl::FormatDuration(timeout),
                            GetStatusNow().detail);
  }
  return state->status;
}

ControllerStatus ControllerHost::GetStatusNow() {
  absl::Notification done;
  ControllerStatus status;
  ref_.Tell(
      GetStatus{Reply<ControllerStatus>([&](StatusOr<ControllerStatus> answer) {
        if (answer.ok()) status = *std::move(answer);
        done.Notify();
      })});
  done.WaitForNotification();
  return status;
}

void ControllerHost::Drain(absl::Duration timeout) {
  absl::Notification done;
  DrainController drain;
  drain.deadline = absl::Now() + timeout;
  drain.reply = Reply<Done>([&](const StatusOr<Done>&) { done.Notify(); });
  ref_.Tell(std::move(drain));
  done.WaitForNotification();
}

std::vector<StatusOr<Completion>> RunRequests(const ControllerRef& controller,
                                              std::vector<Request> requests) {
  std::vector<StatusOr<Completion>> results(requests.size());
  absl::BlockingCounter done(static_cast<int>(requests.size()));
  for (size_t i = 0; i < requests.size(); ++i) {
    SubmitRequest submit;
    submit.request = std::move(requests[i]);
    submit.sink = std::make_unique<CollectSink>(&results[i], &done);
    controller.Tell(std::move(submit));
  }
  done.Wait();
  return results;
}

StatusOr<OpenedModel> OpenModel(const std::string& directory, DType dtype,
                                WeightsCheck check) {
  OpenedModel model;
  model.directory = directory;
  BATON_ASSIGN_OR_RETURN(model.config_text,
                         ReadFile(directory + "/config.json"));
  BATON_ASSIGN_OR_RETURN(
      ModelConfig config,
      ModelConfig::Parse(model.config_text, directory + "/config.json"));
  BATON_ASSIGN_OR_RETURN(model.decoder, FindDecoder(config.architecture()));
  BATON_ASSIGN_OR_RETURN(model.info, model.decoder->describe(config, dtype));
  BATON_ASSIGN_OR_RETURN(model.tensors, model.decoder->tensors(config));
  if (check == WeightsCheck::kConfigOnly) {
    BATON_ASSIGN_OR_RETURN(model.eos_ids, config.Ids("eos_token_id"));
    return model;
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(directory));
  BATON_RETURN_IF_ERROR(checkpoint->Check(model.tensors));
  model.eos_ids = checkpoint->EosIds();
  return model;
}

}  // namespace baton
