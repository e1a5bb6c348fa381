// SPDX-License-Identifier: Apache-2.0
// What a stage runs: the seam between actors and decoders. A decoder describes
// itself (DecoderInfo, its tensors) from a config alone, and builds the slice
// of unrolled layers that a stage owns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/attention.h"
#include "kernels/ops/sample.h"
#include "kernels/registry.h"
#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/config/model_config.h"
#include "runtime/config/plan.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/tensor/tensor.h"
#include "runtime/transport/collective.h"
#include "runtime/weights/weight_source.h"

namespace baton {

// Facts about a decoder that planning and admission need.
struct DecoderInfo {
  std::string architecture;
  int num_layers = 0;  // physical
  int num_loops = 1;
  int64_t hidden = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;
  int64_t experts = 0;               // of a mixture
  int64_t experts_per_row = 0;       // that a row chooses
  DType stream_dtype = DType::kF32;  // of the residual stream
  std::vector<LayerState> states;    // per unrolled layer, in the compute dtype

  [[nodiscard]] int unrolled_layers() const { return num_layers * num_loops; }
  // The longest of its layers' windows; 0: every layer keeps all positions.
  [[nodiscard]] int64_t Window() const;
  // A sequence needs a slot: some layer keeps the same bytes of any length.
  [[nodiscard]] bool NeedsStateSlots() const;
};

// A copy of the residual stream at an unrolled layer's edge.
enum class Edge { kBefore, kAfter };
struct CapturePoint {
  UnrolledLayer layer;
  Edge edge = Edge::kAfter;
  friend bool operator==(const CapturePoint&, const CapturePoint&) = default;
};
struct Capture {
  CapturePoint point;
  Tensor stream;  // [rows, hidden], dtype of the stream
};

// One micro-batch at one stage: a run of unrolled layers.
struct VisitArgs {
  StepId step;                  // in the log
  UnrolledRange range;          // one of the slice's
  const AttentionBatch* batch;  // all rows
  // [rows]; used where range.begin == 0. -1 - s stands for the token that was
  // last drawn into slot s (SamplingRow::slot).
  std::span<const int32_t> ids;
  ConstView stream;  // [rows, hidden]; used where range.begin > 0
  std::span<const CapturePoint> captures;  // those in `range` are taken
  // Used where the range ends the decoder: rows whose logits are wanted, and
  // how each is sampled; same length, ascending rows.
  std::span<const int32_t> logit_rows;
  std::span<const SamplingRow> sampling;
  // On a device that is not the host: the slots, and where the samples go. The
  // slice sets them.
  std::span<int32_t> drawn;
  const SampledRows* results = nullptr;
};

// Tensors are in the memory of the device. Nothing may be read, or given back,
// before `done`.
struct VisitResult {
  Tensor stream;  // [rows, hidden]; empty where the range ends the decoder
  std::vector<Capture> captures;
  Tensor logits;   // [logit_rows, vocab] f32, where the range ends the decoder
  Buffer sampled;  // SampledRow [logit_rows], host
  std::unique_ptr<Event> done;  // null: complete

  // Of the rows with logits, in order.
  [[nodiscard]] std::vector<SampleResult> Samples() const;
};

// The layers of one stage with their weights and KV cache. Built once, then
// visited. Owner thread: the stage's.
class StageSlice {
 public:
  virtual ~StageSlice() = default;
  // A sequence whose first row is at position 0 begins: what its slot held is
  // gone. InvalidArgument: rows, ids, positions, slots or the stream's shape or
  // dtype do not fit. Internal: the device failed.
  virtual StatusOr<VisitResult> Run(const VisitArgs& args) = 0;
  // Bytes of weights, as allocated.
  [[nodiscard]] virtual int64_t WeightBytes() const = 0;
  [[nodiscard]] virtual int64_t KvBytes() const = 0;
  // Slots in which drawn tokens stay on the device, for visits submitted before
  // the host has seen them. 0: the device is the host.
  [[nodiscard]] virtual int32_t TokenSlots() const = 0;
};

struct SliceOptions {
  std::string_view stage;             // in the log; outlives the slice
  std::vector<UnrolledRange> ranges;  // ascending, disjoint, not empty
  DType dtype = DType::kBF16;         // of weights and activations
  KvSizes kv;
  const KernelRegistry* kernels = nullptr;
  Device* device = nullptr;
  Stream* stream = nullptr;
  const WeightSource* weights = nullptr;
  // That share the layers. On a CPU they are threads with what `device` has; of
  // GPUs the first has `device`, the others have `rank_devices`.
  int ranks = 1;
  std::vector<Device*> rank_devices;
  // Set where the slice is that of one rank: `ranks` is 1 then.
  Collective* tp = nullptr;
  // Called after each tensor with bytes read so far and in total.
  std::function<void(int64_t done, int64_t total)> progress;
};

// One architecture: everything as functions of its config.
struct Decoder {
  std::string_view architecture;  // config.json's architectures[0]
  // Checks every key that changes the maths. InvalidArgument: names the key.
  StatusOr<DecoderInfo> (*describe)(const ModelConfig&, DType dtype);
  // Every tensor of the checkpoint, by name; one that several parts hold, as
  // the embedding that is a tied head too, is listed for each.
  StatusOr<std::vector<TensorDecl>> (*tensors)(const ModelConfig&);
  // Loads the weights of the ranges' layers, the embedding where a range
  // begins at 0, the final norm and head where one ends the decoder (and the
  // final norm where a loop ends). Checks nothing but what it loads.
  StatusOr<std::unique_ptr<StageSlice>> (*build)(const ModelConfig&,
                                                 const SliceOptions&);
};

// Whether `ranks` ranks can share a decoder with these tensors.
// InvalidArgument: they are not 1, 2, 4 or 8, or something does not divide;
// names tensor and sizes. Unimplemented: GPUs are more than two.
[[nodiscard]] Status CheckRanks(std::span<const TensorDecl> tensors, int ranks,
                                DeviceKind device = DeviceKind::kCpu);

// models/registry.cc: the list. Unimplemented: names what there is.
[[nodiscard]] StatusOr<const Decoder*> FindDecoder(
    const std::string& architecture);
[[nodiscard]] std::span<const Decoder> AllDecoders();

}  // namespace baton
