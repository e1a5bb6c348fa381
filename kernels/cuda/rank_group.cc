// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rank_group.h"

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/all_reduce.h"
#include "kernels/cuda/kernels.h"
#include "runtime/tensor/cuda_device.h"
#include "runtime/tensor/shape_match.h"
#include "runtime/transport/inproc_collective.h"

namespace baton {
namespace cuda {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kMailBytes = int64_t{2} * kRankBlocks * kRankSlotBytes;
constexpr int64_t kQuickBytes = int64_t{2} * kRankBlocks * kQuickSlotBytes;
constexpr int64_t kCountBytes = kRankBlocks * int64_t{sizeof(uint32_t)};

// What a rank's GPU has for the group: slots, quick slots, flags, calls.
struct RankMemory {
  Buffer buffer;
  int gpu = 0;

  [[nodiscard]] std::byte* slots() const { return buffer.data(); }
  [[nodiscard]] std::byte* quick() const { return buffer.data() + kMailBytes; }
  [[nodiscard]] uint32_t* flags() const {
    return reinterpret_cast<uint32_t*>(quick() + kQuickBytes);
  }
  [[nodiscard]] uint32_t* calls() const { return flags() + kRankBlocks; }
};

StatusOr<RankMemory> NewMemory(Device& device) {
  RankMemory memory;
  constexpr int64_t kCleared = kQuickBytes + 2 * kCountBytes;
  const int64_t bytes = kMailBytes + kCleared;
  BATON_ASSIGN_OR_RETURN(memory.buffer, device.Allocate(bytes));
  cudaPointerAttributes attributes = {};
  BATON_RETURN_IF_ERROR(CudaStatus(
      cudaPointerGetAttributes(&attributes, memory.buffer.data()), "ranks"));
  memory.gpu = attributes.device;
  BATON_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(memory.gpu), "ranks"));
  BATON_RETURN_IF_ERROR(
      CudaStatus(cudaMemset(memory.quick(), 0, kCleared), "ranks"));
  BATON_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "ranks"));
  return memory;
}

// Lets `from` reach the memory of `to`.
Status Reach(int from, int to) {
  if (from == to) return OkStatus();
  int can = 0;
  BATON_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceCanAccessPeer(&can, from, to), "ranks"));
  if (can == 0) {
    return Unimplemented(
        "GPU {} cannot reach the memory of GPU {}: they cannot "
        "be ranks of one stage",
        from, to);
  }
  BATON_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(from), "ranks"));
  const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return OkStatus();
  }
  return CudaStatus(error, "ranks: reach a peer's memory");
}

// The visits that a GPU runs last, of all groups of the process.
class Turns {
 public:
  static Turns& Get() {
    static auto* const turns = new Turns;
    return *turns;
  }

  // What is submitted to `stream`, of that GPU, waits for others' visits.
  Status Await(const RankGroup* group, int gpu, Stream& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(gpu_submissions) {
    for (const Visit& visit : last_[gpu]) {
      if (visit.group == group) continue;
      BATON_RETURN_IF_ERROR(stream.WaitFor(*visit.done));
    }
    return OkStatus();
  }
  void Forget(int gpu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gpu_submissions) {
    last_.erase(gpu);
  }
  Status Add(const RankGroup* group, int gpu, Stream& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(gpu_submissions) {
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<Event> done, stream.Record());
    last_[gpu].push_back({group, std::move(done)});
    return OkStatus();
  }

 private:
  struct Visit {
    const RankGroup* group;  // may be gone, with nothing left to wait for
    std::unique_ptr<Event> done;
  };
  std::map<int, std::vector<Visit>> last_ ABSL_GUARDED_BY(gpu_submissions);
};

class Ranks;

class Rank final : public Collective {
 public:
  Rank(Ranks* group, int rank) : group_(group), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return kRanks; }
  Status AllReduce(ConstView partial, View out, Stream& stream) override;
  Status AllGather(ConstView x, View out, Stream& stream) override;
  Status Meet() override;
  // Submits a call between two meetings of the ranks' threads.
  Status Submit(std::string_view what,
                const std::function<cudaError_t()>& call) {
    BATON_RETURN_IF_ERROR(Meet());
    BATON_RETURN_IF_ERROR(CudaStatus(call(), what));
    return Meet();
  }

  [[nodiscard]] RankLinks links() const;

 private:
  Ranks* group_;
  int rank_;
};

class Ranks final : public RankGroup {
 public:
  static StatusOr<std::unique_ptr<RankGroup>> Create(
      std::span<Device* const> devices, absl::Duration patience) {
    if (devices.size() != kRanks) {
      return Unimplemented("{} ranks on GPUs, expected {}", devices.size(),
                           kRanks);
    }
    std::unique_ptr<Ranks> ranks(new Ranks(patience));
    for (int i = 0; i < kRanks; ++i) {
      BATON_ASSIGN_OR_RETURN(ranks->memory_[static_cast<size_t>(i)],
                             NewMemory(*devices[static_cast<size_t>(i)]));
    }
    const auto& [a, b] = ranks->memory_;
    BATON_RETURN_IF_ERROR(Reach(a.gpu, b.gpu));
    BATON_RETURN_IF_ERROR(Reach(b.gpu, a.gpu));
    BATON_RETURN_IF_ERROR(
        CudaStatus(cudaHostAlloc(reinterpret_cast<void**>(&ranks->words_),
                                 sizeof(RankWords), cudaHostAllocPortable),
                   "ranks"));
    *ranks->words_ = {};
    return std::unique_ptr<RankGroup>(std::move(ranks));
  }
  ~Ranks() override { cudaFreeHost(words_); }

  Collective& rank(int rank) override {
    return ranks_[static_cast<size_t>(rank)];
  }
  Status InTurn(std::span<Stream* const> streams,
                const std::function<Status()>& submit) override {
    const absl::MutexLock lock(&gpu_submissions);
    Turns& turns = Turns::Get();
    for (size_t i = 0; i < memory_.size(); ++i) {
      BATON_RETURN_IF_ERROR(turns.Await(this, memory_[i].gpu, *streams[i]));
    }
    BATON_RETURN_IF_ERROR(submit());
    for (const RankMemory& memory : memory_) turns.Forget(memory.gpu);
    for (size_t i = 0; i < memory_.size(); ++i) {
      BATON_RETURN_IF_ERROR(turns.Add(this, memory_[i].gpu, *streams[i]));
    }
    return OkStatus();
  }
  void Abort(const Status& why) override {
    host_.Abort(why);
    *static_cast<volatile uint32_t*>(&words_->abort) = 1;
  }
  Status Renew() override {
    Status ended = host_.Renew();
    if (!ended.ok()) host_.Abort(ended);
    return ended;
  }

  // The ranks' threads.
  [[nodiscard]] InprocRanks& host() { return host_; }
  [[nodiscard]] RankLinks links(int rank) const {
    const RankMemory& mine = memory_[static_cast<size_t>(rank)];
    const RankMemory& other = memory_[static_cast<size_t>(1 - rank)];
    return {.mine = mine.slots(),
            .other = other.slots(),
            .my_quick = mine.quick(),
            .other_quick = other.quick(),
            .my_flags = mine.flags(),
            .other_flags = other.flags(),
            .calls = mine.calls(),
            .words = words_,
            .patience_ns =
                static_cast<uint64_t>(absl::ToInt64Nanoseconds(patience_))};
  }

 private:
  explicit Ranks(absl::Duration patience)
      : patience_(patience), host_(kRanks, patience) {}

  absl::Duration patience_;
  std::array<RankMemory, kRanks> memory_;
  std::array<Rank, kRanks> ranks_ = {Rank(this, 0), Rank(this, 1)};
  RankWords* words_ = nullptr;  // pinned
  InprocRanks host_;
};

Status Rank::Meet() { return group_->host().Meet(); }
RankLinks Rank::links() const { return group_->links(rank_); }

Status Rank::AllReduce(ConstView partial, View out, Stream& stream) {
  ShapeMatch match("all_reduce");
  match.Match("partial", partial, {"rows", "n"})
      .Match("out", out, {"rows", "n"})
      .IsType("partial", partial, DType::kF32);
  match.Require(partial.contiguous(), "partial is contiguous")
      .Require(out.dtype() == DType::kF32 || out.dtype() == DType::kBF16,
               "out is f32 or bf16");
  BATON_RETURN_IF_ERROR(match.status());
  return Submit("all_reduce", [&] {
    return AllReduceRows(
        links(),
        {.partial = reinterpret_cast<const float*>(partial.data()),
         .out = out.data(),
         .out_stride = out.row_stride(),
         .out_f32 = out.dtype() == DType::kF32,
         .rows = match["rows"],
         .size = match["n"]},
        CudaStreamOf(stream));
  });
}

Status Rank::AllGather(ConstView x, View out, Stream& stream) {
  ShapeMatch match("all_gather");
  match.Match("x", x, {"rows", "n"});
  match.Require(x.contiguous(), "x is contiguous");
  if (out.data() != nullptr) {
    match.Match("out", out, {"rows", "all"}).IsType("out", out, x.dtype());
    match.Require(match["all"] == kRanks * match["n"], "out has both ranks' n");
  }
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t size = SizeOf(x.dtype());
  const bool wanted = out.data() != nullptr;
  return Submit("all_gather", [&] {
    return AllGatherRows(links(),
                         {.x = x.data(),
                          .out = out.data(),
                          .out_stride = wanted ? out.row_stride() * size : 0,
                          .rows = match["rows"],
                          .row_bytes = match["n"] * size,
                          .rank = rank_},
                         CudaStreamOf(stream));
  });
}

}  // namespace

Status AllReduceAddRmsNormCuda(const AllReduceAddRmsNorm::Args& args,
                               Stream& stream) {
  ShapeMatch match("all_reduce_add_rms_norm");
  match.Match("partial", args.partial, {"rows", "hidden"})
      .Match("stream", args.stream, {"rows", "hidden"})
      .Match("weight", args.weight, {"hidden"})
      .Match("out", args.out, {"rows", "hidden"})
      .IsType("partial", args.partial, DType::kF32)
      .IsType("weight", args.weight, DType::kBF16)
      .IsType("out", args.out, DType::kBF16);
  match.Require(args.partial.contiguous(), "partial is contiguous");
  BATON_RETURN_IF_ERROR(match.status());
  if (args.stream.dtype() != DType::kBF16) {
    BATON_RETURN_IF_ERROR(
        args.group->AllReduce(args.partial, args.out, stream));
    return AddRmsNormCuda({.stream = args.stream,
                           .update = args.out,
                           .weight = args.weight,
                           .out = args.out,
                           .eps = args.eps},
                          stream);
  }
  Rank& rank = static_cast<Rank&>(*args.group);  // of this device
  return rank.Submit("all_reduce_add_rms_norm", [&] {
    return AllReduceAddRmsNormRows(
        rank.links(),
        {.partial = reinterpret_cast<const float*>(args.partial.data()),
         .norm = {.residual = args.stream.data(),
                  .residual_stride = args.stream.row_stride(),
                  .update = nullptr,
                  .update_stride = 0,
                  .weight = args.weight.data(),
                  .out = args.out.data(),
                  .out_stride = args.out.row_stride(),
                  .rows = match["rows"],
                  .hidden = match["hidden"],
                  .eps = args.eps}},
        CudaStreamOf(stream));
  });
}

}  // namespace cuda

StatusOr<std::unique_ptr<RankGroup>> NewCudaRanks(
    std::span<Device* const> devices, absl::Duration patience) {
  return cuda::Ranks::Create(devices, patience);
}

}  // namespace baton
