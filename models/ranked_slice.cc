// SPDX-License-Identifier: Apache-2.0
#include "models/ranked_slice.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/devices/devices.h"
#include "kernels/ops/matmul.h"
#include "runtime/base/thread_pool.h"

namespace baton {
namespace {

// Between two meetings of ranks lie a few kernels of one layer.
constexpr absl::Duration kPatience = absl::Seconds(60);

// Whether ranks can go on with one another's sums over the columns.
Status CheckSums(const TensorDecl& decl, int ranks, DeviceKind device) {
  const int64_t k = decl.shape[1];
  if (device == DeviceKind::kCuda) {
    if (HasCudaHalves(k)) return OkStatus();
    return InvalidArgument(
        "{} {}: {} inputs are no multiple of {}, which two "
        "GPUs need to share them",
        decl.name, ToString(decl.shape), k, 2 * kCudaHalfDepth);
  }
  if (MatmulLeaves(k) % ranks == 0) return OkStatus();
  return InvalidArgument(
      "{} {}: sums over {} inputs have {} parts, too few for {} ranks",
      decl.name, ToString(decl.shape), k, MatmulLeaves(k), ranks);
}

Status CheckTensor(const TensorDecl& decl, int ranks, DeviceKind device) {
  const TensorSplit& split = decl.split;
  const bool divides = split.units % ranks == 0;
  const auto some = [ranks](int64_t units) {
    return units % ranks == 0 || ranks % units == 0;
  };
  int64_t parts = split.units;
  switch (split.kind) {
    case TensorSplit::Kind::kWhole:
      return OkStatus();
    case TensorSplit::Kind::kSomeRows:
      if (some(parts)) return OkStatus();
      break;
    case TensorSplit::Kind::kQueryKeyValue:
      if (divides && some(split.kv_units)) return OkStatus();
      if (divides) parts = split.kv_units;
      break;
    case TensorSplit::Kind::kRows:
    case TensorSplit::Kind::kOneOf:
      if (divides) return OkStatus();
      break;
    case TensorSplit::Kind::kColumns:
      if (!divides) break;
      return decl.form == TensorForm::kPacked ? CheckSums(decl, ranks, device)
                                              : OkStatus();
  }
  return InvalidArgument("{} {}: {} equal parts do not divide among {} ranks",
                         decl.name, ToString(decl.shape), parts, ranks);
}

}  // namespace

Status CheckRanks(std::span<const TensorDecl> tensors, int ranks,
                  DeviceKind device) {
  if (ranks == 1) return OkStatus();
  if (ranks != 2 && ranks != 4 && ranks != 8) {
    return InvalidArgument("{} ranks, expected 1, 2, 4 or 8", ranks);
  }
  if (device == DeviceKind::kCuda && ranks > 2) {
    return Unimplemented("{} ranks on GPUs, expected 1 or 2", ranks);
  }
  for (const TensorDecl& decl : tensors) {
    BATON_RETURN_IF_ERROR(CheckTensor(decl, ranks, device));
  }
  return OkStatus();
}

struct RankThreads::State {
  void Work(int index) {
    uint64_t seen = 0;
    while (true) {
      const std::function<void(int)>* next = nullptr;
      {
        absl::MutexLock lock(&mutex);
        while (runs == seen && !stop) changed.Wait(&mutex);
        if (stop) return;
        seen = runs;
        next = body;
      }
      (*next)(index);
      absl::MutexLock lock(&mutex);
      if (--running == 0) changed.SignalAll();
    }
  }

  absl::Mutex mutex;
  absl::CondVar changed;
  const std::function<void(int)>* body ABSL_GUARDED_BY(mutex) = nullptr;
  uint64_t runs ABSL_GUARDED_BY(mutex) = 0;
  int running ABSL_GUARDED_BY(mutex) = 0;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  std::vector<std::thread> threads;  // the caller's apart
};

RankThreads::RankThreads(int count) : state_(std::make_unique<State>()) {
  State* state = state_.get();
  for (int index = 1; index < count; ++index) {
    state->threads.emplace_back([state, index] { state->Work(index); });
  }
}

RankThreads::~RankThreads() {
  {
    absl::MutexLock lock(&state_->mutex);
    state_->stop = true;
    state_->changed.SignalAll();
  }
  for (std::thread& thread : state_->threads) thread.join();
}

void RankThreads::Run(const std::function<void(int)>& body) {
  {
    absl::MutexLock lock(&state_->mutex);
    state_->body = &body;
    state_->running = static_cast<int>(state_->threads.size());
    ++state_->runs;
    state_->changed.SignalAll();
  }
  body(0);
  absl::MutexLock lock(&state_->mutex);
  while (state_->running > 0) state_->changed.Wait(&state_->mutex);
}

StatusOr<std::unique_ptr<StageSlice>> RankedSlice::Build(
    const SliceOptions& options, const BuildOne& build) {
  if (options.ranks == 1) return build(options);
  BATON_RETURN_IF_ERROR(CheckRanks({}, options.ranks, options.device->kind()));
  std::unique_ptr<RankedSlice> slice(new RankedSlice(options.ranks));
  BATON_RETURN_IF_ERROR(slice->Open(options));
  BATON_RETURN_IF_ERROR(slice->Load(options, build));
  return std::unique_ptr<StageSlice>(std::move(slice));
}

Status RankedSlice::Open(const SliceOptions& options) {
  const bool host = options.device->kind() == DeviceKind::kCpu;
  if (!host && options.rank_devices.size() + 1 != ranks_.size()) {
    return InvalidArgument(
        "{} ranks on {} GPUs: name a GPU for each, as cuda:0+1 does",
        ranks_.size(), options.rank_devices.size() + 1);
  }
  std::vector<Device*> devices;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    if (host) {
      const int threads = PoolOf(*options.stream).threads();
      rank.own_device = NewCpuDevice(std::max(1, threads / options.ranks));
    }
    rank.device = host     ? rank.own_device.get()
                  : i == 0 ? options.device
                           : options.rank_devices[i - 1];
    rank.stream = options.stream;  // of the first GPU: results are ready on it
    if (host || i > 0) {
      BATON_ASSIGN_OR_RETURN(rank.own_stream, rank.device->NewStream());
      rank.stream = rank.own_stream.get();
    }
    devices.push_back(rank.device);
    streams_.push_back(rank.stream);
  }
  BATON_ASSIGN_OR_RETURN(group_, NewRankGroup(devices, kPatience));
  threads_ = std::make_unique<RankThreads>(options.ranks);
  return OkStatus();
}

Status RankedSlice::Load(const SliceOptions& options, const BuildOne& build) {
  return ForRanks([&](int index) -> Status {
    Rank& rank = ranks_[static_cast<size_t>(index)];
    SliceOptions one = options;
    one.ranks = 1;
    one.tp = &group_->rank(index);
    one.device = rank.device;
    one.stream = rank.stream;
    // Ranks load alike: the first one's progress is the stage's.
    if (index > 0) one.progress = nullptr;
    BATON_ASSIGN_OR_RETURN(rank.slice, build(one));
    return OkStatus();
  });
}

Status RankedSlice::ForRanks(const std::function<Status(int)>& body) {
  threads_->Run([&](int index) {
    // The others may be waiting for this one.
    if (Status status = body(index); !status.ok()) group_->Abort(status);
  });
  return group_->Renew();
}

StatusOr<VisitResult> RankedSlice::Run(const VisitArgs& args) {
  VisitResult first;
  // What the visit reads is there when the first rank's stream is.
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Event> ready,
                         ranks_[0].stream->Record());
  const auto visit = [&](int index) -> Status {
    Rank& rank = ranks_[static_cast<size_t>(index)];
    if (index > 0) BATON_RETURN_IF_ERROR(rank.stream->WaitFor(*ready));
    BATON_ASSIGN_OR_RETURN(VisitResult result, rank.slice->Run(args));
    if (index == 0) first = std::move(result);
    return OkStatus();
  };
  BATON_RETURN_IF_ERROR(
      group_->InTurn(streams_, [&] { return ForRanks(visit); }));
  return first;
}

int64_t RankedSlice::WeightBytes() const {
  int64_t bytes = 0;
  for (const Rank& rank : ranks_) bytes += rank.slice->WeightBytes();
  return bytes;
}

int64_t RankedSlice::KvBytes() const {
  int64_t bytes = 0;
  for (const Rank& rank : ranks_) bytes += rank.slice->KvBytes();
  return bytes;
}

}  // namespace baton
