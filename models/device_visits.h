// SPDX-License-Identifier: Apache-2.0
// Visits on a device that is not the host. What they are told goes there in one
// block, and what they sample is written to the host's memory. A visit that
// only generates (a row of each sequence, up to 64, nothing captured) is
// recorded once per shape and launched from then on; it fetches its block
// itself.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/ops/fetch_block.h"
#include "models/decoder.h"
#include "models/scratch.h"
#include "models/step.h"
#include "models/visit_block.h"
#include "runtime/tensor/device.h"

namespace baton {

// Owner thread: the stage's.
class DeviceVisits {
 public:
  // As StageSlice::TokenSlots.
  static constexpr int32_t kTokenSlots = 4096;

  // Submits the visit's kernels; every span of the arguments and the stream are
  // in the memory of the device.
  using Body =
      std::function<Status(const VisitArgs&, const Step::Parts&, VisitResult&)>;

  // `windows`: some layers keep a window of positions. `parts.scratch` is for
  // visits that are not recorded.
  // ResourceExhausted: no memory.
  [[nodiscard]] static StatusOr<std::unique_ptr<DeviceVisits>> Create(
      const Step::Parts& parts, KernelFn<FetchBlock> fetch,
      const SparePages& spare, bool windows);
  ~DeviceVisits();

  // The result's memory is the caller's; it is complete once `done` is.
  [[nodiscard]] StatusOr<VisitResult> Run(const VisitArgs& args,
                                          const DecoderInfo& info,
                                          const Body& body);

 private:
  DeviceVisits(const Step::Parts& parts, KernelFn<FetchBlock> fetch,
               const SparePages& spare, bool windows, Tensor drawn);

  // Host blocks in turn: one is written again once what read it is complete,
  // which a stage waits for if it is so many visits of a shape ahead.
  static constexpr size_t kHostBlocks = 8;
  static_assert(std::has_single_bit(kHostBlocks));  // FetchBlock

  // A recorded visit: first layer, rows and tokens it has room for.
  struct Shape {
    int begin = 0;
    int64_t rows = 0;
    int64_t tokens = 0;
    bool sampled = false;  // every row's logits are wanted
    friend auto operator<=>(const Shape&, const Shape&) = default;
  };
  class Arena;
  struct Recorded {
    std::unique_ptr<Arena> arena;  // owns what the graph uses
    std::unique_ptr<ScratchPool> scratch;
    std::vector<int32_t> positions, logit_rows;  // as many as rows
    std::vector<RowRun> runs;
    DeviceBatch device;
    AttentionBatch batch;
    Buffer block;
    Buffer ring;   // kHostBlocks, host
    Tensor turns;  // of the ring
    std::array<std::unique_ptr<Event>, kHostBlocks> launched;
    size_t launches = 0;
    Tensor stream;  // what the visit is entered with
    VisitResult result;
    std::unique_ptr<Graph> graph;
  };
  struct Slot {
    Buffer host;
    std::unique_ptr<Event> copied;
  };

  [[nodiscard]] std::optional<Shape> Recordable(const VisitArgs& args,
                                                const DecoderInfo& info) const;
  StatusOr<VisitResult> Submit(const VisitArgs& args, const DecoderInfo& info,
                               const Body& body);
  StatusOr<VisitResult> RunOnce(const VisitArgs& args, const DecoderInfo& info,
                                const Body& body);
  StatusOr<Recorded*> Record(const Shape& shape, const VisitArgs& args,
                             const DecoderInfo& info, const Body& body);
  StatusOr<VisitResult> Launch(Recorded& recorded, const VisitArgs& args);
  // Fills a host block and copies it to `to`.
  Status Upload(const VisitBlock& block, const VisitArgs& args,
                const SampledRows& results, std::byte* to);
  // Memory for the samples that the visit is to give, for the result.
  StatusOr<SampledRows> NewSamples(const VisitArgs& args, VisitResult& result);
  [[nodiscard]] std::span<int32_t> Drawn() const {
    return {drawn_.view().Row<int32_t>(0), static_cast<size_t>(kTokenSlots)};
  }

  Step::Parts parts_;
  KernelFn<FetchBlock> fetch_;
  SparePages spare_;
  bool windows_;
  Tensor drawn_;  // i32 [kTokenSlots]
  std::map<Shape, Recorded> recorded_;
  std::array<Slot, kHostBlocks> slots_;  // of visits that are not recorded
  size_t next_slot_ = 0;
};

}  // namespace baton
