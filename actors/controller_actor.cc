// SPDX-License-Identifier: Apache-2.0
#include "actors/controller_actor.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/log.h"

namespace baton {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);

// Of logits that are not finite any token would be chosen, and look like one.
Status CheckSound(const TokenEvent& event) {
  if (!event.token.has_value() || std::isfinite(event.token->logprob)) {
    return OkStatus();
  }
  return DataLoss(
      "the logits of a row are not finite: the checkpoint is damaged, or its "
      "activations are too large for the dtype");
}

}  // namespace

SchedulerOptions SchedulerOf(const ControllerOptions& options) {
  SchedulerOptions scheduler = options.scheduler;
  scheduler.passes = options.placement.passes;
  if (scheduler.slots <= 0) scheduler.slots = options.placement.num_stages();
  scheduler.window = options.decoder.Window();
  scheduler.window_pages = EnoughWindowPages(scheduler);
  scheduler.state_slots =
      options.decoder.NeedsStateSlots() ? scheduler.max_sequences : 0;
  return scheduler;
}

std::string_view Name(ControllerState state) {
  switch (state) {
    case ControllerState::kWaiting:
      return "waiting";
    case ControllerState::kLoading:
      return "loading";
    case ControllerState::kServing:
      return "serving";
    case ControllerState::kDraining:
      return "draining";
    case ControllerState::kStopped:
      return "stopped";
  }
  return "?";
}

ControllerActor::ControllerActor(Executor& executor, ControllerOptions options)
    : Actor(executor, "controller"),
      options_(std::move(options)),
      scheduler_(SchedulerOf(options_)),
      stages_(options_.placement.stages.size()),
      kv_blocks_used_("baton_kv_blocks_used", "KV pages in use"),
      leases_("baton_controller_leases", "Stages that are joined"),
      replans_("baton_controller_replans_total",
               "Placements started after the first") {
  // Later than any epoch of a controller before this one.
  epoch_ = Epoch(static_cast<uint64_t>(absl::ToUnixMicros(Now())));
  detail_ = fmt::format("{} stages have not joined", stages_.size());
  Handle(ControllerTick{});
}

ControllerActor::~ControllerActor() {
  EndAll(Unavailable("the controller has stopped"));
  for (const StageState& stage : stages_) {
    if (stage.joined) stage.stage.Tell(EndSession{});
  }
}

int ControllerActor::FindStage(const std::string& name) const {
  for (int i = 0; i < options_.placement.num_stages(); ++i) {
    if (options_.placement.stages[static_cast<size_t>(i)].name == name) {
      return i;
    }
  }
  return -1;
}

// Ends the epoch: its requests, its steps, the sessions of its stages.
void ControllerActor::LoseEpoch(const Status& status) {
  phase_ = Phase::kNone;
  phase_deadline_ = absl::InfiniteFuture();
  detail_ = Message(status);
  issued_.clear();
  EndAll(Unavailable("the pipeline was lost: {}", Message(status)));
  // Old answers and results no longer count, whoever they come from.
  epoch_ = Epoch(epoch_.value() + 1);
  for (const StageState& stage : stages_) {
    if (stage.joined) stage.stage.Tell(EndSession{});
  }
  if (state_ == ControllerState::kDraining) {
    CheckDrained();
  } else if (state_ != ControllerState::kStopped) {
    state_ = ControllerState::kWaiting;
  }
}

void ControllerActor::EndAll(const Status& status) {
  scheduler_.AbortAll();
  kv_blocks_used_.Set(0);
  auto requests = std::exchange(requests_, {});
  for (auto& [id, sink] : requests) sink->OnEnd(status);
}

void ControllerActor::Handle(StageFailed message) {
  if (message.epoch != epoch_) return;
  const auto i = static_cast<size_t>(message.stage.value());
  const std::string name =
      i < stages_.size() ? options_.placement.stages[i].name : "?";
  LogError("controller.stage_failed", "stage={} epoch={} status={}", name,
           epoch_.value(), ToString(message.status));
  LoseEpoch(Annotate(message.status, "stage " + name));
  // The stage is still there: its host would have been reported lost.
  StartOver();
}

void ControllerActor::Handle(StageLost message) {
  const int i = FindStage(message.name);
  if (i < 0 || !stages_[static_cast<size_t>(i)].joined) return;
  stages_[static_cast<size_t>(i)] = {};
  leases_.Add(-1);
  LogError("controller.stage_lost", "stage={} epoch={} status={}", message.name,
           epoch_.value(), ToString(message.status));
  LoseEpoch(Unavailable("stage {} is gone: {}", message.name,
                        Message(message.status)));
}

void ControllerActor::Handle(StageLeaving message) {
  const int i = FindStage(message.name);
  if (i < 0 || !stages_[static_cast<size_t>(i)].joined ||
      state_ == ControllerState::kStopped) {
    message.reply.Send(Done{});
    return;
  }
  LogInfo("controller.stage_leaving", "stage={} running={}", message.name,
          requests_.size());
  stages_[static_cast<size_t>(i)].leaving = true;
  leaving_.push_back(std::move(message.reply));
  state_ = ControllerState::kDraining;
  detail_ = fmt::format("stage {} leaves", message.name);
  CheckDrained();
}

void ControllerActor::Handle(DrainController message) {
  drains_.push_back(std::move(message.reply));
  drain_deadline_ = std::min(drain_deadline_, message.deadline);
  state_ = ControllerState::kDraining;
  detail_ = "the controller drains";
  LogInfo("controller.draining", "running={}", requests_.size());
  CheckDrained();
}

void ControllerActor::CheckDrained() {
  if (state_ != ControllerState::kDraining || !requests_.empty()) return;
  for (const StageState& stage : stages_) {
    if (stage.joined) stage.stage.Tell(EndSession{});
  }
  scheduler_.AbortAll();
  issued_.clear();
  epoch_ = Epoch(epoch_.value() + 1);
  phase_ = Phase::kNone;
  state_ =
      drains_.empty() ? ControllerState::kWaiting : ControllerState::kStopped;
  if (state_ == ControllerState::kStopped) {
    AnswerAwaiting(Unavailable("the controller has stopped"));
  }
  for (StageState& stage : stages_) {
    if (stage.leaving) {
      stage = {};
      leases_.Add(-1);
    }
  }
  for (Reply<Done>& reply : leaving_) reply.Send(Done{});
  leaving_.clear();
  for (Reply<Done>& reply : drains_) reply.Send(Done{});
  drains_.clear();
}

RequestLimits ControllerActor::Limits() const {
  RequestLimits limits;
  limits.vocab = options_.decoder.vocab;
  limits.max_positions = options_.decoder.max_positions;
  limits.kv_tokens = scheduler_.sizes().pages * kPageTokens;
  return limits;
}

void ControllerActor::Handle(SubmitRequest message) {
  if (state_ != ControllerState::kServing) {
    message.sink->OnEnd(
        Unavailable("not serving ({}): {}", Name(state_), detail_));
    return;
  }
  Status added = CheckRequest(message.request, Limits());
  const std::string id = message.request.id;
  if (added.ok()) added = scheduler_.Add(std::move(message.request));
  if (!added.ok()) {
    message.sink->OnEnd(added);
    return;
  }
  requests_.emplace(id, std::move(message.sink));
  Pump();
}

void ControllerActor::Handle(AbortRequest message) {
  if (!scheduler_.Abort(message.id)) return;
  EndRequest(message.id, Status(StatusCode::kCancelled, "aborted"));
  Pump();
  CheckDrained();
}

void ControllerActor::EndRequest(const std::string& id, const Status& status) {
  auto node = requests_.extract(id);
  if (!node.empty()) node.mapped()->OnEnd(status);
}

void ControllerActor::Pump() {
  if (state_ != ControllerState::kServing &&
      state_ != ControllerState::kDraining) {
    return;
  }
  while (auto round = scheduler_.NextRound(epoch_)) {
    for (const StepDescriptor& step : round->steps) {
      issued_.emplace(step.step, Now());
    }
    for (const StageState& stage : stages_) {
      stage.stage.Tell(RunRound{*round});
    }
  }
  kv_blocks_used_.Set(static_cast<double>(scheduler_.pages_used()));
}

void ControllerActor::Handle(StepDone message) {
  if (message.result.epoch != epoch_) return;
  StatusOr<std::vector<TokenEvent>> events =
      scheduler_.Complete(message.result);
  if (!events.ok()) {
    LogError("controller.bad_result", "status={}", ToString(events.status()));
    LoseEpoch(events.status());
    StartOver();
    return;
  }
  issued_.erase(message.result.step);
  ++steps_done_;
  for (const TokenEvent& event : *events) {
    if (event.token.has_value()) ++tokens_generated_;
    auto found = requests_.find(event.request);
    if (found == requests_.end()) continue;
    if (Status sound = CheckSound(event); !sound.ok()) {
      scheduler_.Abort(event.request);
      EndRequest(event.request, sound);
      continue;
    }
    found->second->OnEvent(event);
    if (event.finished.has_value()) EndRequest(event.request, OkStatus());
  }
  Pump();
  CheckDrained();
}

void ControllerActor::Handle(ControllerTick) {
  TellAt(Now() + kTick, ControllerTick{});
  Tick();
}

void ControllerActor::Tick() {
  if (Now() > phase_deadline_) {
    std::string slow;
    for (size_t i = 0; i < stages_.size(); ++i) {
      if (stages_[i].answered) continue;
      slow += (slow.empty() ? "" : ", ") + options_.placement.stages[i].name;
    }
    StartFailed(DeadlineExceeded("no answer in time from stage {}", slow));
  }
  if (Now() > start_again_) StartOver();
  if (!issued_.empty()) {
    const auto& [step, when] = *issued_.begin();
    if (Now() - when > options_.step_deadline * 2) {
      StageFailed failed;
      failed.epoch = epoch_;
      failed.stage = StageId(options_.placement.num_stages() - 1);
      failed.status =
          DeadlineExceeded("step {} gave no result in {}", step.value(),
                           absl::FormatDuration(Now() - when));
      Handle(std::move(failed));
    }
  }
  if (Now() > drain_deadline_ && state_ == ControllerState::kDraining) {
    EndAll(Unavailable("the controller drained and the deadline has passed"));
    CheckDrained();
  }
}

ControllerStatus ControllerActor::Snapshot() const {
  ControllerStatus status;
  status.state = state_;
  status.detail = detail_;
  status.epoch = epoch_;
  status.placement = options_.placement;
  status.running = scheduler_.running();
  status.waiting = scheduler_.waiting();
  status.steps_in_flight = scheduler_.steps_in_flight();
  status.pages_used = scheduler_.pages_used();
  status.pages_total = scheduler_.sizes().pages;
  status.window_pages_used = scheduler_.window_pages_used();
  status.window_pages_total = scheduler_.sizes().window_pages;
  status.state_slots_used = scheduler_.state_slots_used();
  status.state_slots_total = scheduler_.sizes().state_slots;
  status.preemptions = scheduler_.preemptions();
  status.steps_done = steps_done_;
  status.tokens_generated = tokens_generated_;
  return status;
}

void ControllerActor::Handle(GetStatus message) {
  message.reply.Send(Snapshot());
}

}  // namespace baton
