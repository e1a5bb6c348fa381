// SPDX-License-Identifier: Apache-2.0
// What a stage runs on: memory, streams, events, asynchronous copies. The CPU
// is one implementation; a GPU joins as another. Decoders and actors see only
// this interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/status.h"

namespace baton {

class ThreadPool;

// While stages run, who submits work to GPUs of this process or allocates on
// them holds it shared; a visit of ranks (RankGroup::InTurn) holds it alone.
// Ranks' kernels wait for each other, and a call that allocates, frees or loads
// code may wait for every kernel, with locks that the launch of the other
// rank's kernel needs.
ABSL_CONST_INIT inline absl::Mutex gpu_submissions(absl::kConstInit);

enum class DeviceKind : uint8_t { kCpu = 0, kCuda = 1 };

[[nodiscard]] constexpr std::string_view Name(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? "cpu" : "cuda";
}

// Memory of one device; frees itself. Move-only. Thread: any, one owner.
class Buffer {
 public:
  using Deleter = void (*)(void* context, std::byte* data, int64_t bytes);

  Buffer() = default;
  Buffer(std::byte* data, int64_t bytes, DeviceKind kind, Deleter deleter,
         void* context)
      : data_(data),
        bytes_(bytes),
        kind_(kind),
        deleter_(deleter),
        context_(context) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      Reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      kind_ = other.kind_;
      deleter_ = other.deleter_;
      context_ = other.context_;
    }
    return *this;
  }
  ~Buffer() { Reset(); }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] int64_t bytes() const { return bytes_; }
  [[nodiscard]] DeviceKind kind() const { return kind_; }

 private:
  void Reset() {
    if (data_ != nullptr) deleter_(context_, data_, bytes_);
    data_ = nullptr;
  }

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  DeviceKind kind_ = DeviceKind::kCpu;
  Deleter deleter_ = nullptr;
  void* context_ = nullptr;
};

class Stream;

// A point in a stream's work. Owner thread: the stream's.
class Event {
 public:
  virtual ~Event() = default;
  // True when everything recorded before it has finished.
  [[nodiscard]] virtual StatusOr<bool> Done() = 0;
  virtual Status Wait() = 0;
  // Makes what is submitted to `stream` later wait for it; Stream::WaitFor
  // calls this. Here: waits at once.
  virtual Status EnqueueOn(Stream& stream) { return Wait(); }
};

// Work recorded from a stream, to be launched on it many times. It uses the
// memory it was recorded with, which must outlive it. Owner thread: the
// stream's.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual Status Launch() = 0;
};

// An ordered queue of work on one device; belongs to one actor and is used
// from that actor's thread only. On the CPU work runs when it is submitted.
class Stream {
 public:
  virtual ~Stream() = default;
  [[nodiscard]] virtual DeviceKind kind() const = 0;
  [[nodiscard]] virtual StatusOr<std::unique_ptr<Event>> Record() = 0;
  // Work submitted later waits for `event` (of any stream of this device).
  virtual Status WaitFor(Event& event) = 0;
  // Waits for all submitted work. Internal: the device failed.
  virtual Status Synchronize() = 0;

  // Names what this thread submits until the matching PopRange, for profilers.
  virtual void PushRange(const char* name) {}
  virtual void PopRange() {}

  // Whether work can be recorded. Between BeginCapture and EndCapture what is
  // submitted is recorded and does not run; nothing may wait meanwhile.
  [[nodiscard]] virtual bool CanCapture() const { return false; }
  virtual Status BeginCapture();
  [[nodiscard]] virtual StatusOr<std::unique_ptr<Graph>> EndCapture();
};

// Thread: any.
class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual DeviceKind kind() const = 0;
  // 64-byte aligned, uninitialised. ResourceExhausted: no memory.
  [[nodiscard]] virtual StatusOr<Buffer> Allocate(int64_t bytes) = 0;
  // Host memory that copies to and from this device quickly, and that its
  // kernels can read and write.
  [[nodiscard]] virtual StatusOr<Buffer> AllocateHost(int64_t bytes) = 0;
  [[nodiscard]] virtual StatusOr<std::unique_ptr<Stream>> NewStream() = 0;
  // Asynchronous with respect to the host where the device is.
  virtual Status Copy(std::byte* to, const std::byte* from, int64_t bytes,
                      Stream& stream) = 0;
  // Fills with zero bytes, in the order of the stream.
  virtual Status Clear(std::byte* data, int64_t bytes, Stream& stream) = 0;
  // Memory that Allocate could still give. Unimplemented: not known.
  [[nodiscard]] virtual StatusOr<int64_t> FreeBytes();
};

// The CPU. Streams made by it run kernels on `threads` threads (>= 1; the
// submitting thread is one of them).
[[nodiscard]] std::unique_ptr<Device> NewCpuDevice(int threads);

// The pool of a CPU stream; kernels for the CPU call it. CHECKs the kind.
[[nodiscard]] ThreadPool& PoolOf(Stream& stream);

// 64-byte aligned host memory, not tied to a Device object. Large blocks ask
// for huge pages. ResourceExhausted: no memory.
[[nodiscard]] StatusOr<Buffer> AllocateHostBuffer(int64_t bytes);

}  // namespace baton
