// SPDX-License-Identifier: Apache-2.0
// How links of the UCX back end are opened, fail and are closed.
#include <algorithm>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/base/log.h"
#include "runtime/transport/ucx_plane.h"

namespace baton {
namespace {

// How long a session's last messages may take to leave, and its links to close.
constexpr absl::Duration kFlushTime = absl::Milliseconds(100);
constexpr absl::Duration kCloseTime = absl::Milliseconds(500);

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

}  // namespace

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
  lost_a_peer_ = true;
  LinkLost(link.peer, Unavailable("stage {}: {}: {}", link.peer.value(), what,
                                  ucs_status_string(status)));
}

Status UcxPlane::Renew() {
  EndSession();
  if (!lost_a_peer_) return OkStatus();
  BATON_RETURN_IF_ERROR(worker_->Reopen(options_));
  // Nothing of the old worker's calls back any more.
  links_.clear();
  transfers_.clear();
  all_live_ = true;
  lost_a_peer_ = false;
  return Listen();
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
      link->outgoing.clear();
      link->incoming.reset();
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

}  // namespace baton
