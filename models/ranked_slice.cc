// SPDX-License-Identifier: Apache-2.0
#include "models/ranked_slice.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/ops/matmul.h"
#include "runtime/base/thread_pool.h"

namespace baton {
namespace {

// Between two meetings of ranks lie a few kernels of one layer.
constexpr absl::Duration kPatience = absl::Seconds(60);

Status CheckTensor(const TensorDecl& decl, int ranks) {
  const TensorSplit& split = decl.split;
  const bool divides = split.units % ranks == 0;
  switch (split.kind) {
    case TensorSplit::Kind::kWhole:
      return OkStatus();
    case TensorSplit::Kind::kOneRank:
      return Unimplemented("{}: its layer runs on one rank, not on {}",
                           decl.name, ranks);
    case TensorSplit::Kind::kSomeRows:
      if (divides || ranks % split.units == 0) return OkStatus();
      break;
    case TensorSplit::Kind::kRows:
      if (divides) return OkStatus();
      break;
    case TensorSplit::Kind::kColumns:
      if (!divides) break;
      const bool summed = decl.form != TensorForm::kPlain;
      if (!summed || MatmulLeaves(decl.shape[1]) % ranks == 0) {
        return OkStatus();
      }
      return InvalidArgument(
          "{} {}: sums over {} inputs have {} parts, too few for {} ranks",
          decl.name, ToString(decl.shape), decl.shape[1],
          MatmulLeaves(decl.shape[1]), ranks);
  }
  return InvalidArgument("{} {}: {} equal parts do not divide among {} ranks",
                         decl.name, ToString(decl.shape), split.units, ranks);
}

}  // namespace

Status CheckRanks(std::span<const TensorDecl> tensors, int ranks) {
  if (ranks == 1) return OkStatus();
  if (ranks != 2 && ranks != 4 && ranks != 8) {
    return InvalidArgument("{} ranks, expected 1, 2, 4 or 8", ranks);
  }
  for (const TensorDecl& decl : tensors) {
    BATON_RETURN_IF_ERROR(CheckTensor(decl, ranks));
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

RankedSlice::RankedSlice(int ranks, int threads)
    : group_(ranks, kPatience),
      ranks_(static_cast<size_t>(ranks)),
      threads_(ranks) {
  for (Rank& rank : ranks_) {
    rank.device = NewCpuDevice(std::max(1, threads / ranks));
  }
}

StatusOr<std::unique_ptr<StageSlice>> RankedSlice::Build(
    const SliceOptions& options, const BuildOne& build) {
  if (options.ranks == 1) return build(options);
  BATON_RETURN_IF_ERROR(CheckRanks({}, options.ranks));
  if (options.device->kind() != DeviceKind::kCpu) {
    return Unimplemented("{} ranks on {}, they share CPUs only", options.ranks,
                         Name(options.device->kind()));
  }
  std::unique_ptr<RankedSlice> slice(
      new RankedSlice(options.ranks, PoolOf(*options.stream).threads()));
  BATON_RETURN_IF_ERROR(slice->Load(options, build));
  return std::unique_ptr<StageSlice>(std::move(slice));
}

Status RankedSlice::Load(const SliceOptions& options, const BuildOne& build) {
  return ForRanks([&](int index) -> Status {
    Rank& rank = ranks_[static_cast<size_t>(index)];
    BATON_ASSIGN_OR_RETURN(rank.stream, rank.device->NewStream());
    SliceOptions one = options;
    one.ranks = 1;
    one.tp = &group_.rank(index);
    one.device = rank.device.get();
    one.stream = rank.stream.get();
    // Ranks load alike: the first one's progress is the stage's.
    if (index > 0) one.progress = nullptr;
    BATON_ASSIGN_OR_RETURN(rank.slice, build(one));
    return OkStatus();
  });
}

Status RankedSlice::ForRanks(const std::function<Status(int)>& body) {
  threads_.Run([&](int index) {
    // The others may be waiting for this one.
    if (Status status = body(index); !status.ok()) group_.Abort(status);
  });
  return group_.Renew();
}

StatusOr<VisitResult> RankedSlice::Run(const VisitArgs& args) {
  VisitResult first;
  BATON_RETURN_IF_ERROR(ForRanks([&](int index) -> Status {
    BATON_ASSIGN_OR_RETURN(VisitResult result,
                           ranks_[static_cast<size_t>(index)].slice->Run(args));
    if (index == 0) first = std::move(result);
    return OkStatus();
  }));
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
