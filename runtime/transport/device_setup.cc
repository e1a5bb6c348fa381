// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/device_setup.h"

#include <cstring>
#include <type_traits>

namespace baton {
namespace {

constexpr uint32_t kMagic = 0x31535042;      // "BPS1"
constexpr uint32_t kNoteMagic = 0x314e5042;  // "BPN1"

// Fields in their order, little endian.
class Writer {
 public:
  template <typename T>
  void Put(T value) {
    const auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>((bits >> (8 * i)) & 0xff));
    }
  }
  void PutBytes(std::span<const std::byte> bytes) {
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <typename T>
  T Get() {
    std::make_unsigned_t<T> bits = 0;
    if (!Has(sizeof(T))) return 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      bits |= static_cast<std::make_unsigned_t<T>>(
          static_cast<std::make_unsigned_t<T>>(rest_[i]) << (8 * i));
    }
    rest_ = rest_.subspan(sizeof(T));
    return static_cast<T>(bits);
  }
  void GetBytes(std::span<std::byte> to) {
    if (!Has(to.size())) return;
    std::memcpy(to.data(), rest_.data(), to.size());
    rest_ = rest_.subspan(to.size());
  }
  // Everything was there and nothing is left.
  [[nodiscard]] bool complete() const { return ok_ && rest_.empty(); }

 private:
  bool Has(size_t bytes) {
    ok_ = ok_ && rest_.size() >= bytes;
    return ok_;
  }
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

Status ReadRing(Reader& in, SetupMessage& message) {
  message.slots = in.Get<uint32_t>();
  message.slot_bytes = in.Get<int64_t>();
  if (message.slots < 1 || message.slots > kMaxRingSlots ||
      message.slot_bytes < 0 ||
      message.slot_bytes > kMaxPayloadBytes / kMaxRingSlots) {
    return InvalidArgument("setup: a ring of {} slots of {} bytes",
                           message.slots, message.slot_bytes);
  }
  return OkStatus();
}

Status ReadPut(Reader& in, Epoch epoch, SetupMessage& message) {
  message.slot = in.Get<uint32_t>();
  message.number = in.Get<uint32_t>();
  PacketHeader& header = message.header;
  header.epoch = epoch;
  header.kind = PacketKind::kStream;
  header.step = StepId(in.Get<uint64_t>());
  header.pass = in.Get<int32_t>();
  header.rows = in.Get<int32_t>();
  header.columns = in.Get<int32_t>();
  const auto dtype = in.Get<uint32_t>();
  if (dtype < static_cast<uint32_t>(DType::kF32) ||
      dtype > static_cast<uint32_t>(DType::kI32)) {
    return InvalidArgument("setup: unknown dtype {}", dtype);
  }
  header.dtype = static_cast<DType>(dtype);
  // Both sizes are below 2^31, so the product fits.
  if (message.slot >= kMaxRingSlots || message.number == 0 || header.pass < 0 ||
      header.rows < 0 || header.columns < 0 ||
      int64_t{header.rows} * header.columns >
          kMaxPayloadBytes / SizeOf(header.dtype)) {
    return InvalidArgument("setup: put {} into slot {}: {}", message.number,
                           message.slot, ToString(header));
  }
  return OkStatus();
}

// The fields behind the kind and the ring.
Status ReadFields(Reader& in, Epoch epoch, SetupMessage& message) {
  switch (message.kind) {
    case SetupKind::kHello:
    case SetupKind::kUseHost:
    case SetupKind::kRefuse:
    case SetupKind::kReady:
      return OkStatus();
    case SetupKind::kRing:
      BATON_RETURN_IF_ERROR(ReadRing(in, message));
      in.GetBytes(message.memory);
      return OkStatus();
    case SetupKind::kNccl:
      BATON_RETURN_IF_ERROR(ReadRing(in, message));
      in.GetBytes(message.nccl_id);
      return OkStatus();
    case SetupKind::kPut:
      return ReadPut(in, epoch, message);
    case SetupKind::kRelease:
      message.released = in.Get<uint32_t>();
      if (message.released != 0) return OkStatus();
      return InvalidArgument("setup: nothing is released");
  }
  return InvalidArgument("setup: unknown kind {}",
                         static_cast<uint32_t>(message.kind));
}

void WriteFields(const SetupMessage& message, Writer& out) {
  switch (message.kind) {
    case SetupKind::kHello:
    case SetupKind::kUseHost:
    case SetupKind::kRefuse:
    case SetupKind::kReady:
      return;
    case SetupKind::kRing:
    case SetupKind::kNccl:
      out.Put(message.slots);
      out.Put(message.slot_bytes);
      if (message.kind == SetupKind::kRing) {
        out.PutBytes(message.memory);
      } else {
        out.PutBytes(message.nccl_id);
      }
      return;
    case SetupKind::kPut:
      out.Put(message.slot);
      out.Put(message.number);
      out.Put(message.header.step.value());
      out.Put(message.header.pass);
      out.Put(message.header.rows);
      out.Put(message.header.columns);
      out.Put(static_cast<uint32_t>(message.header.dtype));
      return;
    case SetupKind::kRelease:
      out.Put(message.released);
      return;
  }
}

}  // namespace

std::string_view Name(CudaPath path) {
  switch (path) {
    case CudaPath::kHost:
      return "host";
    case CudaPath::kDirect:
      return "direct";
    case CudaPath::kNccl:
      return "nccl";
  }
  return "?";
}

std::string EncodeEndpoint(const CudaEndpoint& endpoint) {
  Writer out;
  out.Put(kNoteMagic);
  out.Put(endpoint.host);
  out.Put(endpoint.process);
  out.Put(endpoint.plane);
  out.PutBytes(endpoint.gpu);
  out.Put((endpoint.direct ? 1u : 0u) | (endpoint.nccl ? 2u : 0u));
  return out.bytes();
}

StatusOr<CudaEndpoint> DecodeEndpoint(std::string_view note) {
  Reader in(std::as_bytes(std::span(note)));
  CudaEndpoint endpoint;
  const auto magic = in.Get<uint32_t>();
  endpoint.host = in.Get<uint64_t>();
  endpoint.process = in.Get<uint64_t>();
  endpoint.plane = in.Get<uint64_t>();
  in.GetBytes(endpoint.gpu);
  const auto paths = in.Get<uint32_t>();
  if (!in.complete() || magic != kNoteMagic || paths > 3) {
    return InvalidArgument("address: a device note of {} bytes, paths {}",
                           note.size(), paths);
  }
  endpoint.direct = (paths & 1) != 0;
  endpoint.nccl = (paths & 2) != 0;
  return endpoint;
}

CudaPath ChoosePath(const CudaEndpoint& receiver, const CudaEndpoint& sender,
                    PeerAccess access) {
  const bool same_gpu =
      receiver.host == sender.host && receiver.gpu == sender.gpu;
  if (receiver.direct && sender.direct && receiver.host == sender.host &&
      (same_gpu || access != PeerAccess::kNo)) {
    return CudaPath::kDirect;
  }
  // NCCL refuses two ranks on one GPU.
  if (receiver.nccl && sender.nccl && !same_gpu) return CudaPath::kNccl;
  return CudaPath::kHost;
}

StatusOr<Tensor> EncodeSetup(const SetupMessage& message) {
  Writer out;
  out.Put(kMagic);
  out.Put(static_cast<uint32_t>(message.kind));
  out.Put(message.ring);
  WriteFields(message, out);
  const auto bytes = static_cast<int64_t>(out.bytes().size());
  BATON_CHECK(bytes <= kMaxSetupBytes && bytes % SizeOf(DType::kI32) == 0);
  BATON_ASSIGN_OR_RETURN(
      Tensor packet,
      Tensor::AllocateHost(DType::kI32, {1, bytes / SizeOf(DType::kI32)}));
  std::memcpy(packet.view().data(), out.bytes().data(), out.bytes().size());
  return packet;
}

StatusOr<SetupMessage> DecodeSetup(std::span<const std::byte> bytes,
                                   Epoch epoch) {
  Reader in(bytes);
  SetupMessage message;
  const auto magic = in.Get<uint32_t>();
  message.kind = static_cast<SetupKind>(in.Get<uint32_t>());
  message.ring = in.Get<uint64_t>();
  if (magic != kMagic) {
    return InvalidArgument("setup: magic {:#x}, expected {:#x}", magic, kMagic);
  }
  if ((message.kind == SetupKind::kHello) != (message.ring == 0)) {
    return InvalidArgument("setup: kind {} about ring {}",
                           static_cast<uint32_t>(message.kind), message.ring);
  }
  BATON_RETURN_IF_ERROR(ReadFields(in, epoch, message));
  if (!in.complete()) {
    return InvalidArgument("setup: kind {} in {} bytes",
                           static_cast<uint32_t>(message.kind), bytes.size());
  }
  return message;
}

}  // namespace baton
