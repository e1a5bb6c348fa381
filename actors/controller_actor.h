// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "models/decoder.h"
#include "runtime/sched/scheduler.h"

namespace baton {

struct ControllerOptions {
  Placement placement;  // names and ranges of the stages
  DecoderInfo decoder;
  std::string checkpoint;    // directory, the same on every host
  std::string config;        // text of its config.json
  uint64_t random_seed = 0;  // not 0: random weights
  DType dtype = DType::kBF16;
  SchedulerOptions scheduler;  // as SchedulerOf takes it
  int credits = 8;
  absl::Duration step_deadline = absl::Seconds(60);
  absl::Duration load_deadline = absl::Minutes(30);
};

// The scheduler's options with what follows from the rest filled in: passes,
// slots where they are 0, the window and the pages it needs, and a state slot
// for each sequence where the decoder needs any.
[[nodiscard]] SchedulerOptions SchedulerOf(const ControllerOptions& options);

// Decides everything: when stages load and connect, which steps run, whose
// tokens they are. Owns the scheduler and every request.
//
//   [waiting] --all stages joined--> [loading] --all connected--> [serving]
//       ^                               |                            |
//       |<-------- a stage lost --------+<-------- a stage lost -----+
//                                                    Drain |         |
//                                        [stopped] <-- [draining] <--+
//
// A lost stage ends its requests with UNAVAILABLE and fences the epoch; the
// controller stays, and serves again when a stage of that name joins. Where all
// stages are still there it starts over by itself: at once after a session that
// broke, and after a while where stages could not be started for a reason that
// may pass (Unavailable, DeadlineExceeded). What is stopped stays stopped.
// Never waits in a handler: answers of stages come back as StageAnswered.
class ControllerActor
    : public Actor<ControllerActor, StepDone, StageFailed, StageJoined,
                   StageLost, StageLeaving, SubmitRequest, AbortRequest,
                   GetStatus, DrainController, AwaitServing, StageAnswered> {
 public:
  ControllerActor(Executor& executor, ControllerOptions options);
  ~ControllerActor();

  void Handle(StepDone message);
  void Handle(StageFailed message);
  void Handle(StageJoined message);
  void Handle(StageLost message);
  void Handle(StageLeaving message);
  void Handle(SubmitRequest message);
  void Handle(AbortRequest message);
  void Handle(GetStatus message);
  void Handle(DrainController message);
  void Handle(AwaitServing message);
  void Handle(StageAnswered message);
  void Handle(ControllerTick message);  // to itself

 private:
  struct StageState {
    std::string data_address;
    StageRef stage;
    bool joined = false;
    bool answered = false;     // in the phase that runs
    uint64_t fingerprint = 0;  // of its weights
    bool leaving = false;
  };
  enum class Phase { kNone, kLoad, kConnect };

  void Tick();
  // Starts loading if it waits for nothing else.
  void StartOver();
  void StartFailed(const Status& why);
  void StartLoading();
  // Whether stages have loaded the same weights.
  [[nodiscard]] Status CheckFingerprints() const;
  void StartConnecting();
  void StartServing();
  template <typename T>
  Reply<T> AnswerTo(int stage);
  void LoseEpoch(const Status& status);
  void AnswerAwaiting(const Status& status);
  void EndAll(const Status& status);
  void Pump();
  void CheckDrained();
  void EndRequest(const std::string& id, const Status& status);
  [[nodiscard]] int FindStage(const std::string& name) const;
  [[nodiscard]] RequestLimits Limits() const;
  [[nodiscard]] int64_t MaxStepRows() const;
  [[nodiscard]] ControllerStatus Snapshot() const;

  ControllerOptions options_;
  Scheduler scheduler_;
  ControllerState state_ = ControllerState::kWaiting;
  Phase phase_ = Phase::kNone;
  std::string detail_;
  Epoch epoch_;
  bool planned_ = false;
  std::vector<StageState> stages_;
  std::map<std::string, std::unique_ptr<RequestSink>> requests_;
  std::map<StepId, absl::Time> issued_;  // steps in flight
  absl::Time phase_deadline_ = absl::InfiniteFuture();
  absl::Time start_again_ = absl::InfiniteFuture();
  std::vector<Reply<Done>> await_serving_;
  std::vector<Reply<Done>> drains_;
  absl::Time drain_deadline_ = absl::InfiniteFuture();
  std::vector<Reply<Done>> leaving_;
  int64_t steps_done_ = 0;
  int64_t tokens_generated_ = 0;
  Gauge kv_blocks_used_;
  Gauge leases_;
  Counter replans_;
};

}  // namespace baton
