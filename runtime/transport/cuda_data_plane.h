// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "runtime/transport/cuda_nccl.h"
#include "runtime/transport/cuda_plane.h"
#include "runtime/transport/cuda_ring.h"
#include "runtime/transport/device_setup.h"

namespace baton {

// A plane around a plane between hosts. Every packet goes over that one, so it
// decides order, credits, sessions and who is lost; a payload in GPU memory is
// replaced by the word where it lies.
//
// How payloads go is agreed on per direction, when the first is sent: only then
// is it certain that both ends are in the session (device_setup.h has the
// messages). Until then they wait in order, as they do for a free slot.
//
// Owner thread: the stage's. Packets are delivered inside the host plane's
// Progress(), losses at the end of Progress() here.
class CudaDataPlane final : public DataPlane {
 public:
  CudaDataPlane(Device* device, Stream* stream, const CudaPlaneOptions& options,
                DataPlaneEvents events)
      : device_(*device),
        stream_(*stream),
        options_(options),
        events_(std::move(events)) {}
  ~CudaDataPlane() override;
  Status Open(const HostPlaneFactory& host_plane);

  std::string Address() const override;
  Status Renew() override;
  void GiveUp() override;
  Status Connect(
      const SessionInfo& session, StageId self,
      const std::vector<std::pair<StageId, std::string>>& peers) override;
  bool TakesDeviceMemory() const override { return true; }
  Status Send(StageId to, const PacketHeader& header, Tensor payload) override;
  void Consume(StageId from) override { host_->Consume(from); }
  bool Progress() override;
  void Wait(absl::Duration timeout) override;
  void Interrupt() override { host_->Interrupt(); }
  const TransportCounters& counters() const override;

 private:
  struct Outgoing {
    PacketHeader header;
    Tensor payload;
    bool on_device = false;
    std::unique_ptr<Event> copied;  // not null: on its way into host memory
    bool stalled = false;           // has found all slots in use
  };
  // A payload that NCCL may still read.
  struct InFlight {
    Tensor payload;
    std::unique_ptr<Event> sent;
    absl::Time since;
  };
  // What the sender knows of the ring it fills.
  struct Target {
    uint64_t ring = 0;
    RingShape shape;
    uint32_t used = 0;  // bits of slots
    uint32_t number = 0;
    std::unique_ptr<RemoteRing> direct;  // or nccl
    bool peer_ready = false;
    std::deque<InFlight> in_flight;
    std::unique_ptr<NcclLink> nccl;  // last: it goes before what it reads
  };
  enum class Sending { kNotAsked, kAsked, kStarting, kDevice, kHost };
  struct Peer {
    StageId id;
    std::optional<CudaEndpoint> endpoint;  // none: a stage without a GPU
    bool lost = false;
    Status why;
    Sending sending = Sending::kNotAsked;
    std::deque<Outgoing> outgoing;
    Target target;
    // Receiving.
    bool direct_refused = false;
    bool nccl_refused = false;
    std::shared_ptr<CudaRing> ring;
    std::unique_ptr<NcclLink> nccl;
    bool ready_told = false;
  };
  // A ring of an ended session that a process which is not heard of any more
  // might still write.
  struct Retired {
    uint64_t writer;  // its plane
    absl::Time until;
    std::shared_ptr<PeerMemory> memory;
  };

  [[nodiscard]] Peer* Find(StageId id);
  Status AddPeer(StageId id, const std::string& address);
  void EndSession();
  void Retire(Peer& peer);
  Status CheckPayload(StageId to, const PacketHeader& header,
                      const Tensor& payload) const;
  [[nodiscard]] Status FailedWait() const;
  Status SendHost(Peer& peer, const PacketHeader& header, Tensor payload);

  // Sending.
  Status Flush(Peer& peer);
  StatusOr<bool> SendFirst(Peer& peer);
  StatusOr<bool> SendByHost(Peer& peer, Outgoing& first);
  Status StartCopy(Outgoing& outgoing);
  Status Put(Peer& peer, uint32_t slot, Outgoing& first);
  Status PutByNccl(Target& target, Tensor payload);

  // What the host plane brings.
  void OnPacket(Packet packet);
  void OnPeerLost(StageId id, const Status& why);
  StatusOr<bool> OnSetup(Peer& peer, const Packet& packet);
  [[nodiscard]] bool Expects(const Peer& peer,
                             const SetupMessage& message) const;
  StatusOr<bool> OnPut(Peer& peer, const SetupMessage& put);
  Status Receive(Peer& peer, const SetupMessage& put, int64_t bytes);

  // Setting up.
  Status SendSetup(Peer& peer, const SetupMessage& message);
  Status Offer(Peer& peer);
  Status MakeRing(Peer& peer, CudaPath path, SetupMessage& message);
  Status Accept(Peer& peer, const SetupMessage& offer);
  Status Refuse(Peer& peer, std::string_view path, const Status& why);
  Status OnRefused(Peer& peer);
  void UseHost(Peer& peer);
  void ForgetRetired(const Peer& peer);

  // Progress and ends.
  Status Advance(Peer& peer);
  Status AdvanceReceiving(Peer& peer);
  Status AdvanceSending(Peer& peer);
  [[nodiscard]] bool Pending() const;
  void Lose(Peer& peer, const Status& why);
  void StopNccl();
  void Poison();

  Device& device_;
  Stream& stream_;
  CudaPlaneOptions options_;
  DataPlaneEvents events_;
  std::unique_ptr<Stream> aux_;  // waits for nobody
  std::shared_ptr<PeerMemory> words_memory_;
  CudaPutWords* words_ = nullptr;
  CudaEndpoint endpoint_;
  std::unique_ptr<DataPlane> host_;
  std::optional<SessionInfo> session_;
  StageId self_;
  std::deque<Peer> peers_;  // few
  std::vector<Retired> retired_;
  std::deque<std::pair<StageId, Status>> losses_;  // not reported yet
  bool moved_ = false;                             // since Progress() began
  TransportCounters own_;                          // of packets, not of setup
  mutable TransportCounters counts_;  // with what the host plane dropped
};

}  // namespace baton
