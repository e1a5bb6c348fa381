// SPDX-License-Identifier: Apache-2.0
// How the device plane moves transfers forward, and how its links end.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "runtime/base/log.h"
#include "runtime/tensor/cuda_device.h"
#include "runtime/transport/cuda_data_plane.h"

namespace baton {
namespace {

// How long Wait() sleeps while something on the GPU is waited for, which wakes
// nobody.
constexpr absl::Duration kGpuPoll = absl::Microseconds(20);

}  // namespace

// --- Progress

bool CudaDataPlane::Progress() {
  moved_ = host_->Progress();
  for (Peer& peer : peers_) {
    if (peer.lost) continue;
    const Status advanced = Advance(peer);
    if (!advanced.ok()) Lose(peer, advanced);
  }
  if (!retired_.empty() && retired_.front().until < absl::Now()) {
    retired_.erase(retired_.begin());
  }
  while (!losses_.empty()) {
    moved_ = true;
    const auto [id, why] = losses_.front();
    losses_.pop_front();
    events_.on_peer_lost(id, why);  // may start another session
  }
  return moved_;
}

Status CudaDataPlane::Advance(Peer& peer) {
  BATON_RETURN_IF_ERROR(AdvanceReceiving(peer));
  BATON_RETURN_IF_ERROR(AdvanceSending(peer));
  return Flush(peer);
}

Status CudaDataPlane::AdvanceReceiving(Peer& peer) {
  if (peer.ring == nullptr) return OkStatus();
  BATON_RETURN_IF_ERROR(peer.ring->Failure());
  BATON_ASSIGN_OR_RETURN(const uint32_t released, peer.ring->TakeReleased());
  SetupMessage message;
  message.ring = peer.ring->id();
  if (released != 0) {
    moved_ = true;
    message.kind = SetupKind::kRelease;
    message.released = released;
    BATON_RETURN_IF_ERROR(SendSetup(peer, message));
  }
  if (peer.nccl == nullptr) return OkStatus();
  if (peer.ready_told) return peer.nccl->Check();
  const StatusOr<bool> ready = peer.nccl->Ready();
  if (!ready.ok()) {
    // The sender has not been told to use it, so nothing is lost.
    LogWarn("transport.path_failed", "stage={} from={} path=nccl status={}",
            self_.value(), peer.id.value(), ToString(ready.status()));
    return OnRefused(peer);
  }
  if (!*ready) return OkStatus();
  moved_ = true;
  peer.ready_told = true;
  message.kind = SetupKind::kReady;
  return SendSetup(peer, message);
}

Status CudaDataPlane::AdvanceSending(Peer& peer) {
  Target& target = peer.target;
  if (target.nccl == nullptr) return OkStatus();
  if (peer.sending == Sending::kStarting) {
    const StatusOr<bool> ready = target.nccl->Ready();
    if (!ready.ok()) return Refuse(peer, "nccl", ready.status());
    if (*ready && target.peer_ready) peer.sending = Sending::kDevice;
    return OkStatus();
  }
  BATON_RETURN_IF_ERROR(target.nccl->Check());
  while (!target.in_flight.empty()) {
    InFlight& oldest = target.in_flight.front();
    BATON_ASSIGN_OR_RETURN(const bool sent, oldest.sent->Done());
    if (sent) {
      moved_ = true;
      target.in_flight.pop_front();
      continue;
    }
    if (absl::Now() - oldest.since < options_.deadline) return OkStatus();
    return DeadlineExceeded("nccl to stage {}: not sent after {}",
                            peer.id.value(),
                            absl::FormatDuration(options_.deadline));
  }
  return OkStatus();
}

bool CudaDataPlane::Pending() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    if (peer.lost) return false;
    const bool starting = peer.sending == Sending::kStarting ||
                          (peer.nccl != nullptr && !peer.ready_told);
    const bool copying =
        !peer.outgoing.empty() && peer.outgoing.front().copied != nullptr;
    return starting || copying || !peer.target.in_flight.empty() ||
           (peer.ring != nullptr && peer.ring->releasing());
  });
}

void CudaDataPlane::Wait(absl::Duration timeout) {
  if (!losses_.empty()) return;
  host_->Wait(Pending() ? std::min(timeout, kGpuPoll) : timeout);
}

// --- Ends

void CudaDataPlane::Lose(Peer& peer, const Status& why) {
  if (peer.lost) return;
  peer.lost = true;
  peer.why = why;
  peer.outgoing.clear();
  losses_.emplace_back(peer.id, why);
  if (peer.ring != nullptr) peer.ring->Abort();
  if (peer.nccl != nullptr || peer.target.nccl != nullptr) {
    // What NCCL is stopped for may wait behind another peer's payload.
    for (Peer& other : peers_) {
      if (other.ring != nullptr) other.ring->Abort();
    }
    StopNccl();
  }
}

// A transfer that is cut short must not pass for data: no flag is raised any
// more in this session.
void CudaDataPlane::StopNccl() {
  bool poisoned = false;
  for (Peer& peer : peers_) {
    for (NcclLink* link : {peer.nccl.get(), peer.target.nccl.get()}) {
      if (link == nullptr) continue;
      if (!std::exchange(poisoned, true)) Poison();
      link->Abort();
    }
  }
}

void CudaDataPlane::Poison() {
  Status poisoned = aux_->Synchronize();
  if (poisoned.ok()) {
    poisoned = CudaStatus(SetPoisoned(words_, CudaStreamOf(*aux_)), "poison");
  }
  if (poisoned.ok()) poisoned = aux_->Synchronize();
  if (poisoned.ok()) return;
  LogWarn("transport.stream_failed", "stage={} status={}", self_.value(),
          ToString(poisoned));
}

}  // namespace baton
