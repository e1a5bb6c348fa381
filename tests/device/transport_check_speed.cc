// SPDX-License-Identifier: Apache-2.0
// Hops and bandwidth between two GPUs: the kernels of the direct path against
// NCCL's, both from CUDA graphs, and NCCL's from the host.
#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/device/transport_check.h"

namespace baton::check {
namespace {

constexpr int kHops = 200;
constexpr int kReplays = 10;
constexpr int kTransfers = 10;

#define CHECK_CUDA(call)                              \
  do {                                                \
    BATON_RETURN_IF_ERROR(CudaStatus((call), #call)); \
  } while (false)

#define CHECK_NCCL(call)                                            \
  do {                                                              \
    const ncclResult_t result = (call);                             \
    if (result != ncclSuccess) {                                    \
      return Internal("{}: {}", #call, ncclGetErrorString(result)); \
    }                                                               \
  } while (false)

// One GPU of the two, with what the hops need there.
struct Gpu {
  int index = 0;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  std::byte* payload = nullptr;  // sent
  std::byte* arrived = nullptr;  // written by the other
  uint64_t* flag = nullptr;      // likewise
  CudaPutWords* words = nullptr;
  CudaWaitWords* wait = nullptr;
  cudaGraphExec_t graph = nullptr;
  ncclComm_t comm = nullptr;
};

constexpr int64_t kMaxBytes = int64_t{64} << 20;

Status Open(Gpu& gpu, int index) {
  gpu.index = index;
  CHECK_CUDA(cudaSetDevice(index));
  CHECK_CUDA(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaEventCreate(&gpu.begin));
  CHECK_CUDA(cudaEventCreate(&gpu.end));
  CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&gpu.payload), kMaxBytes));
  CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&gpu.arrived), kMaxBytes));
  CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&gpu.flag), 256));
  CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&gpu.words), 256));
  CHECK_CUDA(cudaMemset(gpu.words, 0, 256));
  CHECK_CUDA(cudaMemset(gpu.payload, index + 1, kMaxBytes));
  void* wait = nullptr;
  CHECK_CUDA(cudaHostAlloc(&wait, sizeof(CudaWaitWords),
                           cudaHostAllocPortable | cudaHostAllocMapped));
  gpu.wait = new (wait) CudaWaitWords;
  CHECK_CUDA(LoadPutKernels());
  const cudaError_t error = cudaDeviceEnablePeerAccess(1 - index, 0);
  if (error != cudaErrorPeerAccessAlreadyEnabled) CHECK_CUDA(error);
  (void)cudaGetLastError();
  return OkStatus();
}

Status Put(const Gpu& from, const Gpu& to, int64_t bytes, uint64_t value) {
  CudaPut put;
  put.to = to.arrived;
  put.from = from.payload;
  put.bytes = bytes;
  put.flag = to.flag;
  put.value = value;
  put.words = from.words;
  CHECK_CUDA(LaunchPut(put, from.stream));
  return OkStatus();
}

Status Wait(const Gpu& gpu, uint64_t value) {
  CudaWait wait;
  wait.flag = gpu.flag;
  wait.value = value;
  wait.limit_ns = 2'000'000'000;
  wait.wait = gpu.wait;
  wait.words = gpu.words;
  CHECK_CUDA(LaunchWait(wait, gpu.stream));
  return OkStatus();
}

// Both GPUs' parts in a thread of their own; `body(gpu, other, meet)`.
using Meet = std::function<void()>;
using Body = std::function<Status(Gpu&, Gpu&, const Meet&)>;
Status InThreads(Gpu (&gpus)[2], const Body& body) {
  std::mutex mutex;
  std::condition_variable changed;
  int waiting = 0;
  int turn = 0;
  bool broken = false;  // one of the two will not come any more
  const Meet meet = [&] {
    std::unique_lock lock(mutex);
    const int mine = turn;
    if (++waiting == 2) {
      waiting = 0;
      ++turn;
      changed.notify_all();
      return;
    }
    changed.wait(lock, [&] { return turn != mine || broken; });
  };
  Status results[2];
  std::thread threads[2];
  for (int i = 0; i < 2; ++i) {
    threads[i] = std::thread([&, i] {
      results[i] = CudaStatus(cudaSetDevice(i), "cudaSetDevice");
      if (results[i].ok()) results[i] = body(gpus[i], gpus[1 - i], meet);
      if (results[i].ok()) return;
      std::unique_lock lock(mutex);
      broken = true;
      changed.notify_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  BATON_RETURN_IF_ERROR(results[0]);
  return results[1];
}

// Records `submit` as the GPU's graph.
Status Record(Gpu& gpu, const std::function<Status()>& submit) {
  if (gpu.graph != nullptr) CHECK_CUDA(cudaGraphExecDestroy(gpu.graph));
  gpu.graph = nullptr;
  CHECK_CUDA(
      cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
  const Status submitted = submit();
  cudaGraph_t graph = nullptr;
  CHECK_CUDA(cudaStreamEndCapture(gpu.stream, &graph));
  BATON_RETURN_IF_ERROR(submitted);
  CHECK_CUDA(cudaGraphInstantiate(&gpu.graph, graph, 0));
  CHECK_CUDA(cudaGraphDestroy(graph));
  return OkStatus();
}

// Microseconds that `submit` took, by the GPU's clock, at each replay.
Status Time(Gpu& gpu, const Meet& meet, const std::function<Status()>& submit,
            std::vector<double>& out) {
  for (int i = 0; i < kReplays + 2; ++i) {
    CHECK_CUDA(cudaMemsetAsync(gpu.flag, 0, 8, gpu.stream));
    CHECK_CUDA(cudaStreamSynchronize(gpu.stream));
    meet();
    // The second starts ahead, so that the first does not wait for its launch.
    if (gpu.index == 0) absl::SleepFor(absl::Milliseconds(1));
    CHECK_CUDA(cudaEventRecord(gpu.begin, gpu.stream));
    BATON_RETURN_IF_ERROR(submit());
    CHECK_CUDA(cudaEventRecord(gpu.end, gpu.stream));
    CHECK_CUDA(cudaStreamSynchronize(gpu.stream));
    meet();
    float ms = 0;
    CHECK_CUDA(cudaEventElapsedTime(&ms, gpu.begin, gpu.end));
    if (i >= 2 && gpu.index == 0) out.push_back(1e3 * ms);
  }
  if (gpu.wait->failure != 0) return Internal("a wait failed");
  return OkStatus();
}

Status DirectHops(Gpu& gpu, Gpu& other, int64_t bytes) {
  for (uint64_t hop = 1; hop <= kHops; ++hop) {
    if ((hop % 2 == 1) == (gpu.index == 0)) {
      BATON_RETURN_IF_ERROR(Put(gpu, other, bytes, hop));
    } else {
      BATON_RETURN_IF_ERROR(Wait(gpu, hop));
    }
  }
  return OkStatus();
}

Status NcclHops(Gpu& gpu, int64_t bytes, int hops) {
  const int peer = 1 - gpu.index;
  const auto count = static_cast<size_t>(bytes);
  for (int hop = 1; hop <= hops; ++hop) {
    if ((hop % 2 == 1) == (gpu.index == 0)) {
      CHECK_NCCL(
          ncclSend(gpu.payload, count, ncclInt8, peer, gpu.comm, gpu.stream));
    } else {
      CHECK_NCCL(
          ncclRecv(gpu.arrived, count, ncclInt8, peer, gpu.comm, gpu.stream));
    }
  }
  return OkStatus();
}

void Hops(const std::string& name, Gpu (&gpus)[2],
          const std::function<Status(Gpu&, Gpu&)>& submit, bool graphs) {
  if (!Begin(name)) return;
  std::vector<double> times;
  const Status status =
      InThreads(gpus, [&](Gpu& gpu, Gpu& other, const Meet& meet) -> Status {
        const auto once = [&] { return submit(gpu, other); };
        if (!graphs) return Time(gpu, meet, once, times);
        BATON_RETURN_IF_ERROR(Record(gpu, once));
        const auto launch = [&]() -> Status {
          CHECK_CUDA(cudaGraphLaunch(gpu.graph, gpu.stream));
          return OkStatus();
        };
        return Time(gpu, meet, launch, times);
      });
  if (!status.ok()) return Fail(name, ToString(status));
  std::sort(times.begin(), times.end());
  Report(name, fmt::format("{:.2f} us a hop (best {:.2f}, worst {:.2f})",
                           times[times.size() / 2] / kHops,
                           times.front() / kHops, times.back() / kHops));
}

void Bandwidth(const std::string& name, Gpu (&gpus)[2], int64_t bytes,
               const std::function<Status(Gpu&, Gpu&)>& submit) {
  if (!Begin(name)) return;
  std::vector<double> times;
  const Status status =
      InThreads(gpus, [&](Gpu& gpu, Gpu& other, const Meet& meet) -> Status {
        return Time(
            gpu, meet, [&] { return submit(gpu, other); }, times);
      });
  if (!status.ok()) return Fail(name, ToString(status));
  std::sort(times.begin(), times.end());
  const double us = times[times.size() / 2] / kTransfers;
  Report(name, fmt::format("{:.0f} us, {:.0f} GB/s", us,
                           static_cast<double>(bytes) / 1e3 / us));
}

Status OpenNccl(Gpu (&gpus)[2]) {
  ncclUniqueId id;
  CHECK_NCCL(ncclGetUniqueId(&id));
  return InThreads(gpus, [&](Gpu& gpu, Gpu&, const Meet&) -> Status {
    CHECK_NCCL(ncclCommInitRank(&gpu.comm, 2, id, gpu.index));
    // Connects both directions, outside of any recording.
    BATON_RETURN_IF_ERROR(NcclHops(gpu, 16, 2));
    CHECK_CUDA(cudaStreamSynchronize(gpu.stream));
    return OkStatus();
  });
}

}  // namespace

void MeasureHops(int gpus) {
  if (gpus < 2) return;
  if (!Begin("latency") && !Begin("bandwidth")) return;
  Gpu pair[2];
  for (int i = 0; i < 2; ++i) {
    const Status opened = Open(pair[i], i);
    if (!opened.ok()) return Fail("latency: open", ToString(opened));
  }
  const Status nccl = OpenNccl(pair);
  if (!nccl.ok()) return Fail("latency: nccl", ToString(nccl));
  for (const int rows : {1, 64}) {
    const int64_t bytes = int64_t{rows} * kColumns * 2;
    const auto name = [&](const char* what) {
      return fmt::format("latency, {}, {} rows", what, rows);
    };
    Hops(
        name("direct, graphs"), pair,
        [&](Gpu& gpu, Gpu& other) { return DirectHops(gpu, other, bytes); },
        true);
    Hops(
        name("nccl, graphs"), pair,
        [&](Gpu& gpu, Gpu&) { return NcclHops(gpu, bytes, kHops); }, true);
    Hops(
        name("direct, launched"), pair,
        [&](Gpu& gpu, Gpu& other) { return DirectHops(gpu, other, bytes); },
        false);
    Hops(
        name("nccl, launched"), pair,
        [&](Gpu& gpu, Gpu&) { return NcclHops(gpu, bytes, kHops); }, false);
  }
  for (const int64_t bytes : {int64_t{32} << 20, int64_t{64} << 20}) {
    const auto name = [&](const char* what) {
      return fmt::format("bandwidth, {}, {} MiB", what, bytes >> 20);
    };
    Bandwidth(name("direct"), pair, bytes, [&](Gpu& gpu, Gpu& other) -> Status {
      for (int i = 1; gpu.index == 0 && i <= kTransfers; ++i) {
        BATON_RETURN_IF_ERROR(Put(gpu, other, bytes, static_cast<uint64_t>(i)));
      }
      return gpu.index == 0 ? OkStatus() : Wait(gpu, kTransfers);
    });
    Bandwidth(name("nccl"), pair, bytes, [&](Gpu& gpu, Gpu&) -> Status {
      const auto count = static_cast<size_t>(bytes);
      for (int i = 0; i < kTransfers; ++i) {
        CHECK_NCCL(gpu.index == 0 ? ncclSend(gpu.payload, count, ncclInt8, 1,
                                             gpu.comm, gpu.stream)
                                  : ncclRecv(gpu.arrived, count, ncclInt8, 0,
                                             gpu.comm, gpu.stream));
      }
      return OkStatus();
    });
    Bandwidth(name("copy engine"), pair, bytes,
              [&](Gpu& gpu, Gpu& other) -> Status {
                for (int i = 0; gpu.index == 0 && i < kTransfers; ++i) {
                  CHECK_CUDA(cudaMemcpyPeerAsync(other.arrived, 1, gpu.payload,
                                                 0, static_cast<size_t>(bytes),
                                                 gpu.stream));
                }
                return OkStatus();
              });
  }
}

}  // namespace baton::check
