// SPDX-License-Identifier: Apache-2.0
// What DecoderSlice needs whatever the model: which parts of a decoder a stage
// holds, and the memory it runs in.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/ops/norm.h"
#include "kernels/ops/sample.h"
#include "models/decoder.h"
#include "models/device_visits.h"
#include "models/scratch.h"
#include "models/step.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/transport/collective.h"

namespace baton {

struct SliceParts {
  bool embedding = false;
  std::vector<LayerIndex> layers;  // physical, ascending, each once
  bool final_norm = false;         // the last norm, or a loop's
  bool head = false;
};
[[nodiscard]] SliceParts PartsOf(const DecoderInfo& info,
                                 std::span<const UnrolledRange> ranges);
[[nodiscard]] SliceParts AllParts(int num_layers);

// A stage's KV cache, scratch memory, rank group and the kernels that belong to
// no layer. Owner thread: the stage's.
struct SliceRuntime {
  // ResourceExhausted: no memory. Unimplemented: a kernel is missing.
  [[nodiscard]] static StatusOr<SliceRuntime> Create(
      const DecoderInfo& info, const SliceOptions& options);

  [[nodiscard]] Step::Parts StepParts(const AttentionBatch* batch) const;
  // Of an unrolled layer this stage holds; no two share any.
  [[nodiscard]] LayerMemory Memory(UnrolledLayer layer) const;
  // Before the layer sees the batch: zeros in the slots of sequences that
  // begin. Internal: the device failed.
  [[nodiscard]] Status StartSequences(UnrolledLayer layer,
                                      const AttentionBatch& batch) const;

  Device* device = nullptr;
  Stream* stream = nullptr;
  Collective* tp = nullptr;
  DType dtype = DType::kF32;
  DType stream_dtype = DType::kF32;
  std::string_view stage;
  KernelFn<Add> add = nullptr;
  KernelFn<Sample> sample = nullptr;
  KvSizes sizes;  // that sequences can have
  KvCache kv;
  std::map<UnrolledLayer, int> kv_slots;
  // On the heap, since Scratches and Steps point at them.
  std::unique_ptr<ScratchPool> scratch;
  std::unique_ptr<DeviceVisits> visits;  // null where the device is the host
};

}  // namespace baton
