// SPDX-License-Identifier: Apache-2.0
// What device planes tell each other, as bytes: a note in their address, and
// setup packets over the host plane. Knows no CUDA. Thread: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/transport/channel.h"
#include "runtime/transport/packet.h"

namespace baton {

// How a payload goes from the GPU of one stage to that of another.
enum class CudaPath : uint8_t {
  kHost = 0,    // through pinned memory and the host plane
  kDirect = 1,  // stored into the peer's memory
  kNccl = 2,
};
[[nodiscard]] std::string_view Name(CudaPath path);

// One end, told in its address.
struct CudaEndpoint {
  uint64_t host = 0;     // the same on one running kernel
  uint64_t process = 0;  // random per process
  uint64_t plane = 0;    // random per plane
  std::array<std::byte, 16> gpu = {};
  bool direct = true;  // paths this end can take
  bool nccl = true;
  friend bool operator==(const CudaEndpoint&, const CudaEndpoint&) = default;
};
[[nodiscard]] std::string EncodeEndpoint(const CudaEndpoint& endpoint);
// InvalidArgument: not the note of an endpoint.
[[nodiscard]] StatusOr<CudaEndpoint> DecodeEndpoint(std::string_view note);

// Whether the sender's GPU reaches the receiver's memory. kUnknown: this
// process does not see the other GPU.
enum class PeerAccess { kNo, kYes, kUnknown };

// The best path that both ends can take.
[[nodiscard]] CudaPath ChoosePath(const CudaEndpoint& receiver,
                                  const CudaEndpoint& sender,
                                  PeerAccess access);

// For one direction between two stages; "ring" numbers what the receiver set
// up for it, so that nothing meant for an earlier ring is taken for a later.
//
//   sender                          receiver
//     kHello  -->                     chooses a path, makes a ring
//             <--  kRing | kNccl | kUseHost
//     kRefuse -->                     if it cannot; the next path is offered
//             <--  kReady             NCCL only
//     kPut    -->                     one payload, in a slot of the ring
//             <--  kRelease           slots that were read
enum class SetupKind : uint32_t {
  kHello = 1,
  kRing = 2,
  kNccl = 3,
  kUseHost = 4,
  kRefuse = 5,
  kReady = 6,
  kPut = 7,
  kRelease = 8,
};

// Which fields travel depends on the kind; the others stay as they are here.
struct SetupMessage {
  SetupKind kind = SetupKind::kHello;
  uint64_t ring = 0;  // every kind but kHello
  // kRing, kNccl.
  uint32_t slots = 0;
  int64_t slot_bytes = 0;
  // kRing: cudaIpcMemHandle_t. kNccl: ncclUniqueId.
  std::array<std::byte, 64> memory = {};
  std::array<std::byte, 128> nccl_id = {};
  // kPut: what a stream packet's header says, and where its payload is.
  uint32_t slot = 0;
  uint32_t number = 0;  // of the puts to this ring, from 1 on
  PacketHeader header;
  uint32_t released = 0;  // kRelease: bit i for slot i; not 0
  friend bool operator==(const SetupMessage&, const SetupMessage&) = default;
};

inline constexpr uint32_t kMaxRingSlots = 32;
// No setup packet is longer.
inline constexpr int64_t kMaxSetupBytes = 256;

// [1, words] i32, in host memory. ResourceExhausted: no memory.
[[nodiscard]] StatusOr<Tensor> EncodeSetup(const SetupMessage& message);
// Bytes from outside: any input is fine. `epoch` is that of the packet.
// InvalidArgument: not a message, or a field that no sender would write.
[[nodiscard]] StatusOr<SetupMessage> DecodeSetup(
    std::span<const std::byte> bytes, Epoch epoch);

}  // namespace baton
