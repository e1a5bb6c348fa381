// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/cuda_device.h"

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/check.h"

#define BATON_CUDA(call)                                                   \
  do {                                                                     \
    const cudaError_t baton_error = (call);                                \
    if (baton_error != cudaSuccess) return CudaStatus(baton_error, #call); \
  } while (false)

namespace baton {
namespace {

// Blocks from here on go back to CUDA when they are freed, if they can:
// weights, KV pools.
constexpr int64_t kLargeBlock = int64_t{64} << 20;

int64_t SizeClass(int64_t bytes) {
  constexpr int64_t kSmallest = 256;
  constexpr int64_t kStep = int64_t{2} << 20;
  if (bytes > kStep) return (bytes + kStep - 1) / kStep * kStep;
  int64_t size = kSmallest;
  while (size < bytes) size *= 2;
  return size;
}

Status MakeCurrent(int ordinal) {
  BATON_CUDA(cudaSetDevice(ordinal));
  return OkStatus();
}

class CudaEvent : public Event {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { cudaEventDestroy(event_); }
  StatusOr<bool> Done() override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    BATON_RETURN_IF_ERROR(CudaStatus(state, "work before an event"));
    return true;
  }
  Status Wait() override {
    BATON_CUDA(cudaEventSynchronize(event_));
    return OkStatus();
  }
  Status EnqueueOn(Stream& stream) override {
    BATON_CUDA(cudaStreamWaitEvent(CudaStreamOf(stream), event_, 0));
    return OkStatus();
  }

 private:
  cudaEvent_t event_;
};

class CudaGraph : public Graph {
 public:
  CudaGraph(cudaGraphExec_t graph, cudaStream_t stream)
      : graph_(graph), stream_(stream) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  Status Launch() override {
    BATON_CUDA(cudaGraphLaunch(graph_, stream_));
    return OkStatus();
  }

 private:
  cudaGraphExec_t graph_;
  cudaStream_t stream_;
};

class CudaStream : public Stream {
 public:
  CudaStream(cudaStream_t stream, int ordinal)
      : stream_(stream), ordinal_(ordinal) {}
  ~CudaStream() override {
    cudaSetDevice(ordinal_);
    cudaStreamSynchronize(stream_);
    attachment_.reset();
    cudaStreamDestroy(stream_);
  }
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  StatusOr<std::unique_ptr<Event>> Record() override {
    BATON_RETURN_IF_ERROR(MakeCurrent(ordinal_));
    cudaEvent_t event = nullptr;
    BATON_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    auto owned = std::make_unique<CudaEvent>(event);
    BATON_CUDA(cudaEventRecord(event, stream_));
    return owned;
  }
  Status WaitFor(Event& event) override { return event.EnqueueOn(*this); }
  Status Synchronize() override {
    BATON_CUDA(cudaStreamSynchronize(stream_));
    return OkStatus();
  }
  void PushRange(const char* name) override { nvtxRangePushA(name); }
  void PopRange() override { nvtxRangePop(); }
  bool CanCapture() const override { return true; }
  Status BeginCapture() override {
    BATON_RETURN_IF_ERROR(MakeCurrent(ordinal_));
    BATON_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    return OkStatus();
  }
  StatusOr<std::unique_ptr<Graph>> EndCapture() override {
    cudaGraph_t graph = nullptr;
    BATON_CUDA(cudaStreamEndCapture(stream_, &graph));
    cudaGraphExec_t exec = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    BATON_RETURN_IF_ERROR(CudaStatus(made, "cudaGraphInstantiate"));
    return std::unique_ptr<Graph>(new CudaGraph(exec, stream_));
  }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] int ordinal() const { return ordinal_; }
  std::unique_ptr<CudaAttachment>& attachment() { return attachment_; }

 private:
  cudaStream_t stream_;
  int ordinal_;
  std::unique_ptr<CudaAttachment> attachment_;
};

// Memory of one kind, kept by size class. Thread: any.
class BlockCache {
 public:
  BlockCache(int ordinal, DeviceKind kind) : ordinal_(ordinal), kind_(kind) {}
  ~BlockCache() {
    cudaSetDevice(ordinal_);
    for (auto& [size, blocks] : free_) {
      for (std::byte* block : blocks) Free(block);
    }
  }

  StatusOr<Buffer> Allocate(int64_t bytes) {
    BATON_CHECK(bytes >= 0);
    const int64_t size = SizeClass(bytes);
    {
      absl::MutexLock lock(&mutex_);
      auto found = free_.find(size);
      if (found != free_.end() && !found->second.empty()) {
        std::byte* block = found->second.back();
        found->second.pop_back();
        return Wrap(block, bytes);
      }
    }
    BATON_RETURN_IF_ERROR(MakeCurrent(ordinal_));
    void* data = nullptr;
    const cudaError_t error =
        kind_ == DeviceKind::kCuda
            ? cudaMalloc(&data, static_cast<size_t>(size))
            : cudaHostAlloc(&data, static_cast<size_t>(size),
                            cudaHostAllocPortable);
    if (error != cudaSuccess) {
      cudaGetLastError();  // an allocation that fails breaks nothing else
      return ResourceExhausted(
          "allocate {} bytes of {}: {}", bytes,
          kind_ == DeviceKind::kCuda ? "GPU memory" : "pinned host memory",
          cudaGetErrorString(error));
    }
    return Wrap(static_cast<std::byte*>(data), bytes);
  }

 private:
  Buffer Wrap(std::byte* block, int64_t bytes) {
    return Buffer(
        block, bytes, kind_,
        [](void* self, std::byte* data, int64_t size) {
          static_cast<BlockCache*>(self)->Give(data, SizeClass(size));
        },
        this);
  }
  void Give(std::byte* block, int64_t size) {
    // Not while ranks run: it may be one of them that frees.
    if (size >= kLargeBlock && gpu_submissions.ReaderTryLock()) {
      cudaSetDevice(ordinal_);
      Free(block);
      gpu_submissions.ReaderUnlock();
      return;
    }
    absl::MutexLock lock(&mutex_);
    free_[size].push_back(block);
  }
  void Free(std::byte* block) {
    if (kind_ == DeviceKind::kCuda) {
      cudaFree(block);
    } else {
      cudaFreeHost(block);
    }
  }

  int ordinal_;
  DeviceKind kind_;
  absl::Mutex mutex_;
  std::map<int64_t, std::vector<std::byte*>> free_ ABSL_GUARDED_BY(mutex_);
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int ordinal)
      : ordinal_(ordinal),
        device_(ordinal, DeviceKind::kCuda),
        host_(ordinal, DeviceKind::kCpu) {}
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  StatusOr<Buffer> Allocate(int64_t bytes) override {
    return device_.Allocate(bytes);
  }
  StatusOr<Buffer> AllocateHost(int64_t bytes) override {
    return host_.Allocate(bytes);
  }
  StatusOr<std::unique_ptr<Stream>> NewStream() override {
    BATON_RETURN_IF_ERROR(MakeCurrent(ordinal_));
    cudaStream_t stream = nullptr;
    BATON_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return std::unique_ptr<Stream>(new CudaStream(stream, ordinal_));
  }
  Status Copy(std::byte* to, const std::byte* from, int64_t bytes,
              Stream& stream) override {
    if (bytes == 0) return OkStatus();
    BATON_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                               cudaMemcpyDefault, CudaStreamOf(stream)));
    return OkStatus();
  }
  Status Clear(std::byte* data, int64_t bytes, Stream& stream) override {
    if (bytes == 0) return OkStatus();
    BATON_CUDA(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes),
                               CudaStreamOf(stream)));
    return OkStatus();
  }
  StatusOr<int64_t> FreeBytes() override {
    BATON_RETURN_IF_ERROR(MakeCurrent(ordinal_));
    size_t free = 0;
    size_t total = 0;
    BATON_CUDA(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free);
  }

 private:
  int ordinal_;
  BlockCache device_;
  BlockCache host_;
};

}  // namespace

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

StatusOr<std::unique_ptr<Device>> NewCudaDevice(int ordinal) {
  const int count = CudaDeviceCount();
  if (ordinal < 0 || ordinal >= count) {
    return Unavailable("no GPU {}: this machine has {}", ordinal, count);
  }
  BATON_RETURN_IF_ERROR(MakeCurrent(ordinal));
  return std::unique_ptr<Device>(new CudaDevice(ordinal));
}

CUstream_st* CudaStreamOf(Stream& stream) {
  BATON_CHECK(stream.kind() == DeviceKind::kCuda);
  const CudaStream& cuda = static_cast<const CudaStream&>(stream);
  cudaSetDevice(cuda.ordinal());
  return cuda.stream();
}

int CudaOrdinalOf(Stream& stream) {
  BATON_CHECK(stream.kind() == DeviceKind::kCuda);
  return static_cast<const CudaStream&>(stream).ordinal();
}

std::unique_ptr<CudaAttachment>& CudaAttachmentOf(Stream& stream) {
  BATON_CHECK(stream.kind() == DeviceKind::kCuda);
  return static_cast<CudaStream&>(stream).attachment();
}

Status CudaStatus(int error, std::string_view what) {
  if (error == cudaSuccess) return OkStatus();
  const auto code = static_cast<cudaError_t>(error);
  return Internal("{}: {} ({})", what, cudaGetErrorString(code),
                  cudaGetErrorName(code));
}

}  // namespace baton
