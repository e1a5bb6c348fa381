// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/packet.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>

namespace baton {
namespace {

constexpr uint32_t kMagic = 0x31475042;  // "BPG1"
constexpr uint16_t kVersion = 1;

template <typename T>
class Field {
 public:
  static void Put(std::byte* to, T value) {
    const auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (size_t i = 0; i < sizeof(T); ++i) {
      to[i] = static_cast<std::byte>((bits >> (8 * i)) & 0xff);
    }
  }
  static T Get(const std::byte* from) {
    std::make_unsigned_t<T> bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      bits |= static_cast<std::make_unsigned_t<T>>(
          static_cast<std::make_unsigned_t<T>>(from[i]) << (8 * i));
    }
    return static_cast<T>(bits);
  }
};

// Offsets; README.md has the same table.
enum Offset : size_t {
  kAtMagic = 0,
  kAtVersion = 4,
  kAtMessage = 6,
  kAtKind = 7,
  kAtKey = 8,
  kAtEpoch = 16,
  kAtStep = 24,
  kAtSequence = 32,
  kAtPayloadBytes = 40,
  kAtPass = 48,
  kAtFrom = 52,
  kAtRows = 56,
  kAtColumns = 60,
  kAtCredits = 64,
  kAtDType = 68,
  kAtReserved = 69,
  kAtOffset = 72,
};

std::string_view Name(PacketKind kind) {
  switch (kind) {
    case PacketKind::kStream:
      return "stream";
    case PacketKind::kTokens:
      return "tokens";
    case PacketKind::kSetup:
      return "setup";
  }
  return "?";
}

bool KnownDType(uint8_t value) {
  return value >= static_cast<uint8_t>(DType::kF32) &&
         value <= static_cast<uint8_t>(DType::kI32);
}

// The fields only a packet has; a control message must have zeros there.
Status DecodePacketFields(const std::byte* at, WirePacket& wire) {
  const auto kind = Field<uint8_t>::Get(at + kAtKind);
  const auto dtype = Field<uint8_t>::Get(at + kAtDType);
  PacketHeader& header = wire.header;
  header.step = StepId(Field<uint64_t>::Get(at + kAtStep));
  header.pass = Field<int32_t>::Get(at + kAtPass);
  header.rows = Field<int32_t>::Get(at + kAtRows);
  header.columns = Field<int32_t>::Get(at + kAtColumns);
  wire.sequence = Field<uint64_t>::Get(at + kAtSequence);
  wire.payload_bytes = Field<int64_t>::Get(at + kAtPayloadBytes);
  wire.offset = Field<int64_t>::Get(at + kAtOffset);
  if (wire.message != WireMessage::kPacket) {
    if (kind != 0 || dtype != 0 || header.step != StepId() ||
        header.pass != 0 || header.rows != 0 || header.columns != 0 ||
        wire.sequence != 0 || wire.payload_bytes != 0 || wire.offset != 0) {
      return InvalidArgument("packet: a control message has packet fields");
    }
    return OkStatus();
  }
  if (kind < static_cast<uint8_t>(PacketKind::kStream) ||
      kind > static_cast<uint8_t>(PacketKind::kSetup)) {
    return InvalidArgument("packet: unknown kind {}", kind);
  }
  if (!KnownDType(dtype)) {
    return InvalidArgument("packet: unknown dtype {}", dtype);
  }
  header.kind = static_cast<PacketKind>(kind);
  header.dtype = static_cast<DType>(dtype);
  if (header.kind != PacketKind::kStream && header.dtype != DType::kI32) {
    return InvalidArgument("packet: {} are {}, expected i32", Name(header.kind),
                           Name(header.dtype));
  }
  if (header.pass < 0 || header.rows < 0 || header.columns < 0) {
    return InvalidArgument("packet: pass {} shape [{},{}] is negative",
                           header.pass, header.rows, header.columns);
  }
  // Both sizes are below 2^31, so the product fits; times the size may not.
  const int64_t elements = int64_t{header.rows} * header.columns;
  if (elements > kMaxPayloadBytes / SizeOf(header.dtype) ||
      elements * SizeOf(header.dtype) != wire.payload_bytes) {
    return InvalidArgument("packet: {} payload bytes for {} [{},{}]",
                           wire.payload_bytes, Name(header.dtype), header.rows,
                           header.columns);
  }
  if (wire.offset < 0 ||
      wire.offset > std::max<int64_t>(wire.payload_bytes - 1, 0)) {
    return InvalidArgument("packet: offset {} of {} payload bytes", wire.offset,
                           wire.payload_bytes);
  }
  return OkStatus();
}

}  // namespace

std::string ToString(const PacketHeader& header) {
  return fmt::format("{} epoch={} step={} pass={} {} [{},{}]",
                     Name(header.kind), header.epoch.value(),
                     header.step.value(), header.pass, Name(header.dtype),
                     header.rows, header.columns);
}

WireHeader EncodePacketHeader(const WirePacket& wire) {
  WireHeader bytes = {};
  std::byte* at = bytes.data();
  const PacketHeader& header = wire.header;
  Field<uint32_t>::Put(at + kAtMagic, kMagic);
  Field<uint16_t>::Put(at + kAtVersion, kVersion);
  Field<uint8_t>::Put(at + kAtMessage, static_cast<uint8_t>(wire.message));
  Field<uint64_t>::Put(at + kAtKey, wire.key);
  Field<uint64_t>::Put(at + kAtEpoch, header.epoch.value());
  Field<int32_t>::Put(at + kAtFrom, wire.from.value());
  Field<int32_t>::Put(at + kAtCredits, wire.credits);
  if (wire.message != WireMessage::kPacket) return bytes;
  Field<uint8_t>::Put(at + kAtKind, static_cast<uint8_t>(header.kind));
  Field<uint64_t>::Put(at + kAtStep, header.step.value());
  Field<uint64_t>::Put(at + kAtSequence, wire.sequence);
  Field<int64_t>::Put(at + kAtPayloadBytes, wire.payload_bytes);
  Field<int64_t>::Put(at + kAtOffset, wire.offset);
  Field<int32_t>::Put(at + kAtPass, header.pass);
  Field<int32_t>::Put(at + kAtRows, header.rows);
  Field<int32_t>::Put(at + kAtColumns, header.columns);
  Field<uint8_t>::Put(at + kAtDType, static_cast<uint8_t>(header.dtype));
  return bytes;
}

StatusOr<WirePacket> DecodePacketHeader(std::span<const std::byte> bytes) {
  if (bytes.size() != kWireHeaderBytes) {
    return InvalidArgument("packet: header of {} bytes, expected {}",
                           bytes.size(), kWireHeaderBytes);
  }
  const std::byte* at = bytes.data();
  if (Field<uint32_t>::Get(at + kAtMagic) != kMagic) {
    return InvalidArgument("packet: magic {:#x}, expected {:#x}",
                           Field<uint32_t>::Get(at + kAtMagic), kMagic);
  }
  if (Field<uint16_t>::Get(at + kAtVersion) != kVersion) {
    return InvalidArgument("packet: version {}, expected {}",
                           Field<uint16_t>::Get(at + kAtVersion), kVersion);
  }
  for (size_t i = kAtReserved; i < kAtOffset; ++i) {
    if (at[i] != std::byte{0}) {
      return InvalidArgument("packet: reserved byte {} is not zero", i);
    }
  }
  const auto message = Field<uint8_t>::Get(at + kAtMessage);
  if (message < static_cast<uint8_t>(WireMessage::kPacket) ||
      message > static_cast<uint8_t>(WireMessage::kArrived)) {
    return InvalidArgument("packet: unknown message {}", message);
  }
  WirePacket wire;
  wire.message = static_cast<WireMessage>(message);
  wire.key = Field<uint64_t>::Get(at + kAtKey);
  wire.from = StageId(Field<int32_t>::Get(at + kAtFrom));
  wire.credits = Field<int32_t>::Get(at + kAtCredits);
  wire.header.epoch = Epoch(Field<uint64_t>::Get(at + kAtEpoch));
  if (wire.from.value() < 0 || wire.credits < 0) {
    return InvalidArgument("packet: stage {} credits {} is negative",
                           wire.from.value(), wire.credits);
  }
  BATON_RETURN_IF_ERROR(DecodePacketFields(at, wire));
  return wire;
}

SessionMatch MatchSession(const WirePacket& wire, const SessionInfo& session) {
  if (wire.header.epoch != session.epoch) return SessionMatch::kStaleEpoch;
  if (wire.key != session.key) return SessionMatch::kWrongKey;
  if (wire.payload_bytes > session.max_packet_bytes) {
    return SessionMatch::kTooLarge;
  }
  return SessionMatch::kMatches;
}

}  // namespace baton
