// SPDX-License-Identifier: Apache-2.0
// What every back end of the data plane shares: the session, credits, order,
// admission of what arrives, and the loss of peers. A back end only moves
// admitted bytes over links.
//
// Lifecycle: as DataPlane; the back end's destructor calls EndSession() while
// its links still work. Owner thread: the stage actor's. Handlers run inside
// Progress() only, never inside a back end's callback: what a back end reports
// waits in an inbox, so a handler may call Send, Consume and Connect.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/channel.h"
#include "runtime/transport/packet.h"

namespace baton {

class SessionPlane : public DataPlane {
 public:
  Status Connect(
      const SessionInfo& session, StageId self,
      const std::vector<std::pair<StageId, std::string>>& peers) final;
  Status Send(StageId to, const PacketHeader& header, Tensor payload) final;
  void Consume(StageId from) final;
  bool Progress() final;
  void Wait(absl::Duration timeout) final;
  [[nodiscard]] const TransportCounters& counters() const final {
    return counters_;
  }

 protected:
  explicit SessionPlane(DataPlaneEvents events) : events_(std::move(events)) {}

  // The back end's part. Thread: owner.
  // Unavailable: nothing answers at the address. InvalidArgument: not one.
  virtual Status OpenLink(StageId peer, const std::string& address) = 0;
  // Afterwards the link carries nothing; may be called inside Transmit or Poll.
  virtual void DropLink(StageId peer) = 0;
  // Closes all links; nothing that arrived over them is delivered any more.
  virtual void CloseLinks() = 0;
  // Never blocks; a failure is reported by LinkLost.
  virtual void Transmit(StageId to, const WirePacket& wire, Tensor payload) = 0;
  // Moves transfers forward; true if there was anything to do.
  virtual bool Poll() = 0;
  virtual void Sleep(absl::Duration timeout) = 0;

  // What a back end reports.
  enum class Admission {
    kReceive,  // a packet: receive its payload, then Deliver it
    kDone,     // a control message, or dropped and counted
  };
  [[nodiscard]] Admission Admit(const WirePacket& wire);
  void Deliver(const WirePacket& wire, Tensor payload);
  void LinkLost(StageId peer, const Status& why);
  // Whether a message is of the session, by epoch and key.
  [[nodiscard]] bool Belongs(const WirePacket& wire) const {
    return connected_ && MatchSession(wire, session_) == SessionMatch::kMatches;
  }
  void CountMalformed() { ++counters_.dropped_malformed; }

  // Tells peers, closes links, forgets the session.
  void EndSession();
  [[nodiscard]] StageId self() const { return self_; }
  [[nodiscard]] bool inbox_empty() const { return inbox_.empty(); }

 private:
  struct Waiting {
    PacketHeader header;
    Tensor payload;
  };
  // One place of the window of packets that may be unconsumed.
  struct Slot {
    bool admitted = false;
    std::optional<Packet> packet;  // arrived ahead of an earlier one
  };
  struct Peer {
    StageId id;
    // Sending.
    int credits = 0;
    uint64_t next_send = 0;
    std::deque<Waiting> waiting;  // for a credit
    // Receiving; consumed <= next_deliver <= consumed + credits.
    uint64_t next_deliver = 0;
    uint64_t consumed = 0;
    int owed = 0;              // credits not yet given back
    std::vector<Slot> window;  // by sequence modulo credits
    bool lost = false;
    Status why;
  };
  // A packet, or with `lost` not OK the end of its sender.
  struct Event {
    Packet packet;
    Status lost;
  };

  [[nodiscard]] Peer* Find(StageId id);
  [[nodiscard]] WirePacket Control(WireMessage message, const Peer& peer) const;
  void Dispatch(Peer& peer, const WirePacket& wire, Tensor payload);
  void SendNow(Peer& peer, const PacketHeader& header, Tensor payload);
  void Grant(Peer& peer, int credits);
  void ReturnCredits(Peer& peer);
  bool ReturnAllCredits();
  [[nodiscard]] bool TakeSlot(Peer& peer, uint64_t sequence);

  DataPlaneEvents events_;
  TransportCounters counters_;
  bool connected_ = false;
  SessionInfo session_;
  StageId self_;
  std::deque<Peer> peers_;  // few
  std::deque<Event> inbox_;
};

}  // namespace baton
