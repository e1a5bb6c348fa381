// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that a peer writes: slots for payloads with a flag each, at
// the receiver's end and as the sender sees it. Owner thread: the stage's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/status.h"
#include "runtime/tensor/tensor.h"
#include "runtime/transport/cuda_put.h"
#include "runtime/transport/device_setup.h"

namespace baton {

struct RingShape {
  static constexpr int64_t kAlignment = 256;

  uint32_t slots = 0;
  int64_t slot_bytes = 0;

  [[nodiscard]] int64_t SlotAt(uint32_t slot) const {
    return int64_t{slot} * slot_bytes;
  }
  // Flags come behind the slots, each in a line of its own.
  [[nodiscard]] int64_t FlagAt(uint32_t slot) const {
    return SlotAt(slots) + int64_t{slot} * 128;
  }
  [[nodiscard]] int64_t bytes() const { return FlagAt(slots); }
};

// What a slot's flag becomes with put `number` (from 1 on) to a ring.
[[nodiscard]] constexpr uint64_t FlagValue(uint64_t ring, uint32_t number) {
  return (ring << 32) | number;
}

// A block of a GPU's memory that peers may map; never part of the device's
// cache of blocks. Shared: by a ring, the tensors over its slots, and a sender
// in the same process, because the last one to use it may be any of them.
class PeerMemory {
 public:
  // Zeroed. ResourceExhausted: no memory.
  [[nodiscard]] static StatusOr<std::shared_ptr<PeerMemory>> Allocate(
      int ordinal, int64_t bytes, Stream& stream);
  PeerMemory(int ordinal, std::byte* data) : ordinal_(ordinal), data_(data) {}
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  [[nodiscard]] int ordinal() const { return ordinal_; }
  [[nodiscard]] std::byte* data() const { return data_; }
  // Internal: CUDA cannot share it.
  [[nodiscard]] StatusOr<std::array<std::byte, 64>> Handle() const;

 private:
  int ordinal_;
  std::byte* data_;
};

// The receiver's end of one direction. Shared: with the tensors over its slots.
class CudaRing : public std::enable_shared_from_this<CudaRing> {
 public:
  // `aux` is a stream that never waits for a peer. `words` are the stage's.
  [[nodiscard]] static StatusOr<std::shared_ptr<CudaRing>> Create(
      uint64_t id, StageId from, RingShape shape, absl::Duration deadline,
      CudaPutWords* words, Stream& stream, Stream& aux);
  ~CudaRing();
  CudaRing(const CudaRing&) = delete;
  CudaRing& operator=(const CudaRing&) = delete;

  [[nodiscard]] uint64_t id() const { return id_; }
  [[nodiscard]] const RingShape& shape() const { return shape_; }
  [[nodiscard]] const std::shared_ptr<PeerMemory>& memory() const {
    return memory_;
  }
  [[nodiscard]] std::byte* slot(uint32_t i) const {
    return memory_->data() + shape_.SlotAt(i);
  }
  [[nodiscard]] uint64_t* flag(uint32_t i) const {
    return reinterpret_cast<uint64_t*>(memory_->data() + shape_.FlagAt(i));
  }

  // The packet of a put. InvalidArgument: not the next one, or its slot is in
  // use, or too small.
  [[nodiscard]] StatusOr<Packet> Take(const SetupMessage& put);
  // Slots that nothing reads any more, as bits. Internal: the GPU failed.
  [[nodiscard]] StatusOr<uint32_t> TakeReleased();
  [[nodiscard]] bool releasing() const { return !releasing_.empty(); }
  // Of the first wait that gave up. DeadlineExceeded, with the step.
  [[nodiscard]] Status Failure() const;
  // Waits for this peer, running or to come, end at once.
  void Abort();
  // Afterwards its stream and words are not touched.
  void Close() { closed_ = true; }

 private:
  class Ready;
  struct Lease;

  CudaRing(uint64_t id, StageId from, RingShape shape, absl::Duration deadline,
           CudaPutWords* words, Stream& stream)
      : id_(id),
        from_(from),
        shape_(shape),
        deadline_(deadline),
        words_(words),
        stream_(stream) {}
  Status Wait(const SetupMessage& put, Stream& stream);
  void Release(uint32_t slot);

  uint64_t id_;
  StageId from_;
  RingShape shape_;
  absl::Duration deadline_;
  CudaPutWords* words_;
  Stream& stream_;
  std::shared_ptr<PeerMemory> memory_;
  CudaWaitWords* wait_ = nullptr;  // pinned
  uint32_t next_number_ = 1;
  uint32_t used_ = 0;  // bits of slots
  // Slots whose tensor is gone, with the end of what may still read them.
  std::vector<std::pair<uint32_t, std::unique_ptr<Event>>> releasing_;
  Status failed_;  // a release that could not be recorded
  bool closed_ = false;
};

// Another stage's ring as its sender sees it.
class RemoteRing {
 public:
  // `stream`'s GPU writes it. Unavailable: that GPU cannot.
  [[nodiscard]] static StatusOr<std::unique_ptr<RemoteRing>> Open(
      const SetupMessage& message, bool same_process, Stream& stream);
  ~RemoteRing();
  RemoteRing(const RemoteRing&) = delete;
  RemoteRing& operator=(const RemoteRing&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  RemoteRing() = default;
  int ordinal_ = 0;
  std::shared_ptr<PeerMemory> memory_;  // of this process
  void* mapped_ = nullptr;              // of another
  std::byte* data_ = nullptr;
};

// This end, but for the paths it may take.
[[nodiscard]] StatusOr<CudaEndpoint> LocalEndpoint(int ordinal);
// Whether the GPU of `sender` reaches the memory of GPU `ordinal`.
[[nodiscard]] PeerAccess AccessFrom(const CudaEndpoint& sender, int ordinal);
[[nodiscard]] uint64_t RandomId();  // not 0

}  // namespace baton
