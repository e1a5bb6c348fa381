// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/packet.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace baton {
namespace {

WirePacket Sample() {
  WirePacket wire;
  wire.key = 0x0123456789abcdefu;
  wire.from = StageId(3);
  wire.sequence = 77;
  wire.credits = 2;
  wire.payload_bytes = 7 * 4096 * 2;
  wire.header = {.epoch = Epoch(9),
                 .step = StepId(1u << 20),
                 .pass = 1,
                 .kind = PacketKind::kStream,
                 .dtype = DType::kBF16,
                 .rows = 7,
                 .columns = 4096};
  return wire;
}

// The sample's header with `value` written over `offset`, little endian.
template <typename T>
WireHeader With(size_t offset, T value) {
  WireHeader bytes = EncodePacketHeader(Sample());
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  return bytes;
}

StatusCode DecodeCode(const WireHeader& bytes) {
  return DecodePacketHeader(bytes).status().code();
}

TEST(PacketTest, DecodesWhatItEncodes) {
  const StatusOr<WirePacket> decoded =
      DecodePacketHeader(EncodePacketHeader(Sample()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Sample());
}

TEST(PacketTest, LaysFieldsOutLittleEndianAtFixedOffsets) {
  const WireHeader bytes = EncodePacketHeader(Sample());
  EXPECT_EQ(std::memcmp(bytes.data(), "BPG1\x01\x00\x01\x01", 8), 0);
  EXPECT_EQ(bytes[8], std::byte{0xef});
  EXPECT_EQ(bytes[16], std::byte{9});
  EXPECT_EQ(bytes[32], std::byte{77});
  EXPECT_EQ(bytes[56], std::byte{7});
  EXPECT_EQ(bytes[68], std::byte{2});
}

TEST(PacketTest, ControlMessagesCarryCreditsOnly) {
  WirePacket credit;
  credit.message = WireMessage::kCredit;
  credit.key = 5;
  credit.from = StageId(1);
  credit.credits = 4;
  credit.header.epoch = Epoch(2);
  WireHeader bytes = EncodePacketHeader(credit);
  ASSERT_TRUE(DecodePacketHeader(bytes).ok());
  EXPECT_EQ(*DecodePacketHeader(bytes), credit);
  bytes[40] = std::byte{1};
  EXPECT_EQ(DecodeCode(bytes), StatusCode::kInvalidArgument);
}

TEST(PacketTest, RefusesAnotherLength) {
  const WireHeader bytes = EncodePacketHeader(Sample());
  std::vector<std::byte> more(bytes.begin(), bytes.end());
  more.push_back(std::byte{0});
  EXPECT_FALSE(DecodePacketHeader(more).ok());
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(DecodePacketHeader(std::span(bytes.data(), n)).ok());
  }
}

TEST(PacketTest, RefusesEachFieldThatCannotBe) {
  const auto invalid = StatusCode::kInvalidArgument;
  EXPECT_EQ(DecodeCode(With<uint32_t>(0, 0)), invalid);          // magic
  EXPECT_EQ(DecodeCode(With<uint16_t>(4, 2)), invalid);          // version
  EXPECT_EQ(DecodeCode(With<uint8_t>(6, 0)), invalid);           // message
  EXPECT_EQ(DecodeCode(With<uint8_t>(6, 5)), invalid);           // message
  EXPECT_EQ(DecodeCode(With<uint8_t>(7, 0)), invalid);           // kind
  EXPECT_EQ(DecodeCode(With<uint8_t>(7, 4)), invalid);           // kind
  EXPECT_EQ(DecodeCode(With<uint8_t>(7, 2)), invalid);           // bf16 tokens
  EXPECT_EQ(DecodeCode(With<uint8_t>(7, 3)), invalid);           // bf16 setup
  EXPECT_EQ(DecodeCode(With<int64_t>(40, 0)), invalid);          // length
  EXPECT_EQ(DecodeCode(With<int64_t>(40, -57344)), invalid);     // length
  EXPECT_EQ(DecodeCode(With<int64_t>(40, INT64_MAX)), invalid);  // length
  EXPECT_EQ(DecodeCode(With<int32_t>(48, -1)), invalid);         // pass
  EXPECT_EQ(DecodeCode(With<int32_t>(52, -1)), invalid);         // from
  EXPECT_EQ(DecodeCode(With<int32_t>(56, -7)), invalid);         // rows
  EXPECT_EQ(DecodeCode(With<int32_t>(56, 8)), invalid);          // rows
  EXPECT_EQ(DecodeCode(With<int32_t>(60, INT32_MAX)), invalid);  // columns
  EXPECT_EQ(DecodeCode(With<int32_t>(64, -1)), invalid);         // credits
  EXPECT_EQ(DecodeCode(With<uint8_t>(68, 0)), invalid);          // dtype
  EXPECT_EQ(DecodeCode(With<uint8_t>(68, 4)), invalid);          // dtype
  EXPECT_EQ(DecodeCode(With<int64_t>(72, -1)), invalid);         // offset
  EXPECT_EQ(DecodeCode(With<int64_t>(72, 57344)), invalid);      // offset
  EXPECT_EQ(DecodeCode(With<uint8_t>(71, 1)), invalid);          // reserved
}

TEST(PacketTest, RefusesAShapeWhoseByteCountOverflows) {
  WireHeader bytes = With<int32_t>(56, INT32_MAX);
  const int32_t columns = INT32_MAX;
  std::memcpy(bytes.data() + 60, &columns, sizeof(columns));
  const auto wrapped =
      static_cast<int64_t>(uint64_t{INT32_MAX} * uint64_t{INT32_MAX} * 2);
  std::memcpy(bytes.data() + 40, &wrapped, sizeof(wrapped));
  EXPECT_EQ(DecodeCode(bytes), StatusCode::kInvalidArgument);
}

TEST(PacketTest, AnyBytesEitherFailOrEncodeToThemselves) {
  std::mt19937 random(20);
  const WireHeader sample = EncodePacketHeader(Sample());
  for (int i = 0; i < 100'000; ++i) {
    WireHeader bytes = sample;
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int c = 0; c < changes; ++c) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    const StatusOr<WirePacket> decoded = DecodePacketHeader(bytes);
    if (!decoded.ok()) continue;
    EXPECT_EQ(EncodePacketHeader(*decoded), bytes);
  }
}

TEST(PacketTest, TellsStaleFromForgedFromTooLarge) {
  const SessionInfo session = {.epoch = Epoch(9),
                               .key = 0x0123456789abcdefu,
                               .max_packet_bytes = 7 * 4096 * 2};
  WirePacket wire = Sample();
  EXPECT_EQ(MatchSession(wire, session), SessionMatch::kMatches);
  wire.payload_bytes += 1;
  EXPECT_EQ(MatchSession(wire, session), SessionMatch::kTooLarge);
  wire.key ^= 1;
  EXPECT_EQ(MatchSession(wire, session), SessionMatch::kWrongKey);
  wire.header.epoch = Epoch(8);
  EXPECT_EQ(MatchSession(wire, session), SessionMatch::kStaleEpoch);
}

}  // namespace
}  // namespace baton
