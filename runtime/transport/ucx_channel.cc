// SPDX-License-Identifier: Apache-2.0
// What travels over the links of the UCX back end.
#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/time/clock.h"
#include "runtime/transport/ucx_plane.h"

namespace baton {
namespace {

constexpr unsigned kMessageId = 1;
// README.md derives these and the sizes in ucx_worker.cc from each other.
constexpr int64_t kFragmentBytes = 16384;
constexpr int kWindow = 16;
// Progress calls before what they brought is handed on.
constexpr int kMaxProgress = 64;
constexpr int kRoundsPerYield = 32;

}  // namespace

Status UcxPlane::Listen() {
  ucp_am_handler_param_t params = {};
  params.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = kMessageId;
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  params.cb = &UcxPlane::OnMessage;
  params.arg = this;
  const ucs_status_t status =
      ucp_worker_set_am_recv_handler(worker_->handle(), &params);
  if (status == UCS_OK) return OkStatus();
  return Internal("ucp_worker_set_am_recv_handler: {}",
                  ucs_status_string(status));
}

// --- Sending

void UcxPlane::Transmit(StageId to, const WirePacket& wire, Tensor payload) {
  Link* link = FindLink(to);
  if (link == nullptr) return;
  if (wire.message != WireMessage::kPacket) {
    SendMessage(*link, wire, nullptr, 0);
    return;
  }
  link->outgoing.push_back(
      {wire, std::make_shared<const Tensor>(std::move(payload))});
  SendOutgoing(*link);
}

void UcxPlane::SendOutgoing(Link& link) {
  while (link.live && !link.outgoing.empty() && link.on_the_way < kWindow) {
    Outgoing& packet = link.outgoing.front();
    const WirePacket wire = packet.wire;
    const int64_t bytes =
        std::min(kFragmentBytes, wire.payload_bytes - wire.offset);
    packet.wire.offset += bytes;
    std::shared_ptr<const Tensor> payload = packet.payload;
    if (packet.wire.offset == wire.payload_bytes) link.outgoing.pop_front();
    ++link.on_the_way;
    SendMessage(link, wire, std::move(payload), bytes);
  }
}

void UcxPlane::SendMessage(Link& link, const WirePacket& wire,
                           std::shared_ptr<const Tensor> payload,
                           int64_t bytes) {
  if (spare_.empty()) spare_.emplace_back();
  transfers_.splice(transfers_.begin(), spare_, spare_.begin());
  Transfer& transfer = transfers_.front();
  transfer.link = &link;
  transfer.header = EncodePacketHeader(wire);
  transfer.payload = std::move(payload);
  transfer.self = transfers_.begin();
  const std::byte* data =
      bytes == 0 ? nullptr : transfer.payload->view().data() + wire.offset;
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &UcxPlane::OnSent;
  params.user_data = &transfer;
  const ucs_status_ptr_t request = ucp_am_send_nbx(
      link.endpoint, kMessageId, transfer.header.data(), transfer.header.size(),
      data, static_cast<size_t>(bytes), &params);
  if (UCS_PTR_IS_PTR(request)) return;
  Finish(transfer);
  if (UCS_PTR_IS_ERR(request)) {
    Fail(link, "ucp_am_send_nbx", UCS_PTR_STATUS(request));
  }
}

void UcxPlane::Finish(Transfer& transfer) {
  transfer.payload = nullptr;
  spare_.splice(spare_.begin(), transfers_, transfer.self);
}

void UcxPlane::OnSent(void* request, ucs_status_t status, void* arg) {
  Transfer& transfer = *static_cast<Transfer*>(arg);
  Link& link = *transfer.link;
  link.plane->Finish(transfer);
  if (status != UCS_OK) link.plane->Fail(link, "send", status);
  ucp_request_free(request);
}

// --- Receiving

ucs_status_t UcxPlane::OnMessage(void* arg, const void* header,
                                 size_t header_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* param) {
  auto& plane = *static_cast<UcxPlane*>(arg);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    plane.CountMalformed();  // `data` is not the bytes; none of ours does this
    return UCS_OK;
  }
  plane.Arrive({static_cast<const std::byte*>(header), header_bytes},
               {static_cast<const std::byte*>(data), bytes});
  return UCS_OK;
}

void UcxPlane::Arrive(std::span<const std::byte> header,
                      std::span<const std::byte> data) {
  const StatusOr<WirePacket> wire = DecodePacketHeader(header);
  const auto bytes = static_cast<int64_t>(data.size());
  if (!wire.ok() || bytes > wire->payload_bytes - wire->offset ||
      (bytes == 0) != (wire->payload_bytes == 0)) {
    CountMalformed();
    return;
  }
  if (wire->message == WireMessage::kArrived) {
    FragmentsArrived(*wire);
    return;
  }
  Link* link = wire->offset == 0 ? BeginPacket(*wire) : FindLink(wire->from);
  // Without a packet: what its first fragment was refused for was counted.
  if (link == nullptr || !link->incoming.has_value()) return;
  AddFragment(*link, *wire, data);
}

void UcxPlane::FragmentsArrived(const WirePacket& wire) {
  Link* link = FindLink(wire.from);
  if (link == nullptr || !Belongs(wire)) return;
  if (wire.credits > link->on_the_way) {
    CountMalformed();
    return;
  }
  link->on_the_way -= wire.credits;
  SendOutgoing(*link);
}

// Nothing is allocated before the header is admitted. Null: nothing to receive.
UcxPlane::Link* UcxPlane::BeginPacket(const WirePacket& wire) {
  if (Admit(wire) == Admission::kDone) return nullptr;
  Link* link = FindLink(wire.from);
  if (link == nullptr) return nullptr;
  StatusOr<Tensor> payload = Tensor::AllocateHost(
      wire.header.dtype, {wire.header.rows, wire.header.columns});
  if (!payload.ok() || link->incoming.has_value()) {
    Fail(*link, "receive",
         payload.ok() ? UCS_ERR_INVALID_PARAM : UCS_ERR_NO_MEMORY);
    return nullptr;
  }
  link->incoming = Incoming{wire, *std::move(payload)};
  return link;
}

void UcxPlane::AddFragment(Link& link, const WirePacket& wire,
                           std::span<const std::byte> data) {
  Incoming& incoming = *link.incoming;
  if (incoming.wire != wire) {  // also: not the next offset
    if (Belongs(wire)) Fail(link, "fragment", UCS_ERR_INVALID_PARAM);
    return;
  }
  if (!data.empty()) {
    std::memcpy(incoming.payload.view().data() + wire.offset, data.data(),
                data.size());
  }
  incoming.wire.offset += static_cast<int64_t>(data.size());
  if (incoming.wire.offset == wire.payload_bytes) {
    Tensor payload = std::move(incoming.payload);
    link.incoming.reset();
    Deliver(wire, std::move(payload));
  }
  if (++link.arrived < kWindow / 2) return;
  WirePacket report;
  report.message = WireMessage::kArrived;
  report.key = wire.key;
  report.from = self();
  report.credits = std::exchange(link.arrived, 0);
  report.header.epoch = wire.header.epoch;
  SendMessage(link, report, nullptr, 0);
}

// --- Progress

bool UcxPlane::Poll() {
  bool any = false;
  for (int i = 0; i < kMaxProgress && worker_->Progress(); ++i) any = true;
  if (!all_live_) all_live_ = !CloseDeadLinks();
  return any;
}

void UcxPlane::Sleep(absl::Duration timeout) {
  const absl::Time start = absl::Now();
  const absl::Duration spin = std::min(options_.spin, timeout);
  int rounds = 0;
  do {
    if (worker_->Progress() || !inbox_empty() || worker_->TakeInterrupt()) {
      return;
    }
    // Who is waited for may be waiting for this core.
    if (++rounds % kRoundsPerYield == 0) std::this_thread::yield();
  } while (absl::Now() - start < spin);
  worker_->Sleep(timeout - (absl::Now() - start));
}

StatusOr<std::unique_ptr<DataPlane>> NewUcxDataPlane(const UcxOptions& options,
                                                     DataPlaneEvents events) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker,
                         UcxWorker::Create(options));
  auto plane =
      std::make_unique<UcxPlane>(std::move(worker), options, std::move(events));
  BATON_RETURN_IF_ERROR(plane->Listen());
  return std::unique_ptr<DataPlane>(std::move(plane));
}

}  // namespace baton
