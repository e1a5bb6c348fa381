// SPDX-License-Identifier: Apache-2.0
// One visit's context, handed to every layer.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/ops/attention.h"
#include "kernels/ops/delta_attention.h"
#include "kernels/ops/latent_attention.h"
#include "kernels/ops/norm.h"
#include "kernels/registry.h"
#include "models/scratch.h"
#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/tensor/tensor.h"
#include "runtime/transport/collective.h"

namespace baton {

// What an unrolled layer keeps of all sequences.
struct LayerMemory {
  std::byte* pool = nullptr;
  LayerState state;
  KvSizes sizes;
};

// The batch, the device stream, the memory of the unrolled layer that runs, the
// rank group, and scratch memory. Layers return values: the first failure is
// kept here, later work is skipped, and the slice looks once at the end.
// Lives for one visit. Owner thread: the stage's.
class Step {
 public:
  struct Parts {
    Device* device = nullptr;
    Stream* stream = nullptr;
    ScratchPool* scratch = nullptr;
    Collective* tp = nullptr;
    const AttentionBatch* batch = nullptr;
    KernelFn<Add> add = nullptr;
    DType dtype = DType::kF32;         // of weights and activations
    DType stream_dtype = DType::kF32;  // of the residual stream
    std::string_view stage;            // in the log; outlives the step
  };
  // `number`: of the visit, in the log.
  explicit Step(const Parts& parts, StepId number = {})
      : parts_(parts), number_(number) {}
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  [[nodiscard]] const AttentionBatch& batch() const { return *parts_.batch; }
  [[nodiscard]] Collective& tp() const { return *parts_.tp; }
  [[nodiscard]] DType dtype() const { return parts_.dtype; }
  [[nodiscard]] DType stream_dtype() const { return parts_.stream_dtype; }
  // Of the unrolled layer entered last: pages of keys and values, pages of
  // latents with `latent` values of their own, and what slots keep from byte
  // `offset` on.
  [[nodiscard]] KvPages kv() const;
  [[nodiscard]] LatentPages latents(int64_t latent) const;
  [[nodiscard]] StateSlots states(int64_t offset) const;

  void EnterLayer(UnrolledLayer layer, const LayerMemory& memory) {
    layer_ = layer;
    memory_ = memory;
  }

  // Submits a kernel, unless something has failed.
  template <typename Op>
  void Run(KernelFn<Op> kernel, const typename Op::Args& args) {
    if (!status_.ok()) return;
    if constexpr (requires { args.group; }) {
      LogCollective(Op::kName, *args.group, args.partial);
    }
    Keep(kernel(args, *parts_.stream));
  }
  // The sum [rows, n] of the ranks' `partial` [rows, n] f32, in the compute
  // dtype. Of one rank: what it has, in whatever dtype.
  [[nodiscard]] Scratch Reduced(Scratch partial, Collective& group);
  // Fills `out` [rows, n] with the ranks' `part` [rows, n / ranks] beside each
  // other; a view without data wants nothing.
  void Gather(ConstView part, View out);
  // stream = cast(stream + update).
  void AddTo(View stream, ConstView update) {
    Run<Add>(parts_.add, {.stream = stream, .update = update});
  }
  void Copy(View to, ConstView from);  // contiguous, same bytes

  // Memory [rows, columns]; without memory a view of nothing and a failure.
  [[nodiscard]] Scratch NewScratch(int64_t rows, int64_t columns) {
    return NewScratch(parts_.dtype, rows, columns);
  }
  [[nodiscard]] Scratch NewScratch(DType dtype, int64_t rows, int64_t columns);
  // Memory that leaves with the visit's result.
  [[nodiscard]] Tensor NewTensor(DType dtype, Shape shape);

  [[nodiscard]] Buffer NewBuffer(int64_t bytes);

  // The first failure, with the layer it happened in.
  [[nodiscard]] const Status& status() const { return status_; }
  void Keep(const Status& status);

 private:
  // At Trace, as the rank enters it: the ranks' lines differ in `rank` alone,
  // or one has taken another way. Not of recorded visits that a GPU repeats.
  void LogCollective(std::string_view kind, const Collective& group,
                     ConstView rows) const;

  Parts parts_;
  StepId number_;
  LayerMemory memory_;
  UnrolledLayer layer_{-1};
  Status status_;
};

}  // namespace baton
