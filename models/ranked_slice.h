// SPDX-License-Identifier: Apache-2.0
// Several ranks that share a stage's layers, as threads of one process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "models/decoder.h"
#include "runtime/transport/collective.h"

namespace baton {

// Threads that run the same function at the same time. The caller is the first
// of them. Owner thread: any one.
class RankThreads {
 public:
  explicit RankThreads(int count);
  ~RankThreads();

  // Calls body(0) here and body(i) on thread i; returns when all have.
  void Run(const std::function<void(int)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A slice a rank, each with its share of the CPU's threads or a GPU of its own,
// its heads' keys and values and its share of the weights. A visit runs on all
// of them; the first one's result is the stage's, and if one fails, the visit
// does. Owner thread: the stage's, which is the first rank's.
class RankedSlice final : public StageSlice {
 public:
  using BuildOne =
      std::function<StatusOr<std::unique_ptr<StageSlice>>(const SliceOptions&)>;

  // `options.ranks` slices made by `build`; one is the slice itself.
  // InvalidArgument: there cannot be so many ranks, or there are not as many
  // GPUs. Any Status of NewRankGroup and of `build`.
  [[nodiscard]] static StatusOr<std::unique_ptr<StageSlice>> Build(
      const SliceOptions& options, const BuildOne& build);

  StatusOr<VisitResult> Run(const VisitArgs& args) override;
  int64_t WeightBytes() const override;
  int64_t KvBytes() const override;
  // Tokens are drawn where the first rank is: the others learn them from the
  // host.
  int32_t TokenSlots() const override { return 0; }

 private:
  struct Rank {
    Device* device = nullptr;
    Stream* stream = nullptr;
    std::unique_ptr<Device> own_device;  // where it is not the options'
    std::unique_ptr<Stream> own_stream;
    std::unique_ptr<StageSlice> slice;
  };

  explicit RankedSlice(int ranks) : ranks_(static_cast<size_t>(ranks)) {}
  Status Open(const SliceOptions& options);
  Status Load(const SliceOptions& options, const BuildOne& build);
  // Runs `body` for every rank; the first failure, once all have ended.
  Status ForRanks(const std::function<Status(int)>& body);

  std::unique_ptr<RankGroup> group_;
  std::vector<Rank> ranks_;
  std::vector<Stream*> streams_;  // the ranks'
  std::unique_ptr<RankThreads> threads_;
};

}  // namespace baton
