// SPDX-License-Identifier: Apache-2.0
#include "actors/registrar_actor.h"

#include <utility>

#include "runtime/base/log.h"

namespace baton {

RegistrarActor::RegistrarActor(Executor& executor, ControllerRef controller,
                               absl::Duration lease, PeerFactory make_peer)
    : Actor(executor, "registrar"),
      controller_(std::move(controller)),
      leases_(lease),
      make_peer_(std::move(make_peer)) {
  Handle(CheckLeases{});
}

RegistrarActor::~RegistrarActor() {
  for (auto& [name, member] : members_) member.peer->Close();
}

RegistrarActor::Member* RegistrarActor::Find(const std::string& name,
                                             uint64_t incarnation) {
  auto found = members_.find(name);
  if (found == members_.end() ||
      found->second.offer.incarnation != incarnation) {
    return nullptr;
  }
  return &found->second;
}

void RegistrarActor::Drop(const std::string& name, uint64_t incarnation,
                          const Status& status) {
  leases_.Release(name, incarnation);
  if (Find(name, incarnation) == nullptr) return;
  Member member = std::move(members_.extract(name).mapped());
  // Before the calls to it fail: they would tell the controller of their
  // cancelling, not of the loss.
  if (member.told) controller_.Tell(StageLost{name, status});
  member.peer->Close();
  member.joining.Send(status);
}

void RegistrarActor::Handle(JoinStage message) {
  const std::string name = message.offer.name;
  const uint64_t incarnation = message.offer.incarnation;
  if (Status granted = leases_.Grant(name, incarnation, Now()); !granted.ok()) {
    message.reply.Send(granted);
    return;
  }
  PeerEvents events;
  events.on_ready = [self = ref(), name, incarnation] {
    self.Tell(PeerReady{name, incarnation});
  };
  events.on_lost = [self = ref(), name, incarnation](Status status) {
    self.Tell(PeerLost{name, incarnation, std::move(status)});
  };
  Member member;
  member.offer = std::move(message.offer);
  member.joining = std::move(message.reply);
  member.peer = make_peer_(member.offer, std::move(events));
  members_.insert_or_assign(name, std::move(member));
}

void RegistrarActor::Handle(PeerReady message) {
  Member* member = Find(message.name, message.incarnation);
  if (member == nullptr || member->told) return;
  member->told = true;
  StageJoined joined;
  joined.name = message.name;
  joined.data_address = member->offer.data_address;
  joined.stage = member->peer->ref();
  joined.reply =
      Reply<Done>([self = ref(), name = message.name,
                   incarnation = message.incarnation](StatusOr<Done> answer) {
        self.Tell(JoinAnswered{name, incarnation, answer.status()});
      });
  controller_.Tell(std::move(joined));
}

void RegistrarActor::Handle(JoinAnswered message) {
  Member* member = Find(message.name, message.incarnation);
  if (member == nullptr) return;
  if (!message.status.ok()) {
    LogWarn("registrar.refused", "stage={} status={}", message.name,
            ToString(message.status));
    member->told = false;  // it was not taken, so it cannot be lost
    Drop(message.name, message.incarnation, message.status);
    return;
  }
  // The host starts to renew when it hears of this.
  const Status renewed =
      leases_.Renew(message.name, message.incarnation, Now());
  if (!renewed.ok()) return Drop(message.name, message.incarnation, renewed);
  LogInfo("registrar.joined", "stage={} address={} lease={}", message.name,
          member->offer.control_address, absl::FormatDuration(leases_.lease()));
  member->joining.Send(leases_.lease());
}

void RegistrarActor::Handle(RenewLease message) {
  const Status renewed =
      leases_.Renew(message.name, message.incarnation, Now());
  if (renewed.ok()) {
    message.reply.Send(Done{});
  } else {
    message.reply.Send(renewed);
  }
}

void RegistrarActor::Handle(LeaveStage message) {
  if (Find(message.name, message.incarnation) == nullptr) {
    message.reply.Send(
        FailedPrecondition("stage {} has no lease any more", message.name));
    return;
  }
  // Moved through a shared box: a Reply's callback is called once.
  auto waiting = std::make_shared<Reply<Done>>(std::move(message.reply));
  StageLeaving leaving;
  leaving.name = message.name;
  leaving.reply = Reply<Done>([self = ref(), name = message.name,
                               incarnation = message.incarnation,
                               waiting](StatusOr<Done> answer) {
    self.Tell(
        LeaveAnswered{name, incarnation, answer.status(), std::move(*waiting)});
  });
  controller_.Tell(std::move(leaving));
}

void RegistrarActor::Handle(LeaveAnswered message) {
  if (!message.status.ok()) {
    message.reply.Send(message.status);
    return;
  }
  if (Member* member = Find(message.name, message.incarnation)) {
    member->told = false;  // the controller has let it go
    Drop(message.name, message.incarnation,
         Status(StatusCode::kCancelled, "the stage has left"));
    LogInfo("registrar.left", "stage={}", message.name);
  }
  message.reply.Send(Done{});
}

void RegistrarActor::Handle(PeerLost message) {
  if (Find(message.name, message.incarnation) == nullptr) return;
  LogWarn("registrar.peer_lost", "stage={} status={}", message.name,
          ToString(message.status));
  Drop(message.name, message.incarnation, message.status);
}

void RegistrarActor::Handle(CheckLeases) {
  for (const auto& [name, incarnation] : leases_.Expire(Now())) {
    const Member* member = Find(name, incarnation);
    if (member == nullptr) continue;
    const Status status =
        member->told ? Unavailable("no heartbeat for {}",
                                   absl::FormatDuration(leases_.lease()))
                     : Unavailable("no answer from {} in {}",
                                   member->offer.control_address,
                                   absl::FormatDuration(leases_.lease()));
    LogWarn("registrar.lease_expired", "stage={} status={}", name,
            ToString(status));
    Drop(name, incarnation, status);
  }
  TellAt(Now() + leases_.lease() / 10, CheckLeases{});
}

}  // namespace baton
