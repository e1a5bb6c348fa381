// SPDX-License-Identifier: Apache-2.0
#include "models/slice_parts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "models/loop_plan.h"

namespace baton {

std::vector<SampleResult> VisitResult::Samples() const {
  const std::span<const SampledRow> rows(
      reinterpret_cast<const SampledRow*>(sampled.data()),
      static_cast<size_t>(sampled.bytes()) / sizeof(SampledRow));
  std::vector<SampleResult> samples;
  for (const SampledRow& row : rows) samples.push_back(row.Result());
  return samples;
}

int64_t DecoderInfo::Window() const {
  int64_t longest = 0;
  for (const LayerState& state : states) {
    longest = std::max(longest, state.window);
  }
  return longest;
}

bool DecoderInfo::NeedsStateSlots() const {
  return std::any_of(states.begin(), states.end(), [](const LayerState& state) {
    return state.slot_bytes > 0;
  });
}

SliceParts PartsOf(const DecoderInfo& info,
                   std::span<const UnrolledRange> ranges) {
  const LoopPlan loops(info.num_layers, info.num_loops);
  SliceParts parts;
  std::set<LayerIndex> layers;
  for (const UnrolledRange& range : ranges) {
    parts.embedding |= range.begin == 0;
    for (int u = range.begin; u < range.end; ++u) {
      layers.insert(loops.Physical(UnrolledLayer(u)));
      parts.final_norm |= loops.EndsLoop(UnrolledLayer(u));
    }
    parts.head |= range.end == loops.unrolled_layers();
  }
  parts.layers.assign(layers.begin(), layers.end());
  return parts;
}

SliceParts AllParts(int num_layers) {
  SliceParts parts{.embedding = true, .final_norm = true, .head = true};
  for (int i = 0; i < num_layers; ++i) parts.layers.emplace_back(i);
  return parts;
}

namespace {

// The group of a slice that has none.
Collective& OneRank() {
  static SingleRankCollective one;  // has no state
  return one;
}

}  // namespace

StatusOr<SliceRuntime> SliceRuntime::Create(const DecoderInfo& info,
                                            const SliceOptions& options) {
  const DeviceKind kind = options.device->kind();
  // Recorded visits have rows of nobody, which need a page of each kind.
  const bool records = options.stream->CanCapture();
  BATON_ASSIGN_OR_RETURN(KernelFn<Add> add,
                         options.kernels->Find<Add>(kind, options.dtype));
  BATON_ASSIGN_OR_RETURN(KernelFn<Sample> sample,
                         options.kernels->Find<Sample>(kind, DType::kF32));
  Collective& tp = options.tp == nullptr ? OneRank() : *options.tp;
  std::map<UnrolledLayer, int> slots;
  std::vector<LayerState> states;
  for (const UnrolledRange& range : options.ranges) {
    for (int u = range.begin; u < range.end; ++u) {
      slots.emplace(u, static_cast<int>(slots.size()));
      states.push_back(info.states[static_cast<size_t>(u)].OfRank(tp.size()));
    }
  }
  KvSizes sizes = options.kv;
  if (records) {
    ++sizes.pages;
    if (info.Window() > 0) ++sizes.window_pages;
  }
  BATON_ASSIGN_OR_RETURN(
      KvCache kv, KvCache::Create(*options.device, std::move(states), sizes));
  SliceRuntime runtime{
      .device = options.device,
      .stream = options.stream,
      .tp = &tp,
      .dtype = options.dtype,
      .stream_dtype = info.stream_dtype,
      .stage = options.stage,
      .add = add,
      .sample = sample,
      .sizes = options.kv,
      .kv = std::move(kv),
      .kv_slots = std::move(slots),
      .scratch = std::make_unique<ScratchPool>(options.device)};
  if (records) {
    BATON_ASSIGN_OR_RETURN(
        const KernelFn<FetchBlock> fetch,
        options.kernels->Find<FetchBlock>(kind, options.dtype));
    BATON_ASSIGN_OR_RETURN(
        runtime.visits,
        DeviceVisits::Create(
            runtime.StepParts(nullptr), fetch,
            {.page = static_cast<PageId>(options.kv.pages),
             .window_page = static_cast<PageId>(options.kv.window_pages)},
            info.Window() > 0));
  }
  return runtime;
}

Step::Parts SliceRuntime::StepParts(const AttentionBatch* batch) const {
  return {.device = device,
          .stream = stream,
          .scratch = scratch.get(),
          .tp = tp,
          .batch = batch,
          .add = add,
          .dtype = dtype,
          .stream_dtype = stream_dtype,
          .stage = stage};
}

LayerMemory SliceRuntime::Memory(UnrolledLayer layer) const {
  const int slot = kv_slots.at(layer);
  return {.pool = kv.Pool(slot), .state = kv.State(slot), .sizes = kv.sizes()};
}

Status SliceRuntime::StartSequences(UnrolledLayer layer,
                                    const AttentionBatch& batch) const {
  const int slot = kv_slots.at(layer);
  if (kv.State(slot).slot_bytes == 0) return OkStatus();
  for (const SequenceSpan& sequence : batch.sequences) {
    if (sequence.first_position > 0) continue;
    BATON_RETURN_IF_ERROR(
        kv.ClearState(slot, sequence.state_slot, *device, *stream));
  }
  return OkStatus();
}

}  // namespace baton
