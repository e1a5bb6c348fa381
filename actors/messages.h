// SPDX-License-Identifier: Apache-2.0
// Every message between actors, as plain structs. Messages that also cross a
// wire have a proto twin, converted in wire.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "actors/core/actor.h"
#include "runtime/config/plan.h"
#include "runtime/sched/scheduler.h"
#include "runtime/sched/step.h"
#include "runtime/tensor/dtype.h"
#include "runtime/transport/channel.h"

namespace baton {

// --- controller -> stage ---------------------------------------------------

// What a stage loads. A stage that holds exactly this already answers at once.
struct StageSpec {
  std::string checkpoint;    // directory on the stage's host
  std::string config;        // text of the controller's config.json
  uint64_t random_seed = 0;  // not 0: random weights, no checkpoint files
  std::vector<UnrolledRange> ranges;  // one per pass
  DType dtype = DType::kBF16;
  KvSizes kv;
  int tp = 1;  // ranks that share the layers
  friend bool operator==(const StageSpec&, const StageSpec&) = default;
};
struct StageLoaded {
  int64_t weight_bytes = 0;
  int64_t kv_bytes = 0;
  double seconds = 0;
  uint64_t fingerprint = 0;  // of the weights (WeightSource)
  // Of the stage's data plane, for the session to come.
  std::string data_address;
};
struct LoadStage {
  StageSpec spec;
  Reply<StageLoaded> reply;
};

// Starts a session of a loaded stage; whatever an earlier one left is dropped.
struct ConnectStage {
  SessionInfo session;
  StageId self;
  int num_stages = 1;
  int passes = 1;
  int64_t max_step_rows = 0;
  absl::Duration step_deadline;
  std::vector<std::pair<StageId, std::string>> peers;  // all but self
  Reply<Done> reply;
};

struct RunRound {
  Round round;
};

// Drops the session; weights stay.
struct EndSession {
  Reply<Done> reply;
};

using StageRef = ActorRef<LoadStage, ConnectStage, RunRound, EndSession>;

// --- stage -> controller ---------------------------------------------------

struct StepDone {
  StepResult result;
};
// The session cannot go on. Fatal for the epoch, not for the stage.
struct StageFailed {
  Epoch epoch;
  StageId stage;
  Status status;
};

// --- stage hosts -> controller ---------------------------------------------

// A host offers itself as the stage of this name.
struct StageJoined {
  std::string name;
  std::string data_address;  // DataPlane::Address()
  StageRef stage;
  Reply<Done> reply;  // FailedPrecondition: unknown name, or a live one
};
// Its stream broke or its lease ran out.
struct StageLost {
  std::string name;
  Status status;
};
// It wants to leave; answered when no request needs it any more.
struct StageLeaving {
  std::string name;
  Reply<Done> reply;
};

// --- clients -> controller -------------------------------------------------

// Where a request's tokens go. Called on the controller's thread; never blocks.
// OnEnd is called exactly once, last.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void OnEvent(const TokenEvent& event) = 0;
  virtual void OnEnd(const Status& status) = 0;
};
struct SubmitRequest {
  Request request;
  std::unique_ptr<RequestSink> sink;
};
// The client is gone or gave up; the sink gets Cancelled.
struct AbortRequest {
  std::string id;
};

enum class ControllerState {
  kWaiting,  // for stages to join
  kLoading,  // weights, then connections
  kServing,
  kDraining,  // finishes what runs, takes nothing new
  kStopped,
};
[[nodiscard]] std::string_view Name(ControllerState state);

struct ControllerStatus {
  ControllerState state = ControllerState::kWaiting;
  std::string detail;  // what it waits for, or which stage was lost and why
  Epoch epoch;
  Placement placement;
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t steps_in_flight = 0;
  int64_t pages_used = 0;
  int64_t pages_total = 0;
  int64_t window_pages_used = 0;
  int64_t window_pages_total = 0;
  int64_t state_slots_used = 0;
  int64_t state_slots_total = 0;
  int64_t preemptions = 0;
  int64_t steps_done = 0;
  int64_t tokens_generated = 0;
};
struct GetStatus {
  Reply<ControllerStatus> reply;
};
// Answered when nothing runs any more, or with what was cut off at the
// deadline.
struct DrainController {
  absl::Time deadline;
  Reply<Done> reply;
};
// Answered (with OK) when the controller serves, or with why it cannot.
struct AwaitServing {
  Reply<Done> reply;
};
struct ControllerTick {};
// Answers of stages, brought back to the controller's thread.
struct StageAnswered {
  Epoch attempt;
  StageId stage;
  Status status;
  StageLoaded loaded;
};

using ControllerRef =
    ActorRef<StepDone, StageFailed, StageJoined, StageLost, StageLeaving,
             SubmitRequest, AbortRequest, GetStatus, DrainController,
             AwaitServing, StageAnswered>;

}  // namespace baton
