// SPDX-License-Identifier: Apache-2.0
// The part of ControllerActor that brings a placement up: stages join, load,
// connect, serve.
#include <algorithm>
#include <random>
#include <type_traits>
#include <utility>

#include "actors/controller_actor.h"
#include "runtime/base/log.h"

namespace baton {
namespace {

// Before it tries again to start stages that could not start.
constexpr absl::Duration kStartAgain = absl::Seconds(2);

uint64_t RandomKey() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

void ControllerActor::Handle(StageJoined message) {
  const int i = FindStage(message.name);
  if (i < 0) {
    message.reply.Send(FailedPrecondition("the placement has no stage named {}",
                                          message.name));
    return;
  }
  StageState& stage = stages_[static_cast<size_t>(i)];
  if (stage.joined) {
    message.reply.Send(
        FailedPrecondition("a stage named {} is joined already", message.name));
    return;
  }
  stage = {};
  stage.data_address = std::move(message.data_address);
  stage.stage = std::move(message.stage);
  stage.joined = true;
  message.reply.Send(Done{});
  const auto joined =
      std::count_if(stages_.begin(), stages_.end(),
                    [](const StageState& s) { return s.joined; });
  leases_.Set(static_cast<double>(joined));
  LogInfo("controller.stage_joined", "stage={} joined={}/{}", message.name,
          joined, stages_.size());
  if (joined < static_cast<int64_t>(stages_.size())) {
    detail_ =
        fmt::format("{} of {} stages have joined", joined, stages_.size());
    return;
  }
  StartOver();
}

void ControllerActor::StartOver() {
  if (state_ == ControllerState::kWaiting &&
      std::all_of(stages_.begin(), stages_.end(),
                  [](const StageState& s) { return s.joined; })) {
    StartLoading();
  }
}

void ControllerActor::StartFailed(const Status& why) {
  LogError("controller.start_failed", "epoch={} status={}", epoch_.value(),
           ToString(why));
  LoseEpoch(why);
  if (why.code() == StatusCode::kUnavailable ||
      why.code() == StatusCode::kDeadlineExceeded) {
    start_again_ = Now() + kStartAgain;
  }
  AnswerAwaiting(why);
}

void ControllerActor::AnswerAwaiting(const Status& status) {
  for (Reply<Done>& reply : std::exchange(await_serving_, {})) {
    if (status.ok()) {
      reply.Send(Done{});
    } else {
      reply.Send(status);
    }
  }
}

// A reply that brings stage i's answer back to this actor.
template <typename T>
Reply<T> ControllerActor::AnswerTo(int i) {
  return Reply<T>([self = ref(), attempt = epoch_, i](StatusOr<T> answer) {
    StageAnswered back;
    back.attempt = attempt;
    back.stage = StageId(i);
    back.status = answer.status();
    if constexpr (std::is_same_v<T, StageLoaded>) {
      if (answer.ok()) back.loaded = *answer;
    }
    self.Tell(std::move(back));
  });
}

void ControllerActor::StartLoading() {
  if (std::exchange(planned_, true)) replans_.Add();
  epoch_ = Epoch(epoch_.value() + 1);
  state_ = ControllerState::kLoading;
  phase_ = Phase::kLoad;
  start_again_ = absl::InfiniteFuture();
  phase_deadline_ = Now() + options_.load_deadline;
  detail_ = "stages load their weights";
  LogInfo("controller.loading", "epoch={} stages={}", epoch_.value(),
          stages_.size());
  for (size_t i = 0; i < stages_.size(); ++i) {
    stages_[i].answered = false;
    LoadStage load;
    load.spec.checkpoint = options_.checkpoint;
    load.spec.config = options_.config;
    load.spec.random_seed = options_.random_seed;
    load.spec.ranges = options_.placement.stages[i].ranges;
    load.spec.dtype = options_.dtype;
    load.spec.kv = scheduler_.sizes();
    load.spec.tp = options_.placement.stages[i].tp;
    load.reply = AnswerTo<StageLoaded>(static_cast<int>(i));
    stages_[i].stage.Tell(std::move(load));
  }
}

int64_t ControllerActor::MaxStepRows() const {
  // Whole prompts (chunk 0) are bounded by the KV pool alone.
  return options_.scheduler.prefill_chunk > 0
             ? options_.scheduler.max_step_tokens
             : scheduler_.sizes().pages * kPageTokens;
}

void ControllerActor::StartConnecting() {
  phase_ = Phase::kConnect;
  phase_deadline_ = Now() + options_.step_deadline;
  detail_ = "stages connect to each other";
  SessionInfo session;
  session.epoch = epoch_;
  session.key = RandomKey();
  session.credits = options_.credits;
  session.max_packet_bytes =
      std::max<int64_t>(MaxStepRows() * options_.decoder.hidden *
                            SizeOf(options_.decoder.stream_dtype),
                        4096);
  for (size_t i = 0; i < stages_.size(); ++i) {
    stages_[i].answered = false;
    ConnectStage connect;
    connect.session = session;
    connect.self = StageId(static_cast<int>(i));
    connect.num_stages = options_.placement.num_stages();
    connect.passes = options_.placement.passes;
    connect.max_step_rows = MaxStepRows();
    connect.step_deadline = options_.step_deadline;
    for (size_t p = 0; p < stages_.size(); ++p) {
      if (p == i) continue;
      connect.peers.emplace_back(StageId(static_cast<int>(p)),
                                 stages_[p].data_address);
    }
    connect.reply = AnswerTo<Done>(static_cast<int>(i));
    stages_[i].stage.Tell(std::move(connect));
  }
}

void ControllerActor::StartServing() {
  phase_ = Phase::kNone;
  phase_deadline_ = absl::InfiniteFuture();
  state_ = ControllerState::kServing;
  detail_.clear();
  LogInfo("controller.serving",
          "epoch={} stages={} kv_pages={} window_pages={} state_slots={}",
          epoch_.value(), stages_.size(), scheduler_.sizes().pages,
          scheduler_.sizes().window_pages, scheduler_.sizes().state_slots);
  AnswerAwaiting(OkStatus());
}

void ControllerActor::Handle(StageAnswered message) {
  if (message.attempt != epoch_ || phase_ == Phase::kNone) return;
  const auto i = static_cast<size_t>(message.stage.value());
  const std::string& name = options_.placement.stages[i].name;
  if (!message.status.ok()) {
    StartFailed(Annotate(message.status, "stage " + name));
    return;
  }
  stages_[i].answered = true;
  if (phase_ == Phase::kLoad) {
    stages_[i].data_address = std::move(message.loaded.data_address);
    stages_[i].fingerprint = message.loaded.fingerprint;
  }
  if (!std::all_of(stages_.begin(), stages_.end(),
                   [](const StageState& s) { return s.answered; })) {
    return;
  }
  if (phase_ != Phase::kLoad) {
    StartServing();
  } else if (Status same = CheckFingerprints(); !same.ok()) {
    StartFailed(same);
  } else {
    StartConnecting();
  }
}

Status ControllerActor::CheckFingerprints() const {
  const bool same =
      std::all_of(stages_.begin(), stages_.end(), [&](const StageState& s) {
        return s.fingerprint == stages_[0].fingerprint;
      });
  if (same) return OkStatus();
  std::string all;
  for (size_t i = 0; i < stages_.size(); ++i) {
    all +=
        fmt::format("{}{} {:016x}", i == 0 ? "" : ", ",
                    options_.placement.stages[i].name, stages_[i].fingerprint);
  }
  return FailedPrecondition(
      "the weights in {} are not the same on all hosts; fingerprints: {}",
      options_.checkpoint, all);
}

void ControllerActor::Handle(AwaitServing message) {
  if (state_ == ControllerState::kServing) {
    message.reply.Send(Done{});
  } else if (state_ == ControllerState::kStopped) {
    message.reply.Send(Unavailable("the controller has stopped"));
  } else {
    await_serving_.push_back(std::move(message.reply));
  }
}

}  // namespace baton
