// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/messages.h"
#include "models/decoder.h"
#include "runtime/base/clock.h"
#include "runtime/base/metrics.h"
#include "runtime/transport/device_plane.h"

namespace baton {

// What a stage's visits take of time; for benchmarks.
struct StageTimes {
  static constexpr int64_t kRecent = 256;

  double busy_seconds = 0;  // with a visit that is not complete
  int64_t visits = 0;
  // That this thread ran for visit v: element v % kRecent, of the last ones.
  std::array<double, kRecent> host_seconds = {};
};

struct StageOptions {
  std::string name = "stage";
  // As OpenDevices gives them: one, or one for each rank.
  std::vector<std::unique_ptr<Device>> devices;
  const KernelRegistry* kernels = nullptr;
  // The plane between hosts; its events are handed to the actor.
  std::function<StatusOr<std::unique_ptr<DataPlane>>(DataPlaneEvents)>
      make_data_plane;
  GpuPath gpu_path = GpuPath::kBest;  // where the device is a GPU
  // Where results and failures go. Thread: called on the stage's.
  std::function<void(StepDone)> on_step_done;
  std::function<void(StageFailed)> on_failed;
  // Bytes loaded so far and in all.
  std::function<void(int64_t, int64_t)> on_load_progress;
  // Whether the process is to end: a load is given up then, with Unavailable.
  // Thread: the stage's, and those of its ranks.
  std::function<bool()> stops;
};

// Runs one layer slice. Lives on its own thread and owns a device stream, a KV
// cache and one end of the data plane. Sees this stage only: what to run comes
// in rounds from the controller, what to run it on from the data plane.
//
//            LoadStage              ConnectStage
//   [empty] ----------> [loaded] --------------> [connected] --RunRound--+
//                          ^                        |   ^________________|
//                          |       EndSession       |
//                          +------------------------+
//                          |        failure         v
//                          +<-- ConnectStage -- [failed]: drops rounds
//
// A visit is submitted when it is the next in VisitOrder and its inputs are
// there, and completes when its device says so, before the next one or while
// later ones wait in the device's stream; the actor never waits inside a
// handler. Easy to get wrong: pages of a sequence
// grow when the first pass of a step runs, not when its round arrives.
class StageActor
    : public Actor<StageActor, LoadStage, ConnectStage, RunRound, EndSession> {
 public:
  // Internal: no data plane.
  [[nodiscard]] static StatusOr<std::unique_ptr<StageActor>> Create(
      Executor& executor, StageOptions options);
  ~StageActor();

  // Of the data plane as it is now. Thread: owner.
  [[nodiscard]] std::string DataAddress() const;
  // The executor's thread drives the data plane through this.
  [[nodiscard]] DataPlane& data_plane() { return *plane_; }
  // Hands on what the device has finished; true if there was any. Between
  // handlers, as long as anything is submitted. Thread: owner.
  bool Progress();
  [[nodiscard]] bool has_submitted() const { return !submitted_.empty(); }
  // Thread: owner.
  [[nodiscard]] const StageTimes& times() const { return times_; }
  [[nodiscard]] int64_t sequences() const {
    return static_cast<int64_t>(sequences_.size());
  }

  void Handle(LoadStage message);
  void Handle(ConnectStage message);
  void Handle(RunRound message);
  void Handle(EndSession message);

  struct Continue {};  // to itself: look for a visit that can run
  struct Check {};     // to itself: deadlines
  void Handle(Continue message);
  void Handle(Check message);

 private:
  struct Sequence {
    SamplingParams sampling;
    int64_t prompt_tokens = 0;
    std::vector<PageId> pages;
    std::vector<PageId> window_pages;  // some given back: ops/batch.h
    int32_t state_slot = -1;           // as SequenceStart
    int64_t positions = 0;             // issued so far
    int32_t next_token = -1;
    StepId next_token_from;
    // Where the device keeps the next token, from which step; -1: nowhere.
    int32_t slot = -1;
    StepId slot_from;
  };
  // A visit that the device may still be running.
  struct Submitted {
    StepDescriptor step;
    int pass = 0;
    VisitResult result;
    Tensor input;  // host memory that the device still reads
    absl::Time since;
    double host_seconds = 0;  // until it was submitted
  };
  struct Session {
    ConnectStage info;
    bool failed = false;
  };
  struct QueuedRound {
    Round round;
    std::vector<Visit> order;
    size_t next = 0;
    bool entered = false;
  };
  using PacketKey = std::tuple<uint64_t, int, PacketKind>;  // step, pass, kind

  StageActor(Executor& executor, StageOptions options);
  void OnPacket(Packet packet);
  void OnPeerLost(StageId peer, const Status& status);
  void Fail(Status status);
  void DropSession();
  void Wake();
  Status EnterRound(QueuedRound& queued);
  Status CheckStart(const SequenceStart& start) const;
  Status CheckStep(const StepDescriptor& step) const;
  [[nodiscard]] bool PagesFit(const Sequence& s,
                              const StepSequence& part) const;
  // True if the visit's inputs are all here.
  StatusOr<bool> Ready(const StepDescriptor& step, int pass);
  Status TakeTokens(StepId step, const Tensor& tokens);
  Status RunVisit(const StepDescriptor& step, int pass);
  StatusOr<VisitResult> Forward(const StepDescriptor& step, int pass,
                                Packet& input);
  Status ToHost(VisitResult& result);
  // `work`: of this thread for the visit, since it was submitted.
  Status Complete(Submitted visit, const ThreadTime& work);
  Status HandOn(Submitted visit);
  Status Hand(const StepDescriptor& step, int pass, Tensor stream);
  Status Finish(const StepDescriptor& step, VisitResult result);
  [[nodiscard]] bool IsFirst(int pass) const;
  [[nodiscard]] bool IsLast(int pass) const;
  [[nodiscard]] PacketHeader StreamHeader(const StepDescriptor& step,
                                          int pass) const;

  StageOptions options_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<DataPlane> plane_;  // may use the stream
  std::optional<StageSpec> spec_;
  uint64_t fingerprint_ = 0;  // of the weights that slice_ was built of
  DecoderInfo info_;
  std::unique_ptr<StageSlice> slice_;
  std::optional<Session> session_;
  std::map<SequenceId, Sequence> sequences_;
  std::deque<QueuedRound> rounds_;
  std::map<PacketKey, Packet> inbox_;
  std::deque<Submitted> submitted_;  // oldest first
  std::vector<int32_t> free_slots_;  // of the device's drawn tokens
  // Stage 0: steps whose token packet is due, with the sequences it is for.
  std::map<StepId, std::vector<SequenceId>> due_tokens_;
  absl::Time waiting_since_ = absl::InfiniteFuture();
  bool woken_ = false;
  StageTimes times_;
  Histogram step_seconds_;
  Counter idle_seconds_;
  absl::Time idle_since_;
};

// A stage with its thread: the actor and the executor that drives it.
// Created on any thread; destroyed on any but its own.
class StageHost {
 public:
  [[nodiscard]] static StatusOr<std::unique_ptr<StageHost>> Start(
      StageOptions options);
  ~StageHost();

  [[nodiscard]] StageRef stage() const { return stage_; }
  [[nodiscard]] const std::string& data_address() const { return address_; }
  // Runs `body` on the stage's thread and waits. Not from that thread.
  void RunOnStage(const std::function<void(StageActor&)>& body);

 private:
  class PlanePoller;
  StageHost();
  std::unique_ptr<PlanePoller> poller_;
  std::unique_ptr<ThreadExecutor> executor_;
  std::unique_ptr<StageActor> actor_;
  StageRef stage_;
  std::string address_;
};

}  // namespace baton
