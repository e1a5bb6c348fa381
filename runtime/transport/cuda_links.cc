// SPDX-License-Identifier: Apache-2.0
// How the device plane sets up its paths, and what arrives over them.
#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/tensor/cuda_device.h"
#include "runtime/transport/cuda_data_plane.h"

namespace baton {
namespace {

Status NotNow(const SetupMessage& message) {
  return InvalidArgument("setup: kind {} about ring {} is not expected",
                         static_cast<uint32_t>(message.kind), message.ring);
}

}  // namespace

// --- What the host plane brings

void CudaDataPlane::OnPacket(Packet packet) {
  Peer* peer = Find(packet.from);
  if (peer == nullptr) return;
  if (packet.header.kind != PacketKind::kSetup) {
    if (peer->lost) return;
    ++own_.received_packets;
    own_.received_bytes += packet.payload.bytes();
    events_.on_packet(std::move(packet));
    return;
  }
  const StatusOr<bool> handed_on = OnSetup(*peer, packet);
  if (handed_on.ok() && *handed_on) return;  // its new owner consumes it
  host_->Consume(packet.from);
  if (handed_on.ok()) return;
  ++own_.dropped_malformed;
  LogWarn("transport.setup_dropped", "stage={} from={} status={}",
          self_.value(), packet.from.value(), ToString(handed_on.status()));
}

void CudaDataPlane::OnPeerLost(StageId id, const Status& why) {
  if (Peer* peer = Find(id)) Lose(*peer, why);
}

// True: it was a put, which the handler has; then the session may be another.
StatusOr<bool> CudaDataPlane::OnSetup(Peer& peer, const Packet& packet) {
  const ConstView bytes = packet.payload.view();
  BATON_ASSIGN_OR_RETURN(
      const SetupMessage message,
      DecodeSetup({bytes.data(), static_cast<size_t>(bytes.bytes())},
                  packet.header.epoch));
  if (peer.lost) return false;
  if (!Expects(peer, message)) return NotNow(message);
  Status done;
  switch (message.kind) {
    case SetupKind::kPut:
      return OnPut(peer, message);
    case SetupKind::kHello:
      ForgetRetired(peer);
      done = Offer(peer);
      break;
    case SetupKind::kRing:
    case SetupKind::kNccl:
      done = Accept(peer, message);
      break;
    case SetupKind::kUseHost:
      UseHost(peer);
      break;
    case SetupKind::kRefuse:
      done = OnRefused(peer);
      break;
    case SetupKind::kReady:
      peer.target.peer_ready = true;
      break;
    case SetupKind::kRelease:
      peer.target.used &= ~message.released;
      break;
  }
  moved_ = true;
  if (!done.ok()) Lose(peer, done);
  return false;
}

bool CudaDataPlane::Expects(const Peer& peer,
                            const SetupMessage& message) const {
  if (!peer.endpoint.has_value() || peer.id == self_) return false;
  const Target& target = peer.target;
  const bool of_ring = peer.ring != nullptr && peer.ring->id() == message.ring;
  switch (message.kind) {
    case SetupKind::kHello:
      return peer.ring == nullptr;
    case SetupKind::kRing:
    case SetupKind::kNccl:
      return peer.sending == Sending::kAsked;
    case SetupKind::kUseHost:
      return peer.sending == Sending::kAsked ||
             peer.sending == Sending::kStarting;
    case SetupKind::kReady:
      return peer.sending == Sending::kStarting && target.ring == message.ring;
    case SetupKind::kRelease:
      return peer.sending == Sending::kDevice && target.ring == message.ring &&
             (message.released & ~target.used) == 0;
    case SetupKind::kRefuse:
    case SetupKind::kPut:
      return of_ring;
  }
  return false;
}

StatusOr<bool> CudaDataPlane::OnPut(Peer& peer, const SetupMessage& put) {
  BATON_ASSIGN_OR_RETURN(Packet packet, peer.ring->Take(put));
  if (peer.nccl != nullptr) {
    const Status received = Receive(peer, put, packet.payload.bytes());
    if (!received.ok()) {
      Lose(peer, received);
      return false;
    }
  }
  ++own_.received_packets;
  own_.received_bytes += packet.payload.bytes();
  events_.on_packet(std::move(packet));
  return true;
}

// NCCL's stream fills the slot and raises its flag, as a direct sender would.
Status CudaDataPlane::Receive(Peer& peer, const SetupMessage& put,
                              int64_t bytes) {
  BATON_RETURN_IF_ERROR(peer.nccl->Receive(peer.ring->slot(put.slot), bytes));
  CudaPut raise;
  raise.flag = peer.ring->flag(put.slot);
  raise.value = FlagValue(put.ring, put.number);
  raise.words = words_;
  return CudaStatus(LaunchPut(raise, CudaStreamOf(peer.nccl->stream())),
                    "raise a flag");
}

// --- Setting up

Status CudaDataPlane::SendSetup(Peer& peer, const SetupMessage& message) {
  BATON_ASSIGN_OR_RETURN(Tensor payload, EncodeSetup(message));
  PacketHeader header;
  header.epoch = session_->epoch;
  header.kind = PacketKind::kSetup;
  header.dtype = DType::kI32;
  header.rows = 1;
  header.columns = static_cast<int32_t>(payload.shape()[1]);
  return host_->Send(peer.id, header, std::move(payload));
}

// Receiver: says how to send, by the best path that is left.
Status CudaDataPlane::Offer(Peer& peer) {
  while (true) {
    CudaEndpoint self = endpoint_;
    self.direct = self.direct && !peer.direct_refused;
    self.nccl = self.nccl && !peer.nccl_refused;
    const CudaPath path =
        ChoosePath(self, *peer.endpoint,
                   AccessFrom(*peer.endpoint, CudaOrdinalOf(stream_)));
    SetupMessage message;
    message.kind = SetupKind::kUseHost;
    message.ring = RandomId();
    if (path == CudaPath::kHost) return SendSetup(peer, message);
    const Status made = MakeRing(peer, path, message);
    if (made.ok()) {
      LogInfo("transport.path",
              "stage={} from={} path={} slots={} slot_bytes={}", self_.value(),
              peer.id.value(), Name(path), message.slots, message.slot_bytes);
      return SendSetup(peer, message);
    }
    LogWarn("transport.path_failed", "stage={} from={} path={} status={}",
            self_.value(), peer.id.value(), Name(path), ToString(made));
    (path == CudaPath::kDirect ? peer.direct_refused : peer.nccl_refused) =
        true;
  }
}

Status CudaDataPlane::MakeRing(Peer& peer, CudaPath path,
                               SetupMessage& message) {
  RingShape shape;
  shape.slots = static_cast<uint32_t>(options_.slots);
  const int64_t most = std::min(session_->max_packet_bytes,
                                options_.max_ring_bytes / options_.slots);
  shape.slot_bytes = (most + RingShape::kAlignment - 1) /
                     RingShape::kAlignment * RingShape::kAlignment;
  BATON_ASSIGN_OR_RETURN(
      std::shared_ptr<CudaRing> ring,
      CudaRing::Create(message.ring, peer.id, shape, options_.deadline, words_,
                       stream_, *aux_));
  message.slots = shape.slots;
  message.slot_bytes = shape.slot_bytes;
  if (path == CudaPath::kNccl) {
    message.kind = SetupKind::kNccl;
    BATON_ASSIGN_OR_RETURN(message.nccl_id, NewNcclId());
    BATON_ASSIGN_OR_RETURN(
        peer.nccl, StartNcclLink(message.nccl_id, NcclRole::kReceiver, device_,
                                 options_.deadline));
  } else {
    message.kind = SetupKind::kRing;
    if (peer.endpoint->process != endpoint_.process) {
      BATON_ASSIGN_OR_RETURN(message.memory, ring->memory()->Handle());
    }
  }
  peer.ring = std::move(ring);
  return OkStatus();
}

// Sender: takes the path that is offered, if it can.
Status CudaDataPlane::Accept(Peer& peer, const SetupMessage& offer) {
  Target& target = peer.target;
  target = Target();
  target.ring = offer.ring;
  target.shape = {.slots = offer.slots, .slot_bytes = offer.slot_bytes};
  Status opened;
  if (offer.kind == SetupKind::kRing) {
    auto ring = RemoteRing::Open(
        offer, peer.endpoint->process == endpoint_.process, stream_);
    opened = ring.status();
    if (opened.ok()) target.direct = *std::move(ring);
    peer.sending = Sending::kDevice;
  } else {
    auto link = StartNcclLink(offer.nccl_id, NcclRole::kSender, device_,
                              options_.deadline);
    opened = link.status();
    if (opened.ok()) target.nccl = *std::move(link);
    peer.sending = Sending::kStarting;
  }
  const std::string_view path = Name(
      offer.kind == SetupKind::kRing ? CudaPath::kDirect : CudaPath::kNccl);
  if (opened.ok()) {
    LogInfo("transport.path", "stage={} to={} path={}", self_.value(),
            peer.id.value(), path);
    return OkStatus();
  }
  return Refuse(peer, path, opened);
}

// Sender: asks for another path.
Status CudaDataPlane::Refuse(Peer& peer, std::string_view path,
                             const Status& why) {
  LogWarn("transport.path_failed", "stage={} to={} path={} status={}",
          self_.value(), peer.id.value(), path, ToString(why));
  SetupMessage refuse;
  refuse.kind = SetupKind::kRefuse;
  refuse.ring = peer.target.ring;
  peer.target = Target();
  peer.sending = Sending::kAsked;
  return SendSetup(peer, refuse);
}

// Receiver: the sender could not; nothing was put into the ring.
Status CudaDataPlane::OnRefused(Peer& peer) {
  (peer.nccl == nullptr ? peer.direct_refused : peer.nccl_refused) = true;
  peer.nccl = nullptr;
  peer.ring->Close();
  peer.ring = nullptr;
  peer.ready_told = false;
  return Offer(peer);
}

void CudaDataPlane::UseHost(Peer& peer) {
  peer.target = Target();
  peer.sending = Sending::kHost;
  LogInfo("transport.path", "stage={} to={} path=host", self_.value(),
          peer.id.value());
}

// The sender is in a new session, so it has let go of earlier rings.
void CudaDataPlane::ForgetRetired(const Peer& peer) {
  std::erase_if(retired_, [&](const Retired& retired) {
    return retired.writer == peer.endpoint->plane;
  });
}

}  // namespace baton
