// SPDX-License-Identifier: Apache-2.0
// Sessions of the device plane, and sending.
#include "runtime/transport/cuda_plane.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "runtime/base/log.h"
#include "runtime/tensor/cuda_device.h"
#include "runtime/transport/address.h"
#include "runtime/transport/cuda_data_plane.h"

namespace baton {

StatusOr<std::unique_ptr<DataPlane>> NewCudaDataPlane(
    const HostPlaneFactory& host_plane, Device* device, Stream* stream,
    const CudaPlaneOptions& options, DataPlaneEvents events) {
  if (options.slots < 1 || options.slots > static_cast<int>(kMaxRingSlots) ||
      options.max_ring_bytes < options.slots * RingShape::kAlignment) {
    return InvalidArgument("device plane: {} slots in {} bytes", options.slots,
                           options.max_ring_bytes);
  }
  auto plane = std::make_unique<CudaDataPlane>(device, stream, options,
                                               std::move(events));
  BATON_RETURN_IF_ERROR(plane->Open(host_plane));
  return std::unique_ptr<DataPlane>(std::move(plane));
}

Status CudaDataPlane::Open(const HostPlaneFactory& host_plane) {
  const int ordinal = CudaOrdinalOf(stream_);
  BATON_ASSIGN_OR_RETURN(aux_, device_.NewStream());
  BATON_ASSIGN_OR_RETURN(
      words_memory_,
      PeerMemory::Allocate(ordinal, sizeof(CudaPutWords), *aux_));
  words_ = reinterpret_cast<CudaPutWords*>(words_memory_->data());
  BATON_RETURN_IF_ERROR(CudaStatus(LoadPutKernels(), "load the put kernels"));
  BATON_ASSIGN_OR_RETURN(endpoint_, LocalEndpoint(ordinal));
  endpoint_.direct = options_.direct;
  endpoint_.nccl = options_.nccl && HaveNccl();
  DataPlaneEvents events;
  events.on_packet = [this](Packet packet) { OnPacket(std::move(packet)); };
  events.on_peer_lost = [this](StageId id, const Status& why) {
    OnPeerLost(id, why);
  };
  BATON_ASSIGN_OR_RETURN(host_, host_plane(std::move(events)));
  return OkStatus();
}

CudaDataPlane::~CudaDataPlane() {
  EndSession();
  host_ = nullptr;
  if (retired_.empty()) return;
  // Nobody is left who could say that they are not written any more.
  (void)new std::vector<Retired>(std::move(retired_));
}

std::string CudaDataPlane::Address() const {
  return AddDeviceNote(host_->Address(), EncodeEndpoint(endpoint_));
}

// --- Sessions

Status CudaDataPlane::Connect(
    const SessionInfo& session, StageId self,
    const std::vector<std::pair<StageId, std::string>>& peers) {
  EndSession();
  SessionInfo host_session = session;
  host_session.max_packet_bytes =
      std::max(session.max_packet_bytes, kMaxSetupBytes);
  BATON_RETURN_IF_ERROR(host_->Connect(host_session, self, peers));
  BATON_RETURN_IF_ERROR(device_.Clear(reinterpret_cast<std::byte*>(words_),
                                      sizeof(CudaPutWords), stream_));
  BATON_RETURN_IF_ERROR(stream_.Synchronize());
  session_ = session;
  self_ = self;
  for (const auto& [id, address] : peers) {
    if (Status added = AddPeer(id, address); !added.ok()) {
      EndSession();
      return Annotate(added, fmt::format("connect stage {} to stage {}",
                                         self.value(), id.value()));
    }
  }
  return OkStatus();
}

Status CudaDataPlane::AddPeer(StageId id, const std::string& address) {
  Peer& peer = peers_.emplace_back();
  peer.id = id;
  const std::string_view note = DeviceNote(address);
  if (note.empty()) {
    peer.sending = Sending::kHost;
    LogInfo("transport.path", "stage={} to={} path=host", self_.value(),
            id.value());
    return OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(peer.endpoint, DecodeEndpoint(note));
  return OkStatus();
}

// The stream stops waiting for peers and writing to them; then what it used can
// go. The peers hear of it from the host plane, later.
Status CudaDataPlane::Renew() {
  EndSession();
  return host_->Renew();
}

void CudaDataPlane::GiveUp() {
  for (Peer& peer : peers_) {
    if (peer.ring != nullptr) peer.ring->Abort();
  }
  StopNccl();
}

void CudaDataPlane::EndSession() {
  if (!session_.has_value()) return;
  GiveUp();
  const Status drained = stream_.Synchronize();
  if (!drained.ok()) {
    LogWarn("transport.stream_failed", "stage={} status={}", self_.value(),
            ToString(drained));
  }
  for (Peer& peer : peers_) Retire(peer);
  peers_.clear();
  losses_.clear();
  session_.reset();
}

void CudaDataPlane::Retire(Peer& peer) {
  if (peer.ring == nullptr) return;
  peer.ring->Close();
  // A sender in this process shares the memory; NCCL writes it from here.
  if (peer.endpoint->process != endpoint_.process && peer.nccl == nullptr) {
    // No stream holds a put back for longer than the deadline.
    retired_.push_back({.writer = peer.endpoint->plane,
                        .until = absl::Now() + 2 * options_.deadline,
                        .memory = peer.ring->memory()});
  }
  peer.nccl = nullptr;
  peer.ring = nullptr;
}

CudaDataPlane::Peer* CudaDataPlane::Find(StageId id) {
  for (Peer& peer : peers_) {
    if (peer.id == id) return &peer;
  }
  return nullptr;
}

const TransportCounters& CudaDataPlane::counters() const {
  counts_ = host_->counters();
  counts_.sent_packets = own_.sent_packets;
  counts_.sent_bytes = own_.sent_bytes;
  counts_.received_packets = own_.received_packets;
  counts_.received_bytes = own_.received_bytes;
  counts_.dropped_malformed += own_.dropped_malformed;
  counts_.credit_stalls += own_.credit_stalls;
  return counts_;
}

// --- Sending

Status CudaDataPlane::Send(StageId to, const PacketHeader& header,
                           Tensor payload) {
  Peer* peer = Find(to);
  if (peer == nullptr) return host_->Send(to, header, std::move(payload));
  // What was computed since is not data.
  BATON_RETURN_IF_ERROR(FailedWait());
  if (peer->lost) return peer->why;
  BATON_RETURN_IF_ERROR(CheckPayload(to, header, payload));
  const DType dtype = payload.dtype();
  const Shape shape = payload.shape();
  Buffer buffer = std::move(payload).ReleaseBuffer();
  Outgoing& last = peer->outgoing.emplace_back();
  last.header = header;
  // Handed over to itself as it is.
  last.on_device = buffer.kind() == DeviceKind::kCuda && to != self_;
  last.payload = Tensor(std::move(buffer), dtype, shape);
  const Status flushed = Flush(*peer);
  if (!flushed.ok()) Lose(*peer, flushed);
  return flushed;
}

Status CudaDataPlane::CheckPayload(StageId to, const PacketHeader& header,
                                   const Tensor& payload) const {
  const bool shaped =
      header.pass >= 0 && header.rows >= 0 && header.columns >= 0 &&
      header.dtype == payload.dtype() &&
      int64_t{header.rows} * header.columns == payload.shape().NumElements();
  if (header.epoch == session_->epoch && header.kind != PacketKind::kSetup &&
      shaped && payload.bytes() <= session_->max_packet_bytes) {
    return OkStatus();
  }
  return InvalidArgument(
      "send to stage {}: {}, the tensor is {} {}, the limit {} bytes in epoch "
      "{}",
      to.value(), ToString(header), Name(payload.dtype()),
      ToString(payload.shape()), session_->max_packet_bytes,
      session_->epoch.value());
}

Status CudaDataPlane::FailedWait() const {
  for (const Peer& peer : peers_) {
    if (peer.ring != nullptr) BATON_RETURN_IF_ERROR(peer.ring->Failure());
  }
  return OkStatus();
}

Status CudaDataPlane::SendHost(Peer& peer, const PacketHeader& header,
                               Tensor payload) {
  ++own_.sent_packets;
  own_.sent_bytes += payload.bytes();
  return host_->Send(peer.id, header, std::move(payload));
}

Status CudaDataPlane::Flush(Peer& peer) {
  if (peer.sending == Sending::kHost) {
    for (Outgoing& outgoing : peer.outgoing) {
      if (outgoing.on_device) BATON_RETURN_IF_ERROR(StartCopy(outgoing));
    }
  }
  while (!peer.outgoing.empty() && !peer.lost) {
    BATON_ASSIGN_OR_RETURN(const bool sent, SendFirst(peer));
    if (!sent) return OkStatus();
    moved_ = true;
    peer.outgoing.pop_front();
  }
  return OkStatus();
}

// False: it has to wait.
StatusOr<bool> CudaDataPlane::SendFirst(Peer& peer) {
  Outgoing& first = peer.outgoing.front();
  if (!first.on_device) {
    BATON_RETURN_IF_ERROR(
        SendHost(peer, first.header, std::move(first.payload)));
    return true;
  }
  switch (peer.sending) {
    case Sending::kNotAsked: {
      peer.sending = Sending::kAsked;
      BATON_RETURN_IF_ERROR(SendSetup(peer, SetupMessage()));
      return false;
    }
    case Sending::kAsked:
    case Sending::kStarting:
      return false;
    case Sending::kHost:
      return SendByHost(peer, first);
    case Sending::kDevice:
      break;
  }
  Target& target = peer.target;
  if (first.payload.bytes() > target.shape.slot_bytes) {
    return SendByHost(peer, first);
  }
  for (uint32_t slot = 0; slot < target.shape.slots; ++slot) {
    if ((target.used & (1u << slot)) != 0) continue;
    BATON_RETURN_IF_ERROR(Put(peer, slot, first));
    return true;
  }
  if (!std::exchange(first.stalled, true)) ++own_.credit_stalls;
  return false;
}

Status CudaDataPlane::StartCopy(Outgoing& outgoing) {
  if (outgoing.copied != nullptr) return OkStatus();
  const Tensor& from = outgoing.payload;
  const absl::ReaderMutexLock lock(&gpu_submissions);
  BATON_ASSIGN_OR_RETURN(Buffer host, device_.AllocateHost(from.bytes()));
  BATON_RETURN_IF_ERROR(
      device_.Copy(host.data(), from.view().data(), from.bytes(), stream_));
  BATON_ASSIGN_OR_RETURN(outgoing.copied, stream_.Record());
  outgoing.payload = Tensor(std::move(host), from.dtype(), from.shape());
  return OkStatus();
}

StatusOr<bool> CudaDataPlane::SendByHost(Peer& peer, Outgoing& first) {
  BATON_RETURN_IF_ERROR(StartCopy(first));
  BATON_ASSIGN_OR_RETURN(const bool copied, first.copied->Done());
  if (!copied) return false;
  BATON_RETURN_IF_ERROR(SendHost(peer, first.header, std::move(first.payload)));
  return true;
}

Status CudaDataPlane::Put(Peer& peer, uint32_t slot, Outgoing& first) {
  Target& target = peer.target;
  const uint32_t number = ++target.number;
  const int64_t bytes = first.payload.bytes();
  target.used |= 1u << slot;
  SetupMessage message;
  message.kind = SetupKind::kPut;
  message.ring = target.ring;
  message.slot = slot;
  message.number = number;
  message.header = first.header;
  ++own_.sent_packets;
  own_.sent_bytes += bytes;
  if (target.direct == nullptr) {
    // First: NCCL needs the peer to start receiving.
    BATON_RETURN_IF_ERROR(SendSetup(peer, message));
    return PutByNccl(target, std::move(first.payload));
  }
  CudaPut put;
  put.to = target.direct->data() + target.shape.SlotAt(slot);
  put.from = first.payload.view().data();
  put.bytes = bytes;
  put.flag = reinterpret_cast<uint64_t*>(target.direct->data() +
                                         target.shape.FlagAt(slot));
  put.value = FlagValue(target.ring, number);
  put.words = words_;
  // First: where both stages share a GPU, a peer that waits for a put that is
  // not submitted could keep this thread from submitting it.
  BATON_RETURN_IF_ERROR(
      CudaStatus(LaunchPut(put, CudaStreamOf(stream_)), "put"));
  return SendSetup(peer, message);
}

Status CudaDataPlane::PutByNccl(Target& target, Tensor payload) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Event> computed, stream_.Record());
  Stream& side = target.nccl->stream();
  BATON_RETURN_IF_ERROR(side.WaitFor(*computed));
  BATON_RETURN_IF_ERROR(
      target.nccl->Send(payload.view().data(), payload.bytes()));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Event> sent, side.Record());
  target.in_flight.push_back(
      {std::move(payload), std::move(sent), absl::Now()});
  return OkStatus();
}

}  // namespace baton
