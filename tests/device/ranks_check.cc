// SPDX-License-Identifier: Apache-2.0
// Checks and measures the sums, moves and products of two ranks on GPUs: on two
// where there are two, else both on one.
//   ranks_check [check|speed]
// Exit status: 0 if nothing failed.
#include "tests/device/ranks_check.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <barrier>

#include "kernels/cuda/kernels.h"

namespace baton::check {
namespace {

constexpr float kEps = 1e-5f;

void CheckSum(Pair& pair, int64_t rows, int64_t n) {
  const std::string what = fmt::format("sum of {} rows of {}", rows, n);
  const std::vector<float> a = Random<float>(rows * n, 1);
  const std::vector<float> b = Random<float>(rows * n, 2);
  std::vector<float> sum;
  std::vector<bf16> rounded;
  for (size_t i = 0; i < a.size(); ++i) {
    sum.push_back(a[i] + b[i]);
    rounded.push_back(static_cast<bf16>(sum.back()));
  }
  const std::vector<bf16> stream_rows = Random<bf16>(rows * n, 3);
  const std::vector<bf16> weight = Random<bf16>(n, 4);
  pair.Run([&](int rank, End& end, Collective& group) {
    const Tensor partial =
        end.Upload(DType::kF32, {rows, n}, rank == 0 ? a.data() : b.data());
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Tensor out = Tensor::Allocate(*end.device, dtype, {rows, n}).value();
      const Status status =
          group.AllReduce(partial.view(), out.view(), *end.stream);
      Expect(status.ok(), what + ": " + std::string(status.message()));
      const std::vector<std::byte> got = end.Download(out);
      Expect(dtype == DType::kF32 ? Equal(got, sum) : Equal(got, rounded),
             fmt::format("{} as {}, rank {}", what, Name(dtype), rank));
    }
    // The joint kernel has the bits of the sum, then AddRmsNorm.
    const Tensor scale = end.Upload(DType::kBF16, {n}, weight.data());
    const Tensor update = end.Upload(DType::kBF16, {rows, n}, rounded.data());
    const Tensor stream =
        end.Upload(DType::kBF16, {rows, n}, stream_rows.data());
    const Tensor apart =
        end.Upload(DType::kBF16, {rows, n}, stream_rows.data());
    Tensor out = Tensor::Allocate(*end.device, DType::kBF16, {rows, n}).value();
    Expect(cuda::AddRmsNormCuda({.stream = apart.view(),
                                 .update = update.view(),
                                 .weight = scale.view(),
                                 .out = update.view(),
                                 .eps = kEps},
                                *end.stream)
               .ok(),
           what + ": norm");
    Expect(cuda::AllReduceAddRmsNormCuda({.group = &group,
                                          .partial = partial.view(),
                                          .stream = stream.view(),
                                          .weight = scale.view(),
                                          .out = out.view(),
                                          .eps = kEps},
                                         *end.stream)
               .ok(),
           what + ": joint");
    Expect(end.Download(out) == end.Download(update) &&
               end.Download(stream) == end.Download(apart),
           fmt::format("{}, addition and norm in one, rank {}", what, rank));
  });
}

template <typename T>
void CheckGather(Pair& pair, DType dtype, int64_t rows, int64_t n, bool both) {
  const std::vector<T> parts[] = {Random<T>(rows * n, 5),
                                  Random<T>(rows * n, 6)};
  std::vector<T> all;
  for (int64_t row = 0; row < rows; ++row) {
    for (const std::vector<T>& part : parts) {
      all.insert(all.end(), part.begin() + row * n,
                 part.begin() + (row + 1) * n);
    }
  }
  pair.Run([&](int rank, End& end, Collective& group) {
    const Tensor x = end.Upload(dtype, {rows, n}, parts[rank].data());
    Tensor out;
    if (both || rank == 0) {
      out = Tensor::Allocate(*end.device, dtype, {rows, 2 * n}).value();
    }
    const Status status = group.AllGather(x.view(), out.view(), *end.stream);
    const std::string what = fmt::format("{} rows of {} {} gathered, rank {}",
                                         rows, n, Name(dtype), rank);
    Expect(status.ok(), what + ": " + std::string(status.message()));
    if (!out.empty()) Expect(Equal(end.Download(out), all), what);
    Expect(end.stream->Synchronize().ok(), what);
  });
}

// Calls of changing sizes, recorded and launched many times, ranks far apart.
void CheckGraphs(Pair& pair) {
  constexpr int64_t kN = 512;
  constexpr int kLaunches = 200;
  const std::vector<float> ones(64 * kN, 1.0f);
  pair.Run([&](int rank, End& end, Collective& group) {
    std::vector<Tensor> sums;
    Tensor first = end.Upload(DType::kF32, {64, kN}, ones.data());
    Tensor a = Tensor::Allocate(*end.device, DType::kF32, {64, kN}).value();
    BATON_CHECK(end.stream->BeginCapture().ok());
    // Doubles [0, rows) each time, so that a stale part would show.
    BATON_CHECK(end.device
                    ->Copy(a.view().data(), first.view().data(), first.bytes(),
                           *end.stream)
                    .ok());
    for (const int64_t rows : {64, 1, 33, 2, 64, 7}) {
      const View part = a.view().Rows(0, rows);
      BATON_CHECK(group.AllReduce(part, part, *end.stream).ok());
    }
    const std::unique_ptr<Graph> graph = end.stream->EndCapture().value();
    for (int i = 0; i < kLaunches; ++i) {
      if (i % 50 == rank * 25) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      BATON_CHECK(graph->Launch().ok());
    }
    std::vector<float> wanted;
    for (int64_t row = 0; row < 64; ++row) {
      const float value = row < 1    ? 64.0f
                          : row < 2  ? 32.0f
                          : row < 7  ? 16.0f
                          : row < 33 ? 8.0f
                                     : 4.0f;
      wanted.insert(wanted.end(), kN, value);
    }
    Expect(Equal(end.Download(a), wanted),
           fmt::format("graphs, rank {}", rank));
  });
}

// A group's visits, one a round: they allocate and clear between sums.
void VisitInTurn(Pair& pair, int64_t n) {
  constexpr int kVisits = 60;
  constexpr int64_t kRows = 64;
  const std::string what = fmt::format("visits in turn, {} columns", n);
  const std::vector<float> ones(static_cast<size_t>(kRows * n), 1.0f);
  std::array<Tensor, 2> sums;
  std::array<Stream*, 2> streams = {};
  for (size_t i = 0; i < sums.size(); ++i) {
    streams[i] = pair.ends[i].stream.get();
    sums[i] = pair.ends[i].Upload(DType::kF32, {kRows, n}, ones.data());
  }
  for (int64_t visit = 0; visit < kVisits; ++visit) {
    const int64_t rows = 1 + visit % kRows;
    const auto submit = [&] {
      pair.Run([&](int rank, End& end, Collective& group) {
        const View sum = sums[static_cast<size_t>(rank)].view();
        for (const View& part : {sum, sum.Rows(0, rows)}) {
          const int64_t bytes = 3000 * (visit + 1) + 4 * part.dim(0) + rank;
          const Buffer more = end.device->Allocate(bytes).value();
          Expect(end.device->Clear(more.data(), bytes, *end.stream).ok() &&
                     group.AllReduce(part, part, *end.stream).ok(),
                 what);
        }
      });
      return OkStatus();
    };
    Expect(pair.group->InTurn(streams, submit).ok(), what);
    for (size_t i = 0; i < sums.size(); ++i) {
      const std::vector<std::byte> got = pair.ends[i].Download(sums[i]);
      std::vector<float> wanted(static_cast<size_t>(rows * n), 4.0f);
      wanted.resize(static_cast<size_t>(kRows * n), 2.0f);
      Expect(Equal(got, wanted), fmt::format("{}, rank {}", what, i));
      sums[i] = pair.ends[i].Upload(DType::kF32, {kRows, n}, ones.data());
    }
  }
}

// Groups that share their GPUs, as stages do, each with a thread of its own.
void CheckTurns() {
  std::array<Pair, 3> pairs;
  std::vector<std::thread> stages;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const int64_t n = 64 * static_cast<int64_t>(i + 1);
    stages.emplace_back([&pairs, i, n] { VisitInTurn(pairs[i], n); });
  }
  for (std::thread& stage : stages) stage.join();
}

void CheckAbort() {
  Pair pair;
  End& end = pair.ends[0];
  Collective& rank = pair.group->rank(0);
  const std::vector<float> ones(64, 1.0f);
  const Tensor x = end.Upload(DType::kF32, {1, 64}, ones.data());
  Tensor out = Tensor::Allocate(*end.device, DType::kF32, {1, 64}).value();
  Status alone;
  std::thread waits(
      [&] { alone = rank.AllReduce(x.view(), out.view(), *end.stream); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  pair.group->Abort(Internal("the other rank has failed"));
  waits.join();
  Expect(!alone.ok(), "abort: who waits is told");
  Expect(!rank.AllReduce(x.view(), out.view(), *end.stream).ok(),
         "abort: who comes is told");
  Expect(!pair.group->Renew().ok() && !rank.Meet().ok(),
         "abort: the group stays ended");
  Expect(end.stream->Synchronize().ok(), "abort: the GPU is not held up");
}

// The mean time of a call in a graph of many, in microseconds.
double Time(End& end, std::barrier<>& together,
            const std::function<void()>& call) {
  constexpr int kCalls = 100;
  constexpr int kLaunches = 20;
  BATON_CHECK(end.stream->BeginCapture().ok());
  for (int i = 0; i < kCalls; ++i) call();
  const std::unique_ptr<Graph> graph = end.stream->EndCapture().value();
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    BATON_CHECK(graph->Launch().ok() && end.stream->Synchronize().ok());
    together.arrive_and_wait();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kLaunches; ++i) BATON_CHECK(graph->Launch().ok());
    BATON_CHECK(end.stream->Synchronize().ok());
    const std::chrono::duration<double, std::micro> took =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / (kCalls * kLaunches));
  }
  return best;
}

void Measure(Pair& pair, int64_t rows, int64_t n) {
  ncclComm_t comms[2];
  const int gpus[] = {0, 1};
  if (ncclCommInitAll(comms, 2, gpus) != ncclSuccess) {
    Expect(false, "NCCL does not start");
    return;
  }
  std::barrier together(2);
  const std::vector<bf16> zeros(static_cast<size_t>(rows * n));
  pair.Run([&](int rank, End& end, Collective& group) {
    const std::vector<float> x = Random<float>(rows * n, 7);
    const Tensor partial = end.Upload(DType::kF32, {rows, n}, x.data());
    const Tensor stream = end.Upload(DType::kBF16, {rows, n}, zeros.data());
    const Tensor weight = end.Upload(DType::kBF16, {n}, zeros.data());
    const Tensor out = end.Upload(DType::kBF16, {rows, n}, zeros.data());
    const double joint = Time(end, together, [&] {
      BATON_CHECK(cuda::AllReduceAddRmsNormCuda({.group = &group,
                                                 .partial = partial.view(),
                                                 .stream = stream.view(),
                                                 .weight = weight.view(),
                                                 .out = out.view(),
                                                 .eps = kEps},
                                                *end.stream)
                      .ok());
    });
    const double nccl = Time(end, together, [&] {
      BATON_CHECK(ncclAllReduce(out.view().data(), out.view().data(),
                                static_cast<size_t>(rows * n), ncclBfloat16,
                                ncclSum, comms[rank],
                                CudaStreamOf(*end.stream)) == ncclSuccess);
      BATON_CHECK(cuda::AddRmsNormCuda({.stream = stream.view(),
                                        .update = out.view(),
                                        .weight = weight.view(),
                                        .out = out.view(),
                                        .eps = kEps},
                                       *end.stream)
                      .ok());
    });
    if (rank == 0) {
      std::printf(
          "all-reduce + add + norm, %lld rows of %lld: %.2f us; NCCL "
          "(bf16), then add + norm: %.2f us\n",
          static_cast<long long>(rows), static_cast<long long>(n), joint, nccl);
    }
  });
  for (ncclComm_t comm : comms) ncclCommDestroy(comm);
}

void Check() {
  Pair pair;
  for (const int64_t rows : {1, 2, 5, 63, 64, 65, 1100}) {
    for (const int64_t n : {64, 60, 2048, 5120, 8192}) CheckSum(pair, rows, n);
  }
  CheckSum(pair, 3, 20000);
  for (const bool both : {true, false}) {
    for (const int64_t rows : {1, 3, 64, 700}) {
      CheckGather<bf16>(pair, DType::kBF16, rows, 30, both);
      CheckGather<bf16>(pair, DType::kBF16, rows, 2560, both);
    }
    for (const int64_t rows : {1, 64}) {
      CheckGather<float>(pair, DType::kF32, rows, 65536, both);
    }
  }
  CheckGraphs(pair);
  CheckProducts(pair);
  CheckTurns();
  CheckAbort();
}

}  // namespace
}  // namespace baton::check

int main(int argc, char** argv) {
  using namespace baton::check;
  const std::atomic<int>& failures = TheFailures();
  const std::string what = argc > 1 ? argv[1] : "check";
  std::printf("%d GPUs\n", baton::CudaDeviceCount());
  if (what == "check") Check();
  if (what == "speed" && baton::CudaDeviceCount() > 1) {
    Pair pair;
    for (const int64_t rows : {1, 8, 64}) Measure(pair, rows, 5120);
  }
  std::printf("%s: %d failed\n", failures == 0 ? "PASS" : "FAIL",
              failures.load());
  return failures == 0 ? 0 : 1;
}
