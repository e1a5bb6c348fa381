// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX active messages. README.md says which options of UCX
// were found to work and why they are set.
#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/base/log.h"
#include "runtime/transport/session_plane.h"
#include "runtime/transport/ucx_worker.h"

namespace baton {
namespace {

constexpr unsigned kMessageId = 1;
// How long a session's last messages may take to leave, and its links to close.
constexpr absl::Duration kFlushTime = absl::Milliseconds(100);
constexpr absl::Duration kCloseTime = absl::Seconds(2);
// Progress calls before what they brought is handed on.
constexpr int kMaxProgress = 64;

// Whether an operation is still running, and done with it if not.
bool StillRunning(ucs_status_ptr_t& request) {
  if (request == nullptr) return false;
  if (UCS_PTR_IS_PTR(request)) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return true;
    ucp_request_free(request);
  }
  request = nullptr;
  return false;
}

class UcxPlane final : public SessionPlane {
 public:
  UcxPlane(std::unique_ptr<UcxWorker> worker, absl::Duration spin,
           DataPlaneEvents events)
      : SessionPlane(std::move(events)),
        worker_(std::move(worker)),
        spin_(spin) {}
  ~UcxPlane() override {
    EndSession();
    // No operation can touch its buffer after this; then the buffers go.
    worker_ = nullptr;
  }

  // Messages arrive from now on. Internal: UCX refused.
  Status Listen();

  std::string Address() const override { return worker_->address(); }
  void Interrupt() override { worker_->Interrupt(); }

 private:
  struct Link {
    UcxPlane* plane;
    StageId peer;
    ucp_ep_h endpoint = nullptr;
    ucs_status_ptr_t closing = nullptr;
    bool live = true;  // false: lost or of an earlier session
  };
  // A transfer that UCX has not finished; owns the bytes it moves.
  struct Transfer {
    UcxPlane* plane;
    Link* link;         // sends
    uint64_t session;   // receives: which Connect they belong to
    WirePacket wire;    // receives
    WireHeader header;  // sends
    Tensor payload;
    std::list<Transfer>::iterator self;
  };

  Status OpenLink(StageId peer, const std::string& address) override;
  void DropLink(StageId peer) override;
  void CloseLinks() override;
  void Transmit(StageId to, const WirePacket& wire, Tensor payload) override;
  bool Poll() override;
  void Sleep(absl::Duration timeout) override;

  static void OnError(void* arg, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t OnMessage(void* arg, const void* header,
                                size_t header_bytes, void* data, size_t bytes,
                                const ucp_am_recv_param_t* param);
  static void OnSent(void* request, ucs_status_t status, void* arg);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes,
                         void* arg);

  ucs_status_t Arrive(std::span<const std::byte> header, void* data,
                      size_t bytes, uint64_t attributes);
  ucs_status_t Fetch(const WirePacket& wire, void* descriptor, Tensor payload);
  [[nodiscard]] Transfer& NewTransfer(Tensor payload);
  void Finish(Transfer& transfer);
  void Fail(Link& link, std::string_view what, ucs_status_t status);
  [[nodiscard]] Link* FindLink(StageId peer);
  // Starts closing what is not live; true while any is still closing.
  bool CloseDeadLinks();
  void FlushLinks();

  std::unique_ptr<UcxWorker> worker_;
  absl::Duration spin_;
  bool all_live_ = true;  // false: CloseDeadLinks has something to do
  uint64_t session_ = 0;
  std::list<Link> links_;          // stable: UCX holds pointers to them
  std::list<Transfer> transfers_;  // not finished
  std::list<Transfer> spare_;      // kept to be used again
};

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

// --- Links

Status UcxPlane::OpenLink(StageId peer, const std::string& address) {
  BATON_ASSIGN_OR_RETURN(const std::string_view target,
                         UnwrapUcxAddress(address));
  Link& link = links_.emplace_back(Link{.plane = this, .peer = peer});
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(target.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxPlane::OnError;
  params.err_handler.arg = &link;
  const ucs_status_t status =
      ucp_ep_create(worker_->handle(), &params, &link.endpoint);
  if (status == UCS_OK) return OkStatus();
  links_.pop_back();
  return Unavailable("ucp_ep_create: {}", ucs_status_string(status));
}

UcxPlane::Link* UcxPlane::FindLink(StageId peer) {
  for (Link& link : links_) {
    if (link.live && link.peer == peer) return &link;
  }
  return nullptr;
}

void UcxPlane::OnError(void* arg, ucp_ep_h, ucs_status_t status) {
  Link& link = *static_cast<Link*>(arg);
  link.plane->Fail(link, "link", status);
}

void UcxPlane::Fail(Link& link, std::string_view what, ucs_status_t status) {
  if (!link.live) return;
  link.live = false;
  all_live_ = false;
  LinkLost(link.peer, Unavailable("stage {}: {}: {}", link.peer.value(), what,
                                  ucs_status_string(status)));
}

// Only marks: UCX may be calling back. Poll closes it.
void UcxPlane::DropLink(StageId peer) {
  Link* link = FindLink(peer);
  if (link == nullptr) return;
  link->live = false;
  all_live_ = false;
}

bool UcxPlane::CloseDeadLinks() {
  bool closing = false;
  for (auto link = links_.begin(); link != links_.end();) {
    if (!link->live && link->endpoint != nullptr) {
      // Force: what it still has to send is cancelled, its peer not asked.
      ucp_request_param_t params = {};
      params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      params.flags = UCP_EP_CLOSE_FLAG_FORCE;
      link->closing =
          ucp_ep_close_nbx(std::exchange(link->endpoint, nullptr), &params);
    }
    if (link->live || StillRunning(link->closing)) {
      closing = closing || !link->live;
      ++link;
      continue;
    }
    // A cancelled send may still point to it until its callback has run.
    const Link* done = &*link;
    const bool used =
        std::any_of(transfers_.begin(), transfers_.end(),
                    [done](const Transfer& t) { return t.link == done; });
    closing = closing || used;
    link = used ? std::next(link) : links_.erase(link);
  }
  return closing;
}

// Gives what was sent, goodbyes above all, a short while to leave.
void UcxPlane::FlushLinks() {
  std::vector<ucs_status_ptr_t> flushes;
  for (Link& link : links_) {
    if (!link.live) continue;
    const ucp_request_param_t params = {};
    flushes.push_back(ucp_ep_flush_nbx(link.endpoint, &params));
  }
  const absl::Time deadline = absl::Now() + kFlushTime;
  bool running = !flushes.empty();
  while (running && absl::Now() < deadline) {
    (void)worker_->Progress();
    running = false;
    for (ucs_status_ptr_t& flush : flushes) {
      running = StillRunning(flush) || running;
    }
  }
  for (ucs_status_ptr_t flush : flushes) {
    if (UCS_PTR_IS_PTR(flush)) ucp_request_free(flush);
  }
}

void UcxPlane::CloseLinks() {
  FlushLinks();
  ++session_;
  for (Link& link : links_) link.live = false;
  all_live_ = links_.empty();
  const absl::Time deadline = absl::Now() + kCloseTime;
  while (!all_live_) {
    all_live_ = !CloseDeadLinks();
    (void)worker_->Progress();
    if (absl::Now() < deadline) continue;
    LogWarn("transport.close_slow", "links={} transfers={}", links_.size(),
            transfers_.size());
    return;  // Poll goes on with it
  }
}

// --- Sending

UcxPlane::Transfer& UcxPlane::NewTransfer(Tensor payload) {
  if (spare_.empty()) spare_.emplace_back();
  transfers_.splice(transfers_.begin(), spare_, spare_.begin());
  Transfer& transfer = transfers_.front();
  transfer.plane = this;
  transfer.link = nullptr;
  transfer.session = session_;
  transfer.payload = std::move(payload);
  transfer.self = transfers_.begin();
  return transfer;
}

void UcxPlane::Finish(Transfer& transfer) {
  transfer.payload = Tensor();
  spare_.splice(spare_.begin(), transfers_, transfer.self);
}

void UcxPlane::Transmit(StageId to, const WirePacket& wire, Tensor payload) {
  Link* link = FindLink(to);
  if (link == nullptr) return;
  Transfer& transfer = NewTransfer(std::move(payload));
  transfer.link = link;
  transfer.header = EncodePacketHeader(wire);
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &UcxPlane::OnSent;
  params.user_data = &transfer;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(link->endpoint, kMessageId, transfer.header.data(),
                      transfer.header.size(), transfer.payload.view().data(),
                      static_cast<size_t>(wire.payload_bytes), &params);
  if (UCS_PTR_IS_PTR(request)) return;
  Finish(transfer);
  if (UCS_PTR_IS_ERR(request)) {
    Fail(*link, "ucp_am_send_nbx", UCS_PTR_STATUS(request));
  }
}

void UcxPlane::OnSent(void* request, ucs_status_t status, void* arg) {
  Transfer& transfer = *static_cast<Transfer*>(arg);
  UcxPlane& plane = *transfer.plane;
  Link& link = *transfer.link;
  plane.Finish(transfer);
  if (status != UCS_OK) plane.Fail(link, "send", status);
  ucp_request_free(request);
}

// --- Receiving

ucs_status_t UcxPlane::OnMessage(void* arg, const void* header,
                                 size_t header_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* param) {
  return static_cast<UcxPlane*>(arg)->Arrive(
      {static_cast<const std::byte*>(header), header_bytes}, data, bytes,
      param->recv_attr);
}

// Nothing is allocated before the header is admitted. A rendezvous that is not
// fetched ends at the sender as if it had been.
ucs_status_t UcxPlane::Arrive(std::span<const std::byte> header, void* data,
                              size_t bytes, uint64_t attributes) {
  const StatusOr<WirePacket> wire = DecodePacketHeader(header);
  if (!wire.ok() || wire->payload_bytes != static_cast<int64_t>(bytes)) {
    CountMalformed();
    return UCS_OK;
  }
  if (Admit(*wire) == Admission::kDone) return UCS_OK;
  StatusOr<Tensor> payload = Tensor::AllocateHost(
      wire->header.dtype, {wire->header.rows, wire->header.columns});
  if (!payload.ok()) {
    LinkLost(wire->from, Annotate(payload.status(), "receive"));
    return UCS_OK;
  }
  if ((attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    return Fetch(*wire, data, *std::move(payload));
  }
  if (bytes > 0) std::memcpy(payload->view().data(), data, bytes);
  Deliver(*wire, *std::move(payload));
  return UCS_OK;
}

ucs_status_t UcxPlane::Fetch(const WirePacket& wire, void* descriptor,
                             Tensor payload) {
  Transfer& transfer = NewTransfer(std::move(payload));
  transfer.wire = wire;
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = &UcxPlane::OnReceived;
  params.user_data = &transfer;
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(
      worker_->handle(), descriptor, transfer.payload.view().data(),
      static_cast<size_t>(wire.payload_bytes), &params);
  if (UCS_PTR_IS_PTR(request)) return UCS_INPROGRESS;
  OnReceived(nullptr, UCS_PTR_STATUS(request), 0, &transfer);
  return UCS_OK;
}

void UcxPlane::OnReceived(void* request, ucs_status_t status, size_t,
                          void* arg) {
  Transfer& transfer = *static_cast<Transfer*>(arg);
  UcxPlane& plane = *transfer.plane;
  if (transfer.session == plane.session_) {
    if (status == UCS_OK) {
      plane.Deliver(transfer.wire, std::move(transfer.payload));
    } else {
      plane.LinkLost(
          transfer.wire.from,
          Unavailable("stage {}: receive: {}", transfer.wire.from.value(),
                      ucs_status_string(status)));
    }
  }
  plane.Finish(transfer);
  if (request != nullptr) ucp_request_free(request);
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
  const absl::Duration spin = std::min(spin_, timeout);
  do {
    if (worker_->Progress() || !inbox_empty() || worker_->TakeInterrupt()) {
      return;
    }
  } while (absl::Now() - start < spin);
  worker_->Sleep(timeout - (absl::Now() - start));
}

}  // namespace

StatusOr<std::unique_ptr<DataPlane>> NewUcxDataPlane(const UcxOptions& options,
                                                     DataPlaneEvents events) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker,
                         UcxWorker::Create(options));
  auto plane = std::make_unique<UcxPlane>(std::move(worker), options.spin,
                                          std::move(events));
  BATON_RETURN_IF_ERROR(plane->Listen());
  return std::unique_ptr<DataPlane>(std::move(plane));
}

}  // namespace baton
