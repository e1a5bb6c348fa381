// SPDX-License-Identifier: Apache-2.0
// Included by the files of the UCX back end only: it brings in UCX.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/transport/session_plane.h"
#include "runtime/transport/ucx_worker.h"

namespace baton {

// An end whose peers are reached by UCX active messages.
//
// Payloads travel in fragments that UCX copies into one message each, and only
// so many are on the way to a peer. UCX thus never holds a message that a dead
// peer keeps it from dropping: it would spin on that for ever.
//
// Owner thread: the stage's. UCX calls back inside Poll, Sleep and the closing
// of links; nothing else runs on another thread but Interrupt().
class UcxPlane final : public SessionPlane {
 public:
  UcxPlane(std::unique_ptr<UcxWorker> worker, const UcxOptions& options,
           DataPlaneEvents events)
      : SessionPlane(std::move(events)),
        worker_(std::move(worker)),
        options_(options) {}
  ~UcxPlane() override {
    EndSession();
    // No operation can touch its buffer after this; then the buffers go.
    worker_ = nullptr;
  }

  // Messages arrive from now on. Internal: UCX refused.
  Status Listen();

  std::string Address() const override { return worker_->address(); }
  // A peer killed between taking a place in our queue in shared memory and
  // filling it stops that queue for all that come after it.
  Status Renew() override;
  void Interrupt() override { worker_->Interrupt(); }

 private:
  struct Outgoing {
    WirePacket wire;  // offset: what has been sent
    // Shared with the fragments that UCX has not sent yet.
    std::shared_ptr<const Tensor> payload;
  };
  struct Incoming {
    WirePacket wire;  // offset: what has arrived
    Tensor payload;
  };
  struct Link {
    UcxPlane* plane;
    StageId peer;
    ucp_ep_h endpoint = nullptr;
    ucs_status_ptr_t closing = nullptr;
    bool live = true;  // false: lost or of an earlier session
    std::deque<Outgoing> outgoing;
    int on_the_way = 0;  // fragments not reported as arrived; bounded
    std::optional<Incoming> incoming;
    int arrived = 0;  // fragments not yet reported
  };
  // A message that UCX has not sent yet.
  struct Transfer {
    Link* link;
    WireHeader header;
    std::shared_ptr<const Tensor> payload;
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

  void Arrive(std::span<const std::byte> header,
              std::span<const std::byte> data);
  void FragmentsArrived(const WirePacket& wire);
  [[nodiscard]] Link* BeginPacket(const WirePacket& wire);
  void AddFragment(Link& link, const WirePacket& wire,
                   std::span<const std::byte> data);
  void SendOutgoing(Link& link);
  void SendMessage(Link& link, const WirePacket& wire,
                   std::shared_ptr<const Tensor> payload, int64_t bytes);
  void Finish(Transfer& transfer);
  void Fail(Link& link, std::string_view what, ucs_status_t status);
  [[nodiscard]] Link* FindLink(StageId peer);
  // Starts closing what is not live; true while any is still closing.
  bool CloseDeadLinks();
  void FlushLinks();

  std::unique_ptr<UcxWorker> worker_;
  UcxOptions options_;
  bool lost_a_peer_ = false;       // since the worker was opened
  bool all_live_ = true;           // false: CloseDeadLinks has something to do
  std::list<Link> links_;          // stable: UCX holds pointers to them
  std::list<Transfer> transfers_;  // not finished
  std::list<Transfer> spare_;      // kept to be used again
};

}  // namespace baton
