// SPDX-License-Identifier: Apache-2.0
#include "models/device_visits.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/ops/matmul.h"
#include "runtime/base/check.h"

namespace baton {
namespace {

// Tokens a recorded visit has room for: this many times a power of two.
constexpr int64_t kTokenStep = 512;
constexpr std::array<int64_t, 9> kRowBuckets = {1, 2, 4, 8, 16, 24, 32, 48, 64};

std::vector<RowRun> RunsOf(const AttentionBatch& batch) {
  std::vector<RowRun> runs;
  auto add = [&](RowKind kind, int64_t first, int64_t rows) {
    if (rows == 0) return;
    if (!runs.empty() && runs.back().kind == kind) {
      runs.back().rows += rows;
    } else {
      runs.push_back({kind, first, rows});
    }
  };
  for (const SequenceSpan& span : batch.sequences) {
    add(RowKind::kPrompt, span.first_row, span.prompt_rows);
    add(RowKind::kGenerated, span.first_row + span.prompt_rows,
        span.rows - span.prompt_rows);
  }
  return runs;
}

// A visit as profilers show it.
class Range {
 public:
  Range(Stream& stream, const UnrolledRange& layers) : stream_(stream) {
    stream_.PushRange(
        fmt::format("visit [{},{})", layers.begin, layers.end).c_str());
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { stream_.PopRange(); }

 private:
  Stream& stream_;
};

// Tokens seen by the generated row that sees most; 0 without one.
int64_t Longest(const AttentionBatch& batch) {
  int64_t longest = 0;
  for (const SequenceSpan& span : batch.sequences) {
    if (span.rows > span.prompt_rows) {
      longest = std::max(longest, span.first_position + span.rows);
    }
  }
  return longest;
}

}  // namespace

// Memory for one recorded visit: nothing is given back before the arena goes.
class DeviceVisits::Arena : public Device {
 public:
  explicit Arena(Device* device) : device_(device) {}
  DeviceKind kind() const override { return device_->kind(); }
  StatusOr<Buffer> Allocate(int64_t bytes) override {
    BATON_ASSIGN_OR_RETURN(Buffer buffer, device_->Allocate(bytes));
    blocks_.push_back(std::move(buffer));
    return Buffer(
        blocks_.back().data(), bytes, kind(), [](void*, std::byte*, int64_t) {},
        nullptr);
  }
  StatusOr<Buffer> AllocateHost(int64_t bytes) override {
    return device_->AllocateHost(bytes);
  }
  StatusOr<std::unique_ptr<Stream>> NewStream() override {
    return device_->NewStream();
  }
  Status Copy(std::byte* to, const std::byte* from, int64_t bytes,
              Stream& stream) override {
    return device_->Copy(to, from, bytes, stream);
  }
  Status Clear(std::byte* data, int64_t bytes, Stream& stream) override {
    return device_->Clear(data, bytes, stream);
  }

 private:
  Device* device_;
  std::vector<Buffer> blocks_;
};

StatusOr<std::unique_ptr<DeviceVisits>> DeviceVisits::Create(
    const Step::Parts& parts, KernelFn<FetchBlock> fetch,
    const SparePages& spare, bool windows) {
  BATON_ASSIGN_OR_RETURN(
      Tensor drawn,
      Tensor::Allocate(*parts.device, DType::kI32, {kTokenSlots}));
  BATON_RETURN_IF_ERROR(
      parts.device->Clear(drawn.view().data(), drawn.bytes(), *parts.stream));
  return std::unique_ptr<DeviceVisits>(
      new DeviceVisits(parts, fetch, spare, windows, std::move(drawn)));
}

DeviceVisits::DeviceVisits(const Step::Parts& parts, KernelFn<FetchBlock> fetch,
                           const SparePages& spare, bool windows, Tensor drawn)
    : parts_(parts),
      fetch_(fetch),
      spare_(spare),
      windows_(windows),
      drawn_(std::move(drawn)) {}
DeviceVisits::~DeviceVisits() = default;

StatusOr<VisitResult> DeviceVisits::Run(const VisitArgs& args,
                                        const DecoderInfo& info,
                                        const Body& body) {
  if (parts_.tp->size() > 1) return Submit(args, info, body);
  const absl::ReaderMutexLock lock(&gpu_submissions);
  return Submit(args, info, body);
}

StatusOr<VisitResult> DeviceVisits::Submit(const VisitArgs& args,
                                           const DecoderInfo& info,
                                           const Body& body) {
  const Range range(*parts_.stream, args.range);
  VisitArgs used = args;
  if (args.range.end < info.unrolled_layers()) {
    used.logit_rows = {};
    used.sampling = {};
  }
  const std::optional<Shape> shape = Recordable(used, info);
  if (!shape.has_value()) return RunOnce(used, info, body);
  auto found = recorded_.find(*shape);
  if (found != recorded_.end()) return Launch(found->second, used);
  // The first visit of a shape runs plainly: kernels load, workspaces grow.
  BATON_ASSIGN_OR_RETURN(VisitResult result, RunOnce(used, info, body));
  BATON_RETURN_IF_ERROR(Record(*shape, used, info, body).status());
  return result;
}

std::optional<DeviceVisits::Shape> DeviceVisits::Recordable(
    const VisitArgs& args, const DecoderInfo& info) const {
  const AttentionBatch& batch = *args.batch;
  const auto rows = static_cast<int64_t>(batch.positions.size());
  // A sequence that begins has slots to be cleared, which is not recorded.
  const bool one_row_each =
      std::all_of(batch.sequences.begin(), batch.sequences.end(),
                  [](const SequenceSpan& span) {
                    return span.rows == 1 && span.prompt_rows == 0 &&
                           span.first_position > 0;
                  });
  const bool ends = args.range.end == info.unrolled_layers();
  const bool all_sampled = args.sampling.size() == batch.positions.size();
  if (rows == 0 || rows > kRowBuckets.back() || !one_row_each ||
      !args.captures.empty() || (ends && !all_sampled)) {
    return std::nullopt;
  }
  Shape shape;
  shape.begin = args.range.begin;
  shape.rows = *std::lower_bound(kRowBuckets.begin(), kRowBuckets.end(), rows);
  const int64_t longest = Longest(batch);
  shape.tokens = kTokenStep;
  while (shape.tokens < longest) shape.tokens *= 2;
  shape.sampled = ends;
  return shape;
}

StatusOr<VisitResult> DeviceVisits::RunOnce(const VisitArgs& args,
                                            const DecoderInfo& info,
                                            const Body& body) {
  const VisitBlock layout(VisitBlock::SizesOf(args, windows_));
  BATON_ASSIGN_OR_RETURN(const Buffer block,
                         parts_.device->Allocate(layout.bytes()));
  VisitResult result;
  BATON_ASSIGN_OR_RETURN(const SampledRows samples, NewSamples(args, result));
  BATON_RETURN_IF_ERROR(Upload(layout, args, samples, block.data()));
  const DeviceBatch device = layout.Batch(block.data(), Longest(*args.batch));
  const std::vector<RowRun> runs = RunsOf(*args.batch);
  AttentionBatch batch = *args.batch;
  batch.runs = runs;
  batch.device = &device;
  VisitArgs there = args;
  there.batch = &batch;
  there.ids = layout.Ids(block.data());
  there.sampling = layout.Sampling(block.data());
  there.results = layout.Results(block.data());
  there.drawn = Drawn();
  Step::Parts parts = parts_;
  parts.batch = &batch;
  BATON_RETURN_IF_ERROR(body(there, parts, result));
  BATON_ASSIGN_OR_RETURN(result.done, parts_.stream->Record());
  return result;
}

StatusOr<DeviceVisits::Recorded*> DeviceVisits::Record(const Shape& shape,
                                                       const VisitArgs& args,
                                                       const DecoderInfo& info,
                                                       const Body& body) {
  Recorded r;
  r.arena = std::make_unique<Arena>(parts_.device);
  r.scratch = std::make_unique<ScratchPool>(r.arena.get());
  const VisitBlock layout({.rows = shape.rows,
                           .sequences = shape.rows,
                           .page_stride = shape.tokens / kPageTokens,
                           .windows = windows_,
                           .logit_rows = shape.sampled ? shape.rows : 0});
  BATON_ASSIGN_OR_RETURN(r.block, r.arena->Allocate(layout.bytes()));
  BATON_ASSIGN_OR_RETURN(
      r.ring, r.arena->AllocateHost(int64_t{kHostBlocks} * layout.bytes()));
  BATON_ASSIGN_OR_RETURN(r.turns, Tensor::Allocate(*r.arena, DType::kI32, {2}));
  BATON_RETURN_IF_ERROR(parts_.device->Clear(r.turns.view().data(),
                                             r.turns.bytes(), *parts_.stream));
  r.positions.resize(static_cast<size_t>(shape.rows));
  r.runs = {{RowKind::kGenerated, 0, shape.rows}};
  Recorded& kept = recorded_[shape] = std::move(r);
  kept.device = layout.Batch(kept.block.data(), shape.tokens);
  kept.batch.positions = kept.positions;
  kept.batch.runs = kept.runs;
  kept.batch.device = &kept.device;

  VisitArgs there;
  there.step = args.step;
  there.range = args.range;
  there.batch = &kept.batch;
  there.ids = layout.Ids(kept.block.data());
  there.sampling = layout.Sampling(kept.block.data());
  there.results = layout.Results(kept.block.data());
  there.drawn = Drawn();
  if (shape.sampled) {
    for (int32_t i = 0; i < shape.rows; ++i) kept.logit_rows.push_back(i);
    there.logit_rows = kept.logit_rows;
  }
  Step::Parts parts = parts_;
  parts.device = kept.arena.get();
  parts.scratch = kept.scratch.get();
  parts.batch = &kept.batch;
  auto record = [&]() -> Status {
    if (shape.begin > 0) {
      BATON_ASSIGN_OR_RETURN(kept.stream,
                             Tensor::Allocate(*kept.arena, parts.stream_dtype,
                                              {shape.rows, info.hidden}));
      there.stream = kept.stream.view();
    }
    BATON_RETURN_IF_ERROR(parts_.stream->BeginCapture());
    Status submitted = fetch_(
        {.ring = {kept.ring.data(), static_cast<size_t>(kept.ring.bytes())},
         .block = {kept.block.data(), static_cast<size_t>(kept.block.bytes())},
         .turns = {kept.turns.view().Row<int32_t>(0), 2}},
        *parts_.stream);
    if (submitted.ok()) submitted = body(there, parts, kept.result);
    StatusOr<std::unique_ptr<Graph>> graph = parts_.stream->EndCapture();
    BATON_RETURN_IF_ERROR(submitted);
    BATON_ASSIGN_OR_RETURN(kept.graph, std::move(graph));
    return OkStatus();
  };
  if (Status status = record(); !status.ok()) {
    recorded_.erase(shape);
    return Annotate(status,
                    fmt::format("record a visit of {} rows", shape.rows));
  }
  return &kept;
}

StatusOr<VisitResult> DeviceVisits::Launch(Recorded& recorded,
                                           const VisitArgs& args) {
  const auto rows = static_cast<int64_t>(args.batch->positions.size());
  const VisitBlock layout(
      {.rows = static_cast<int64_t>(recorded.positions.size()),
       .sequences = static_cast<int64_t>(recorded.positions.size()),
       .page_stride = recorded.device.page_stride,
       .windows = windows_,
       .logit_rows = static_cast<int64_t>(recorded.logit_rows.size())});
  const size_t turn = recorded.launches % kHostBlocks;
  std::unique_ptr<Event>& launched = recorded.launched[turn];
  if (launched != nullptr) BATON_RETURN_IF_ERROR(launched->Wait());
  VisitResult result;
  BATON_ASSIGN_OR_RETURN(const SampledRows samples, NewSamples(args, result));
  layout.Fill(
      args, spare_, samples,
      recorded.ring.data() + static_cast<int64_t>(turn) * layout.bytes());
  if (!recorded.stream.empty()) {
    BATON_RETURN_IF_ERROR(
        parts_.device->Copy(recorded.stream.view().data(), args.stream.data(),
                            args.stream.bytes(), *parts_.stream));
  }
  BATON_RETURN_IF_ERROR(parts_.tp->Meet());
  BATON_RETURN_IF_ERROR(recorded.graph->Launch());
  ++recorded.launches;
  BATON_RETURN_IF_ERROR(parts_.tp->Meet());
  BATON_ASSIGN_OR_RETURN(launched, parts_.stream->Record());
  if (!recorded.result.stream.empty()) {
    const View out = recorded.result.stream.view().Rows(0, rows);
    BATON_ASSIGN_OR_RETURN(
        result.stream,
        Tensor::Allocate(*parts_.device, out.dtype(), out.shape()));
    BATON_RETURN_IF_ERROR(parts_.device->Copy(
        result.stream.view().data(), out.data(), out.bytes(), *parts_.stream));
  }
  BATON_ASSIGN_OR_RETURN(result.done, parts_.stream->Record());
  return result;
}

Status DeviceVisits::Upload(const VisitBlock& block, const VisitArgs& args,
                            const SampledRows& results, std::byte* to) {
  Slot& slot = slots_[next_slot_++ % slots_.size()];
  if (slot.copied != nullptr) BATON_RETURN_IF_ERROR(slot.copied->Wait());
  if (slot.host.bytes() < block.bytes()) {
    BATON_ASSIGN_OR_RETURN(slot.host,
                           parts_.device->AllocateHost(block.bytes()));
  }
  block.Fill(args, spare_, results, slot.host.data());
  BATON_RETURN_IF_ERROR(
      parts_.device->Copy(to, slot.host.data(), block.bytes(), *parts_.stream));
  BATON_ASSIGN_OR_RETURN(slot.copied, parts_.stream->Record());
  return OkStatus();
}

StatusOr<SampledRows> DeviceVisits::NewSamples(const VisitArgs& args,
                                               VisitResult& result) {
  SampledRows samples;
  // Of several ranks the first one samples.
  if (args.sampling.empty() || parts_.tp->rank() > 0) return samples;
  samples.count = static_cast<int64_t>(args.sampling.size());
  BATON_ASSIGN_OR_RETURN(
      result.sampled,
      parts_.device->AllocateHost(samples.count *
                                  static_cast<int64_t>(sizeof(SampledRow))));
  samples.rows = reinterpret_cast<SampledRow*>(result.sampled.data());
  return samples;
}

}  // namespace baton
