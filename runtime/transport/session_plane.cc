// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/session_plane.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/transport/address.h"

namespace baton {
namespace {

// A window larger than this is a mistake, not a pipeline.
constexpr int kMaxCredits = 4096;

Status CheckSession(const SessionInfo& session) {
  if (session.credits < 1 || session.credits > kMaxCredits) {
    return InvalidArgument("session: {} credits, expected 1 to {}",
                           session.credits, kMaxCredits);
  }
  if (session.max_packet_bytes < 0 ||
      session.max_packet_bytes > kMaxPayloadBytes) {
    return InvalidArgument("session: packets of {} bytes, expected 0 to {}",
                           session.max_packet_bytes, kMaxPayloadBytes);
  }
  return OkStatus();
}

}  // namespace

Status SessionPlane::Connect(
    const SessionInfo& session, StageId self,
    const std::vector<std::pair<StageId, std::string>>& peers) {
  BATON_RETURN_IF_ERROR(CheckSession(session));
  EndSession();
  session_ = session;
  self_ = self;
  for (const auto& [id, address] : peers) {
    if (id.value() < 0 || Find(id) != nullptr) {
      EndSession();
      return InvalidArgument("connect stage {}: peer {} is negative or twice",
                             self.value(), id.value());
    }
    Peer& peer = peers_.emplace_back();
    peer.id = id;
    peer.credits = session.credits;
    peer.window.resize(static_cast<size_t>(session.credits));
    if (id == self) continue;  // handed over without a link
    if (Status opened = OpenLink(id, HostAddress(address)); !opened.ok()) {
      EndSession();
      return Annotate(opened, fmt::format("connect stage {} to stage {}",
                                          self.value(), id.value()));
    }
  }
  connected_ = true;
  return OkStatus();
}

void SessionPlane::EndSession() {
  if (connected_) {
    for (Peer& peer : peers_) {
      if (peer.lost || peer.id == self_) continue;
      Transmit(peer.id, Control(WireMessage::kGoodbye, peer), Tensor());
    }
  }
  connected_ = false;
  CloseLinks();
  peers_.clear();
  inbox_.clear();
}

Status SessionPlane::Send(StageId to, const PacketHeader& header,
                          Tensor payload) {
  if (!connected_) {
    return FailedPrecondition("send to stage {}: not connected", to.value());
  }
  Peer* peer = Find(to);
  if (peer == nullptr) {
    return FailedPrecondition("send to stage {}: not a peer of stage {}",
                              to.value(), self_.value());
  }
  if (peer->lost) return peer->why;
  if (header.epoch != session_.epoch) {
    return FailedPrecondition("send to stage {}: {}, the session is epoch {}",
                              to.value(), ToString(header),
                              session_.epoch.value());
  }
  const bool shaped = header.pass >= 0 && header.rows >= 0 &&
                      header.columns >= 0 && header.dtype == payload.dtype() &&
                      int64_t{header.rows} * header.columns ==
                          payload.view().shape().NumElements();
  const bool typed =
      header.kind == PacketKind::kStream || header.dtype == DType::kI32;
  if (!shaped || !typed || payload.bytes() > session_.max_packet_bytes) {
    return InvalidArgument(
        "send to stage {}: {}, the tensor is {} {}, the limit {} bytes",
        to.value(), ToString(header), Name(payload.dtype()),
        ToString(payload.shape()), session_.max_packet_bytes);
  }
  if (peer->credits == 0) {
    ++counters_.credit_stalls;
    peer->waiting.push_back({header, std::move(payload)});
    return OkStatus();
  }
  SendNow(*peer, header, std::move(payload));
  // The link may have broken under it.
  return peer->lost ? peer->why : OkStatus();
}

void SessionPlane::SendNow(Peer& peer, const PacketHeader& header,
                           Tensor payload) {
  BATON_CHECK(peer.credits > 0);
  --peer.credits;
  WirePacket wire;
  wire.key = session_.key;
  wire.from = self_;
  wire.sequence = peer.next_send++;
  wire.credits = std::exchange(peer.owed, 0);
  wire.payload_bytes = payload.bytes();
  wire.header = header;
  ++counters_.sent_packets;
  counters_.sent_bytes += wire.payload_bytes;
  Dispatch(peer, wire, std::move(payload));
}

WirePacket SessionPlane::Control(WireMessage message, const Peer& peer) const {
  WirePacket wire;
  wire.message = message;
  wire.key = session_.key;
  wire.from = self_;
  wire.credits = message == WireMessage::kCredit ? peer.owed : 0;
  wire.header.epoch = session_.epoch;
  return wire;
}

void SessionPlane::Dispatch(Peer& peer, const WirePacket& wire,
                            Tensor payload) {
  if (peer.id != self_) {
    Transmit(peer.id, wire, std::move(payload));
  } else if (Admit(wire) == Admission::kReceive) {
    Deliver(wire, std::move(payload));
  }
}

void SessionPlane::Consume(StageId from) {
  Peer* peer = Find(from);
  if (peer == nullptr || peer->consumed == peer->next_deliver) return;
  ++peer->consumed;
  ++peer->owed;
  // Fewer wait for a packet going back, or for this end to be idle.
  if (2 * peer->owed >= session_.credits) ReturnCredits(*peer);
}

void SessionPlane::ReturnCredits(Peer& peer) {
  if (!peer.lost) {
    const WirePacket wire = Control(WireMessage::kCredit, peer);
    peer.owed = 0;
    Dispatch(peer, wire, Tensor());
  }
  peer.owed = 0;
}

bool SessionPlane::ReturnAllCredits() {
  bool any = false;
  for (Peer& peer : peers_) {
    if (peer.owed == 0) continue;
    any = any || !peer.lost;
    ReturnCredits(peer);
  }
  return any;
}

bool SessionPlane::Progress() {
  bool any = Poll();
  // Not more than there are now: a handler may add to its own inbox.
  for (size_t left = inbox_.size(); left > 0 && !inbox_.empty(); --left) {
    any = true;
    Event event = std::move(inbox_.front());
    inbox_.pop_front();
    if (event.lost.ok()) {
      events_.on_packet(std::move(event.packet));
    } else {
      events_.on_peer_lost(event.packet.from, event.lost);
    }
  }
  return any || ReturnAllCredits();
}

void SessionPlane::Wait(absl::Duration timeout) {
  ReturnAllCredits();
  if (inbox_.empty()) Sleep(timeout);
}

SessionPlane::Peer* SessionPlane::Find(StageId id) {
  for (Peer& peer : peers_) {
    if (peer.id == id) return &peer;
  }
  return nullptr;
}

SessionPlane::Admission SessionPlane::Admit(const WirePacket& wire) {
  const bool control = wire.message != WireMessage::kPacket;
  const SessionMatch match =
      connected_ ? MatchSession(wire, session_) : SessionMatch::kStaleEpoch;
  switch (match) {
    case SessionMatch::kStaleEpoch:
      // A late credit or goodbye is how a session ends, not a lost packet.
      if (!control) ++counters_.dropped_stale_epoch;
      return Admission::kDone;
    case SessionMatch::kWrongKey:
      ++counters_.dropped_wrong_key;
      return Admission::kDone;
    case SessionMatch::kTooLarge:
      CountMalformed();
      return Admission::kDone;
    case SessionMatch::kMatches:
      break;
  }
  Peer* peer = Find(wire.from);
  if (peer == nullptr) {
    CountMalformed();
    return Admission::kDone;
  }
  if (peer->lost) {
    if (!control) ++counters_.dropped_stale_epoch;
    return Admission::kDone;
  }
  if (wire.message == WireMessage::kGoodbye) {
    LinkLost(peer->id, Unavailable("stage {} left the session of epoch {}",
                                   peer->id.value(), session_.epoch.value()));
    return Admission::kDone;
  }
  if (wire.credits > session_.credits - peer->credits ||
      (!control && !TakeSlot(*peer, wire.sequence))) {
    CountMalformed();
    return Admission::kDone;
  }
  Grant(*peer, wire.credits);
  return control ? Admission::kDone : Admission::kReceive;
}

// False: a sender with its credits would not send this one.
bool SessionPlane::TakeSlot(Peer& peer, uint64_t sequence) {
  const auto credits = static_cast<uint64_t>(session_.credits);
  if (sequence < peer.next_deliver || sequence - peer.consumed >= credits) {
    return false;
  }
  return !std::exchange(peer.window[sequence % credits].admitted, true);
}

void SessionPlane::Grant(Peer& peer, int credits) {
  peer.credits += credits;
  while (peer.credits > 0 && !peer.waiting.empty() && !peer.lost) {
    Waiting next = std::move(peer.waiting.front());
    peer.waiting.pop_front();
    SendNow(peer, next.header, std::move(next.payload));
  }
}

void SessionPlane::Deliver(const WirePacket& wire, Tensor payload) {
  Peer* peer = Find(wire.from);
  if (peer == nullptr || peer->lost || !Belongs(wire)) {
    ++counters_.dropped_stale_epoch;
    return;
  }
  const auto credits = static_cast<uint64_t>(session_.credits);
  peer->window[wire.sequence % credits].packet =
      Packet{wire.from, wire.header, std::move(payload)};
  // A large packet may finish after a small one that was sent later.
  while (true) {
    Slot& slot = peer->window[peer->next_deliver % credits];
    if (!slot.packet.has_value()) return;
    ++counters_.received_packets;
    counters_.received_bytes += slot.packet->payload.bytes();
    inbox_.push_back({*std::move(slot.packet), OkStatus()});
    slot = Slot();
    ++peer->next_deliver;
  }
}

void SessionPlane::LinkLost(StageId id, const Status& why) {
  Peer* peer = Find(id);
  if (peer == nullptr || peer->lost) return;
  peer->lost = true;
  peer->why = why;
  peer->waiting.clear();
  inbox_.push_back({Packet{.from = id}, why});
  DropLink(id);
}

}  // namespace baton
