// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/thread_pool.h"
#include "runtime/tensor/device.h"

namespace baton {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

class CpuEvent : public Event {
 public:
  StatusOr<bool> Done() override { return true; }
  Status Wait() override { return OkStatus(); }
};

class CpuStream : public Stream {
 public:
  explicit CpuStream(ThreadPool* pool) : pool_(pool) {}
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  StatusOr<std::unique_ptr<Event>> Record() override {
    return std::unique_ptr<Event>(new CpuEvent);
  }
  Status WaitFor(Event& event) override { return event.EnqueueOn(*this); }
  Status Synchronize() override { return OkStatus(); }
  ThreadPool& pool() { return *pool_; }

 private:
  ThreadPool* pool_;
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int threads) : pool_(threads) {}
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  StatusOr<Buffer> Allocate(int64_t bytes) override {
    return AllocateHostBuffer(bytes);
  }
  StatusOr<Buffer> AllocateHost(int64_t bytes) override {
    return AllocateHostBuffer(bytes);
  }
  StatusOr<std::unique_ptr<Stream>> NewStream() override {
    return std::unique_ptr<Stream>(new CpuStream(&pool_));
  }
  Status Copy(std::byte* to, const std::byte* from, int64_t bytes,
              Stream& stream) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    return OkStatus();
  }
  Status Clear(std::byte* data, int64_t bytes, Stream& stream) override {
    if (bytes > 0) std::memset(data, 0, static_cast<size_t>(bytes));
    return OkStatus();
  }

 private:
  ThreadPool pool_;
};

void FreeHost(void*, std::byte* data, int64_t) { std::free(data); }

}  // namespace

Status Stream::BeginCapture() {
  return Unimplemented("{} streams do not record", Name(kind()));
}
StatusOr<std::unique_ptr<Graph>> Stream::EndCapture() {
  return Unimplemented("{} streams do not record", Name(kind()));
}
StatusOr<int64_t> Device::FreeBytes() {
  return Unimplemented("{} devices do not count their memory", Name(kind()));
}

StatusOr<Buffer> AllocateHostBuffer(int64_t bytes) {
  BATON_CHECK(bytes >= 0);
  const bool huge = bytes >= 2 * kHugePage;
  const int64_t alignment = huge ? kHugePage : 64;
  const int64_t rounded =
      (std::max<int64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(static_cast<size_t>(alignment),
                                  static_cast<size_t>(rounded));
  if (data == nullptr) {
    return ResourceExhausted("allocate {} bytes of host memory", bytes);
  }
  if (huge) madvise(data, static_cast<size_t>(rounded), MADV_HUGEPAGE);
  return Buffer(static_cast<std::byte*>(data), bytes, DeviceKind::kCpu,
                &FreeHost, nullptr);
}

std::unique_ptr<Device> NewCpuDevice(int threads) {
  return std::make_unique<CpuDevice>(threads);
}

ThreadPool& PoolOf(Stream& stream) {
  BATON_CHECK(stream.kind() == DeviceKind::kCpu);
  return static_cast<CpuStream&>(stream).pool();
}

}  // namespace baton
