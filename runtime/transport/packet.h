// SPDX-License-Identifier: Apache-2.0
// The wire header of the data plane: fixed size, little endian, the same for
// packets and for the small control messages. README.md draws the layout.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/status.h"
#include "runtime/transport/channel.h"

namespace baton {

enum class WireMessage : uint8_t {
  kPacket = 1,   // a payload follows the header
  kCredit = 2,   // returns credits, nothing else
  kGoodbye = 3,  // the sender leaves the session
  kArrived = 4,  // between back ends: so many fragments have arrived
};

// A decoded header. Control messages use only key, from, header.epoch and
// credits; their other fields are zero on the wire.
struct WirePacket {
  WireMessage message = WireMessage::kPacket;
  uint64_t key = 0;
  StageId from;
  uint64_t sequence = 0;      // of the packets from this stage to that one
  int32_t credits = 0;        // given back to the receiver; kArrived: a count
  int64_t payload_bytes = 0;  // rows * columns * SizeOf(dtype)
  int64_t offset = 0;         // in the payload, of the bytes that follow
  PacketHeader header;
  friend bool operator==(const WirePacket&, const WirePacket&) = default;
};

inline constexpr size_t kWireHeaderBytes = 80;
using WireHeader = std::array<std::byte, kWireHeaderBytes>;

// No payload may be larger, whatever a session allows.
inline constexpr int64_t kMaxPayloadBytes = int64_t{1} << 40;

// Thread: any.
[[nodiscard]] WireHeader EncodePacketHeader(const WirePacket& wire);

// Bytes from outside: any input is fine. InvalidArgument: not a header, or a
// field that contradicts itself (size, kind, dtype, sign, length of the shape).
// Whether it belongs to a session is asked of the session. Thread: any.
[[nodiscard]] StatusOr<WirePacket> DecodePacketHeader(
    std::span<const std::byte> bytes);

enum class SessionMatch { kMatches, kStaleEpoch, kWrongKey, kTooLarge };

// An older or newer epoch is stale; only then is the key compared, because
// every epoch has its own. Thread: any.
[[nodiscard]] SessionMatch MatchSession(const WirePacket& wire,
                                        const SessionInfo& session);

}  // namespace baton
