// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/cuda_ring.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <new>
#include <random>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/tensor/cuda_device.h"

namespace baton {
namespace {

// CUDA shares whole allocations of this size and more; smaller ones lie in one
// with others.
constexpr int64_t kShareable = int64_t{2} << 20;

// The rings of this process, for senders in it. Thread: any.
class LocalRings {
 public:
  static LocalRings& Get() {
    static auto* const rings = new LocalRings;
    return *rings;
  }
  void Add(uint64_t id, const std::shared_ptr<PeerMemory>& memory) {
    absl::MutexLock lock(&mutex_);
    rings_[id] = memory;
  }
  void Remove(uint64_t id) {
    absl::MutexLock lock(&mutex_);
    rings_.erase(id);
  }
  std::shared_ptr<PeerMemory> Find(uint64_t id) {
    absl::MutexLock lock(&mutex_);
    const auto found = rings_.find(id);
    return found == rings_.end() ? nullptr : found->second.lock();
  }

 private:
  absl::Mutex mutex_;
  std::map<uint64_t, std::weak_ptr<PeerMemory>> rings_ ABSL_GUARDED_BY(mutex_);
};

uint64_t HostId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  return std::hash<std::string>()(boot);
}

StatusOr<std::array<std::byte, 16>> GpuId(int ordinal) {
  cudaDeviceProp properties;
  BATON_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, ordinal),
                 "cudaGetDeviceProperties"));
  std::array<std::byte, 16> id = {};
  static_assert(sizeof(properties.uuid) == sizeof(id));
  std::memcpy(id.data(), &properties.uuid, sizeof(id));
  return id;
}

// What could not be done leaves no error behind for later calls.
Status Forget(cudaError_t error, std::string_view what) {
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess
             ? OkStatus()
             : Unavailable("{}: {}", what, cudaGetErrorString(error));
}

}  // namespace

// --- PeerMemory

StatusOr<std::shared_ptr<PeerMemory>> PeerMemory::Allocate(int ordinal,
                                                           int64_t bytes,
                                                           Stream& stream) {
  const absl::ReaderMutexLock lock(&gpu_submissions);
  CUstream_st* const cuda = CudaStreamOf(stream);
  const int64_t whole = (bytes + kShareable - 1) / kShareable * kShareable;
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(whole));
  if (error != cudaSuccess) {
    cudaGetLastError();
    return ResourceExhausted("a ring of {} bytes: {}", whole,
                             cudaGetErrorString(error));
  }
  auto memory =
      std::make_shared<PeerMemory>(ordinal, static_cast<std::byte*>(data));
  BATON_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(data, 0, static_cast<size_t>(whole), cuda),
                 "clear a ring"));
  BATON_RETURN_IF_ERROR(stream.Synchronize());
  return memory;
}

PeerMemory::~PeerMemory() {
  cudaSetDevice(ordinal_);
  cudaFree(data_);
}

StatusOr<std::array<std::byte, 64>> PeerMemory::Handle() const {
  cudaIpcMemHandle_t handle;
  BATON_RETURN_IF_ERROR(
      Forget(cudaIpcGetMemHandle(&handle, data_), "cudaIpcGetMemHandle"));
  std::array<std::byte, 64> bytes = {};
  static_assert(sizeof(handle) == sizeof(bytes));
  std::memcpy(bytes.data(), &handle, sizeof(handle));
  return bytes;
}

// --- CudaRing

// Data that a peer is going to write.
class CudaRing::Ready : public Event {
 public:
  Ready(std::shared_ptr<CudaRing> ring, const SetupMessage& put)
      : ring_(std::move(ring)), put_(put) {}
  Status EnqueueOn(Stream& stream) override {
    return ring_->Wait(put_, stream);
  }
  StatusOr<bool> Done() override {
    if (waited_ == nullptr) {
      BATON_RETURN_IF_ERROR(EnqueueOn(ring_->stream_));
      BATON_ASSIGN_OR_RETURN(waited_, ring_->stream_.Record());
    }
    BATON_ASSIGN_OR_RETURN(const bool done, waited_->Done());
    if (done) BATON_RETURN_IF_ERROR(ring_->Failure());
    return done;
  }
  Status Wait() override {
    BATON_RETURN_IF_ERROR(EnqueueOn(ring_->stream_));
    BATON_RETURN_IF_ERROR(ring_->stream_.Synchronize());
    return ring_->Failure();
  }

 private:
  std::shared_ptr<CudaRing> ring_;
  SetupMessage put_;
  std::unique_ptr<Event> waited_;
};

// What a tensor over a slot holds.
struct CudaRing::Lease {
  std::shared_ptr<CudaRing> ring;
  uint32_t slot;

  static void End(void* context, std::byte*, int64_t) {
    std::unique_ptr<Lease> lease(static_cast<Lease*>(context));
    lease->ring->Release(lease->slot);
  }
};

StatusOr<std::shared_ptr<CudaRing>> CudaRing::Create(
    uint64_t id, StageId from, RingShape shape, absl::Duration deadline,
    CudaPutWords* words, Stream& stream, Stream& aux) {
  std::shared_ptr<CudaRing> ring(
      new CudaRing(id, from, shape, deadline, words, stream));
  BATON_ASSIGN_OR_RETURN(
      ring->memory_,
      PeerMemory::Allocate(CudaOrdinalOf(stream), shape.bytes(), aux));
  const absl::ReaderMutexLock lock(&gpu_submissions);
  void* wait = nullptr;
  BATON_RETURN_IF_ERROR(
      CudaStatus(cudaHostAlloc(&wait, sizeof(CudaWaitWords),
                               cudaHostAllocPortable | cudaHostAllocMapped),
                 "pinned memory for a ring"));
  ring->wait_ = new (wait) CudaWaitWords;
  LocalRings::Get().Add(id, ring->memory_);
  return ring;
}

CudaRing::~CudaRing() {
  LocalRings::Get().Remove(id_);
  if (wait_ != nullptr) cudaFreeHost(wait_);
}

StatusOr<Packet> CudaRing::Take(const SetupMessage& put) {
  const PacketHeader& header = put.header;
  const int64_t bytes =
      int64_t{header.rows} * header.columns * SizeOf(header.dtype);
  const bool fits = put.slot < shape_.slots &&
                    (used_ & (1u << put.slot)) == 0 &&
                    put.number == next_number_ && bytes <= shape_.slot_bytes;
  if (!fits || closed_) {
    return InvalidArgument("put {} of {} bytes into slot {}; {} is next",
                           put.number, bytes, put.slot, next_number_);
  }
  ++next_number_;
  used_ |= 1u << put.slot;
  Buffer buffer(slot(put.slot), bytes, DeviceKind::kCuda, &Lease::End,
                new Lease{shared_from_this(), put.slot});
  Packet packet;
  packet.from = from_;
  packet.header = header;
  packet.payload =
      Tensor(std::move(buffer), header.dtype, {header.rows, header.columns});
  packet.ready = std::make_unique<Ready>(shared_from_this(), put);
  return packet;
}

Status CudaRing::Wait(const SetupMessage& put, Stream& stream) {
  if (closed_) {
    return FailedPrecondition("step {} from stage {}: of an earlier session",
                              put.header.step.value(), from_.value());
  }
  CudaWait wait;
  wait.flag = flag(put.slot);
  wait.value = FlagValue(id_, put.number);
  wait.step = put.header.step.value();
  wait.limit_ns = absl::ToInt64Nanoseconds(deadline_);
  wait.wait = wait_;
  wait.words = words_;
  return CudaStatus(LaunchWait(wait, CudaStreamOf(stream)), "wait for a peer");
}

void CudaRing::Release(uint32_t slot) {
  if (closed_) return;
  StatusOr<std::unique_ptr<Event>> read = stream_.Record();
  if (read.ok()) {
    releasing_.emplace_back(slot, *std::move(read));
  } else if (failed_.ok()) {
    failed_ = read.status();
  }
}

StatusOr<uint32_t> CudaRing::TakeReleased() {
  BATON_RETURN_IF_ERROR(failed_);
  uint32_t released = 0;
  while (!releasing_.empty()) {
    auto& [slot, read] = releasing_.front();  // in the order of the stream
    BATON_ASSIGN_OR_RETURN(const bool done, read->Done());
    if (!done) break;
    released |= 1u << slot;
    releasing_.erase(releasing_.begin());
  }
  used_ &= ~released;
  return released;
}

Status CudaRing::Failure() const {
  const auto* failure = &wait_->failure;
  const uint32_t code = __atomic_load_n(failure, __ATOMIC_ACQUIRE);
  if (code == CudaWaitWords::kNone) return OkStatus();
  if (code == CudaWaitWords::kAborted) {
    return Unavailable("step {} from stage {}: the wait for it was given up",
                       wait_->step, from_.value());
  }
  return DeadlineExceeded("step {} from stage {}: no data for {}", wait_->step,
                          from_.value(), absl::FormatDuration(deadline_));
}

void CudaRing::Abort() {
  __atomic_store_n(&wait_->abort, 1u, __ATOMIC_RELEASE);
}

// --- RemoteRing

StatusOr<std::unique_ptr<RemoteRing>> RemoteRing::Open(
    const SetupMessage& message, bool same_process, Stream& stream) {
  std::unique_ptr<RemoteRing> ring(new RemoteRing);
  ring->ordinal_ = CudaOrdinalOf(stream);
  (void)CudaStreamOf(stream);  // makes its GPU the current one
  if (same_process) {
    ring->memory_ = LocalRings::Get().Find(message.ring);
    if (ring->memory_ == nullptr) {
      return Unavailable("ring {} is gone", message.ring);
    }
    const int owner = ring->memory_->ordinal();
    if (owner != ring->ordinal_) {
      const cudaError_t error = cudaDeviceEnablePeerAccess(owner, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
      if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled) {
        return Forget(error, "cudaDeviceEnablePeerAccess");
      }
    }
    ring->data_ = ring->memory_->data();
    return ring;
  }
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, message.memory.data(), sizeof(handle));
  BATON_RETURN_IF_ERROR(
      Forget(cudaIpcOpenMemHandle(&ring->mapped_, handle,
                                  cudaIpcMemLazyEnablePeerAccess),
             "cudaIpcOpenMemHandle"));
  ring->data_ = static_cast<std::byte*>(ring->mapped_);
  return ring;
}

RemoteRing::~RemoteRing() {
  if (mapped_ == nullptr) return;
  cudaSetDevice(ordinal_);
  cudaIpcCloseMemHandle(mapped_);
}

// --- Endpoints

uint64_t RandomId() {
  std::random_device random;
  uint64_t id = 0;
  while (id == 0) id = (uint64_t{random()} << 32) | random();
  return id;
}

StatusOr<CudaEndpoint> LocalEndpoint(int ordinal) {
  static const uint64_t process = RandomId();
  CudaEndpoint endpoint;
  endpoint.host = HostId();
  endpoint.process = process;
  endpoint.plane = RandomId();
  BATON_ASSIGN_OR_RETURN(endpoint.gpu, GpuId(ordinal));
  return endpoint;
}

PeerAccess AccessFrom(const CudaEndpoint& sender, int ordinal) {
  for (int other = 0; other < CudaDeviceCount(); ++other) {
    const StatusOr<std::array<std::byte, 16>> id = GpuId(other);
    if (!id.ok() || *id != sender.gpu) continue;
    if (other == ordinal) return PeerAccess::kYes;
    int can = 0;
    const cudaError_t error = cudaDeviceCanAccessPeer(&can, other, ordinal);
    if (error != cudaSuccess) cudaGetLastError();
    return error == cudaSuccess && can != 0 ? PeerAccess::kYes
                                            : PeerAccess::kNo;
  }
  return PeerAccess::kUnknown;
}

}  // namespace baton
