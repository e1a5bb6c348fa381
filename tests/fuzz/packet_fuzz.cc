// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/transport/packet.h"
#include "tests/fuzz/fuzz.h"

// A wire header of the data plane. What is accepted encodes to the same bytes
// and can be compared with a session.
bool baton::fuzz::Run(std::span<const std::byte> input) {
  const StatusOr<WirePacket> wire = DecodePacketHeader(input);
  if (!wire.ok()) return false;
  const WireHeader again = EncodePacketHeader(*wire);
  BATON_CHECK(std::equal(again.begin(), again.end(), input.begin()));
  BATON_CHECK(wire->payload_bytes >= 0 &&
              wire->payload_bytes <= kMaxPayloadBytes);
  SessionInfo session;
  session.epoch = wire->header.epoch;
  session.key = wire->key;
  session.max_packet_bytes = 1 << 20;
  const SessionMatch match = MatchSession(*wire, session);
  BATON_CHECK(match == SessionMatch::kMatches ||
              match == SessionMatch::kTooLarge);
  return true;
}
