// SPDX-License-Identifier: Apache-2.0
// What device planes agree on; needs no GPU.
#include "runtime/transport/device_setup.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace baton {
namespace {

constexpr Epoch kEpoch(9);

SetupMessage Sample(SetupKind kind) {
  SetupMessage message;
  message.kind = kind;
  if (kind != SetupKind::kHello) message.ring = 0x0123456789abcdefu;
  if (kind == SetupKind::kRing || kind == SetupKind::kNccl) {
    message.slots = 4;
    message.slot_bytes = 64 << 20;
  }
  if (kind == SetupKind::kRing) message.memory.fill(std::byte{7});
  if (kind == SetupKind::kNccl) message.nccl_id.fill(std::byte{8});
  if (kind == SetupKind::kPut) {
    message.slot = 3;
    message.number = 77;
    message.header = {.epoch = kEpoch,
                      .step = StepId(1u << 20),
                      .pass = 1,
                      .kind = PacketKind::kStream,
                      .dtype = DType::kBF16,
                      .rows = 7,
                      .columns = 4096};
  }
  if (kind == SetupKind::kRelease) message.released = 5;
  return message;
}

constexpr SetupKind kKinds[] = {SetupKind::kHello,  SetupKind::kRing,
                                SetupKind::kNccl,   SetupKind::kUseHost,
                                SetupKind::kRefuse, SetupKind::kReady,
                                SetupKind::kPut,    SetupKind::kRelease};

std::vector<std::byte> Bytes(const SetupMessage& message) {
  StatusOr<Tensor> packet = EncodeSetup(message);
  EXPECT_TRUE(packet.ok()) << packet.status();
  const std::byte* data = packet->view().data();
  return {data, data + packet->bytes()};
}

StatusCode DecodeCode(const std::vector<std::byte>& bytes) {
  return DecodeSetup(bytes, kEpoch).status().code();
}

// The bytes of a sample with `value` over `offset`.
template <typename T>
StatusCode With(SetupKind kind, size_t offset, T value) {
  std::vector<std::byte> bytes = Bytes(Sample(kind));
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  return DecodeCode(bytes);
}

TEST(DeviceSetupTest, DecodesWhatItEncodes) {
  for (const SetupKind kind : kKinds) {
    const SetupMessage message = Sample(kind);
    const StatusOr<SetupMessage> decoded = DecodeSetup(Bytes(message), kEpoch);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, message);
  }
}

TEST(DeviceSetupTest, RefusesAnotherLength) {
  for (const SetupKind kind : kKinds) {
    std::vector<std::byte> bytes = Bytes(Sample(kind));
    bytes.push_back(std::byte{0});
    EXPECT_EQ(DecodeCode(bytes), StatusCode::kInvalidArgument);
    bytes.pop_back();
    while (!bytes.empty()) {
      bytes.pop_back();
      EXPECT_EQ(DecodeCode(bytes), StatusCode::kInvalidArgument);
    }
  }
}

TEST(DeviceSetupTest, RefusesWhatNoSenderWrites) {
  const StatusCode invalid = StatusCode::kInvalidArgument;
  EXPECT_EQ(With<uint32_t>(SetupKind::kHello, 0, 1), invalid);   // magic
  EXPECT_EQ(With<uint32_t>(SetupKind::kHello, 4, 0), invalid);   // kind
  EXPECT_EQ(With<uint32_t>(SetupKind::kReady, 4, 9), invalid);   // kind
  EXPECT_EQ(With<uint64_t>(SetupKind::kHello, 8, 1), invalid);   // ring
  EXPECT_EQ(With<uint64_t>(SetupKind::kRing, 8, 0), invalid);    // ring
  EXPECT_EQ(With<uint32_t>(SetupKind::kRing, 16, 0), invalid);   // slots
  EXPECT_EQ(With<uint32_t>(SetupKind::kNccl, 16, 33), invalid);  // slots
  EXPECT_EQ(With<int64_t>(SetupKind::kRing, 20, -1), invalid);   // slot bytes
  EXPECT_EQ(With<int64_t>(SetupKind::kRing, 20, INT64_MAX), invalid);
  EXPECT_EQ(With<uint32_t>(SetupKind::kPut, 16, 32), invalid);  // slot
  EXPECT_EQ(With<uint32_t>(SetupKind::kPut, 20, 0), invalid);   // number
  EXPECT_EQ(With<int32_t>(SetupKind::kPut, 32, -1), invalid);   // pass
  EXPECT_EQ(With<int32_t>(SetupKind::kPut, 36, -1), invalid);   // rows
  EXPECT_EQ(With<int32_t>(SetupKind::kPut, 40, -1), invalid);   // columns
  EXPECT_EQ(With<uint32_t>(SetupKind::kPut, 44, 0), invalid);   // dtype
  EXPECT_EQ(With<uint32_t>(SetupKind::kPut, 44, 4), invalid);   // dtype
  EXPECT_EQ(
      With<uint64_t>(SetupKind::kPut, 36, UINT64_MAX >> 1 & ~(1ull << 31)),
      invalid);  // rows times columns
  EXPECT_EQ(With<uint32_t>(SetupKind::kRelease, 16, 0), invalid);
}

TEST(DeviceSetupTest, AnyBytesEitherFailOrEncodeToThemselves) {
  std::mt19937 random(21);
  for (int i = 0; i < 50'000; ++i) {
    std::vector<std::byte> bytes =
        Bytes(Sample(kKinds[random() % std::size(kKinds)]));
    for (int c = 1 + static_cast<int>(random() % 3); c > 0; --c) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    const StatusOr<SetupMessage> decoded = DecodeSetup(bytes, kEpoch);
    if (!decoded.ok()) continue;
    EXPECT_EQ(Bytes(*decoded), bytes);
  }
}

CudaEndpoint At(uint64_t host, int gpu) {
  CudaEndpoint endpoint;
  endpoint.host = host;
  endpoint.process = 5;
  endpoint.plane = 6;
  endpoint.gpu.fill(static_cast<std::byte>(gpu));
  return endpoint;
}

TEST(DeviceSetupTest, AnEndpointSurvivesItsAddress) {
  CudaEndpoint endpoint = At(1, 2);
  endpoint.nccl = false;
  const StatusOr<CudaEndpoint> decoded =
      DecodeEndpoint(EncodeEndpoint(endpoint));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, endpoint);
  EXPECT_FALSE(DecodeEndpoint("gpu").ok());
  EXPECT_FALSE(DecodeEndpoint(EncodeEndpoint(endpoint) + "x").ok());
}

TEST(DeviceSetupTest, ChoosesTheBestPathThatBothEndsCanTake) {
  using enum PeerAccess;
  CudaEndpoint no_direct = At(1, 1);
  no_direct.direct = false;
  CudaEndpoint neither = no_direct;
  neither.nccl = false;
  struct Case {
    CudaEndpoint receiver;
    CudaEndpoint sender;
    PeerAccess access;
    CudaPath path;
  };
  const Case cases[] = {
      {At(1, 1), At(1, 2), kYes, CudaPath::kDirect},
      {At(1, 1), At(1, 2), kUnknown, CudaPath::kDirect},  // may be refused
      {At(1, 1), At(1, 2), kNo, CudaPath::kNccl},
      {At(1, 1), At(1, 1), kYes, CudaPath::kDirect},
      {At(1, 1), At(2, 2), kUnknown, CudaPath::kNccl},  // another host
      {At(1, 1), At(2, 1), kUnknown, CudaPath::kNccl},
      {no_direct, At(1, 2), kYes, CudaPath::kNccl},
      {At(1, 2), no_direct, kYes, CudaPath::kNccl},
      {no_direct, At(1, 1), kYes, CudaPath::kHost},  // one GPU
      {neither, At(1, 2), kYes, CudaPath::kHost},
      {At(1, 2), neither, kYes, CudaPath::kHost},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(ChoosePath(c.receiver, c.sender, c.access), c.path) << &c - cases;
  }
}

}  // namespace
}  // namespace baton
