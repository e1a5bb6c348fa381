// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/lease_table.h"
#include "actors/messages.h"

namespace baton {

// A host's offer to be a stage.
struct JoinOffer {
  std::string name;
  uint64_t incarnation = 0;     // random, new for each join
  std::string control_address;  // HOST:PORT of its Stage service
  std::string data_address;
};

// The controller's end of a remote stage.
class StagePeer {
 public:
  virtual ~StagePeer() = default;
  [[nodiscard]] virtual StageRef ref() = 0;
  // Cuts the connection; nothing of the stage arrives afterwards.
  virtual void Close() = 0;
};
struct PeerEvents {
  std::function<void()> on_ready;       // the stage answered; once
  std::function<void(Status)> on_lost;  // also if it never answered; once
};
using PeerFactory =
    std::function<std::shared_ptr<StagePeer>(const JoinOffer&, PeerEvents)>;

struct JoinStage {
  JoinOffer offer;
  // The lease. AlreadyExists: the name is taken. FailedPrecondition: the
  // controller does not want it. Unavailable: its address is not reachable.
  Reply<absl::Duration> reply;
};
struct RenewLease {
  std::string name;
  uint64_t incarnation = 0;
  Reply<Done> reply;  // FailedPrecondition: it has none
};
struct LeaveStage {
  std::string name;
  uint64_t incarnation = 0;
  Reply<Done> reply;
};
// A peer's handshake is done, or its connection is.
struct PeerReady {
  std::string name;
  uint64_t incarnation = 0;
};
struct PeerLost {
  std::string name;
  uint64_t incarnation = 0;
  Status status;
};
// The controller's answers, brought back to the registrar's thread.
struct JoinAnswered {
  std::string name;
  uint64_t incarnation = 0;
  Status status;
};
struct LeaveAnswered {
  std::string name;
  uint64_t incarnation = 0;
  Status status;
  Reply<Done> reply;
};

// Keeps the leases of remote stages, connects to those that join, and tells the
// controller who came and who is gone. Has the thread it is given; owns no
// decision about what runs.
//
//              JoinStage            PeerReady            JoinAnswered
//   [unknown] ----------> [dialled] ---------> [offered] ------------> [joined]
//       ^                     |  PeerLost, no answer,       RenewLease ^  |
//       +---------------------+  refused                               +--+
//       ^                                                                 |
//       +-- PeerLost, lease ran out (both: StageLost), LeaveAnswered -----+
class RegistrarActor
    : public Actor<RegistrarActor, JoinStage, RenewLease, LeaveStage, PeerReady,
                   PeerLost, JoinAnswered, LeaveAnswered> {
 public:
  RegistrarActor(Executor& executor, ControllerRef controller,
                 absl::Duration lease, PeerFactory make_peer);
  ~RegistrarActor();

  void Handle(JoinStage message);
  void Handle(RenewLease message);
  void Handle(LeaveStage message);
  void Handle(PeerReady message);
  void Handle(PeerLost message);
  void Handle(JoinAnswered message);
  void Handle(LeaveAnswered message);

  struct CheckLeases {};  // to itself
  void Handle(CheckLeases message);

 private:
  struct Member {
    JoinOffer offer;
    std::shared_ptr<StagePeer> peer;
    Reply<absl::Duration> joining;
    bool told = false;  // the controller knows of it
  };

  // The member of this incarnation, or nullptr.
  Member* Find(const std::string& name, uint64_t incarnation);
  // Forgets a member; one that the controller knows of is reported lost.
  void Drop(const std::string& name, uint64_t incarnation,
            const Status& status);

  ControllerRef controller_;
  LeaseTable leases_;
  PeerFactory make_peer_;
  std::map<std::string, Member> members_;
};

}  // namespace baton
