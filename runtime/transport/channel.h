// SPDX-License-Identifier: Apache-2.0
// The data plane between stages. A `DataPlane` is one stage's end of it: it
// sends packets to named peers and delivers what peers sent. Back ends:
// in-process (inproc_channel.h) and UCX (ucx_channel.h).
//
// Lifecycle: Create -> Address() -> Connect(peers) -> Send/Progress* -> Renew()
// -> Address() -> ... -> destroy. Owner thread: the stage actor's; every method
// but Interrupt() is called from it, and Progress() calls the handler on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/tensor/tensor.h"

namespace baton {

enum class PacketKind : uint8_t {
  kStream = 1,  // residual stream, [rows, hidden]
  kTokens = 2,  // sampled tokens, i32 [rows]
  kSetup = 3,   // between device planes, i32 [1, words]; never delivered
};

// What a packet is, checked by the receiver before its bytes are used. Shapes
// follow from the step descriptor; they are repeated here to be compared.
struct PacketHeader {
  Epoch epoch;
  StepId step;
  int32_t pass = 0;  // of the route; 0 for tokens
  PacketKind kind = PacketKind::kStream;
  DType dtype = DType::kF32;
  int32_t rows = 0;
  int32_t columns = 0;
  friend bool operator==(const PacketHeader&, const PacketHeader&) = default;
};
[[nodiscard]] std::string ToString(const PacketHeader& header);

struct Packet {
  StageId from;
  PacketHeader header;
  Tensor payload;  // [rows, columns], host memory or the stage's device
  // Not null: work that reads the payload first waits for this, in its stream.
  std::unique_ptr<Event> ready;
};

// One placement's secrets and limits, the same on every stage.
struct SessionInfo {
  Epoch epoch;
  uint64_t key = 0;  // random per placement
  int64_t max_packet_bytes = 0;
  int credits = 8;  // unconsumed packets a sender may have per peer
};

// Dropped packets, by reason. Never reset.
struct TransportCounters {
  int64_t sent_packets = 0;
  int64_t sent_bytes = 0;
  int64_t received_packets = 0;
  int64_t received_bytes = 0;
  int64_t dropped_stale_epoch = 0;
  int64_t dropped_wrong_key = 0;
  int64_t dropped_malformed = 0;  // impossible length, kind, dtype or shape
  int64_t credit_stalls = 0;      // sends that had to wait for a credit
};

// Called by Progress().
struct DataPlaneEvents {
  std::function<void(Packet)> on_packet;
  // A peer is gone; sends to it fail from now on.
  std::function<void(StageId, Status)> on_peer_lost;
};

class DataPlane {
 public:
  virtual ~DataPlane() = default;

  // What a peer needs to connect to this end; bytes, sent over the control
  // plane.
  [[nodiscard]] virtual std::string Address() const = 0;

  // Between sessions: ends the last one, and after the loss of a peer makes
  // this end anew, with another Address(), where what the peer left half done
  // could be in the way of others. Internal: it cannot be made.
  virtual Status Renew() { return OkStatus(); }

  // Starts a session: `self` is this end's stage, peers by stage and address.
  // Packets of other sessions are dropped and counted from now on; whatever was
  // pending of an earlier session is discarded. Unavailable: a peer cannot be
  // reached.
  virtual Status Connect(
      const SessionInfo& session, StageId self,
      const std::vector<std::pair<StageId, std::string>>& peers) = 0;

  // Work in the stage's stream that waits for peers ends; the session is over.
  virtual void GiveUp() {}

  // Whether payloads may lie in the memory of the stage's device, complete in
  // the order of its stream.
  [[nodiscard]] virtual bool TakesDeviceMemory() const { return false; }

  // Queues a packet; the tensor is kept until it has left. Without a credit it
  // waits in a queue bounded by what the caller has steps for. Unavailable: the
  // peer is gone. FailedPrecondition: not connected.
  virtual Status Send(StageId to, const PacketHeader& header,
                      Tensor payload) = 0;

  // The receiver has used a packet of `from`: gives the sender its credit back.
  virtual void Consume(StageId from) = 0;

  // Moves transfers forward and delivers events; true if anything happened.
  virtual bool Progress() = 0;

  // Sleeps until something may have happened, Interrupt() was called, or the
  // timeout has passed.
  virtual void Wait(absl::Duration timeout) = 0;

  // Wakes Wait(). Thread: any.
  virtual void Interrupt() = 0;

  [[nodiscard]] virtual const TransportCounters& counters() const = 0;
};

// In-process ends find each other by address inside one `InprocNetwork`.
class InprocNetwork;
[[nodiscard]] std::shared_ptr<InprocNetwork> NewInprocNetwork();
[[nodiscard]] std::unique_ptr<DataPlane> NewInprocDataPlane(
    std::shared_ptr<InprocNetwork> network, DataPlaneEvents events);

struct UcxOptions {
  // Comma-separated UCX transports; "" lets UCX choose among shared memory,
  // TCP and RDMA. Tests pass "tcp,self" or "posix,self" and the like.
  std::string transports;
  // How long Wait() spins before it sleeps.
  absl::Duration spin = absl::Microseconds(50);
};
// Internal: UCX failed; the message names the call.
[[nodiscard]] StatusOr<std::unique_ptr<DataPlane>> NewUcxDataPlane(
    const UcxOptions& options, DataPlaneEvents events);

}  // namespace baton
