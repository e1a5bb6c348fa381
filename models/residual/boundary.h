// SPDX-License-Identifier: Apache-2.0
// The transitions of the residual stream. README.md here is the contract.
// Failures of kernels and memory are kept in the value's Step.
#pragma once

#include <cstdint>

#include "models/residual/stream.h"
#include "runtime/base/ids.h"
#include "runtime/base/status.h"

namespace baton {

// Sums the ranks' outputs. `group` of one rank: the value itself.
Output<Sum::kComplete> AllReduce(Output<Sum::kPartial>&& output,
                                 Collective& group);
// Sums them and keeps this rank's rows.
Output<Sum::kComplete> ReduceScatter(Output<Sum::kPartial>&& output,
                                     Collective& group);
// Brings a complete output's rows to every rank of `group`, without a sum.
Output<Sum::kComplete> MoveRows(Output<Sum::kComplete>&& output,
                                Collective& group);

template <typename T>
auto AllReduce(T&&, Collective&) {
  BATON_RESIDUAL_REFUSE(
      T, "residual.sum_once: AllReduce takes an Output<Sum::kPartial>");
}
template <typename T>
auto ReduceScatter(T&&, Collective&) {
  BATON_RESIDUAL_REFUSE(
      T,
      "residual.sum_once: ReduceScatter takes an Output<Sum::kPartial>; "
      "MoveRows moves a complete one");
}
template <typename T>
auto MoveRows(T&&, Collective&) {
  BATON_RESIDUAL_REFUSE(
      T, "residual.move_rows: MoveRows takes an Output<Sum::kComplete>");
}

namespace boundary {

struct BATON_RESIDUAL_NODISCARD Entered {
  Input x;
  Open open;
};

// A copy of the stream, and the stream.
struct BATON_RESIDUAL_NODISCARD Captured {
  Tensor copy;
  Written stream;
};

// What crossed a cut.
struct WireStream {
  ConstView rows;
  UnrolledLayer next;  // the layer that reads it
};
// What the step says must have crossed it.
struct WireSpec {
  int64_t rows = 0;
  int64_t hidden = 0;
  DType dtype = DType::kF32;
  UnrolledLayer next;
};

// `residual.start`: a fresh stream.
Written Start(Hidden&& hidden);
// `residual.from_wire`. InvalidArgument: shape, dtype or layer are not the
// step's.
[[nodiscard]] StatusOr<Written> FromWire(const WireStream& wire,
                                         const WireSpec& expected, Step& step);

// `residual.read`: the sublayer reads the stream as it is.
Entered Read(Written&& stream);
// `residual.prepare`: completes, adds, rounds, then norms the rounded stream.
Entered Prepare(Written&& stream, const Norm& norm);
Entered Prepare(Pending<Sum::kPartial>&& stream, const Norm& norm);
Entered Prepare(Pending<Sum::kComplete>&& stream, const Norm& norm);

// `residual.final_norm`.
Normed FinalNorm(Written&& stream, const Norm& norm);
Normed FinalNorm(Pending<Sum::kComplete>&& stream, const Norm& norm);

// `residual.fold`: ends a loop's stream; the rows are its sum.
Hidden Fold(Written&& stream);
Hidden Fold(Pending<Sum::kComplete>&& stream);
// Norms folded rows, before they start the next loop's stream.
Hidden LoopNorm(Hidden&& hidden, const Norm& norm);

// `residual.to_wire`: folds, so that one tensor crosses a cut.
[[nodiscard]] Tensor ToWire(Written&& stream);
[[nodiscard]] Tensor ToWire(Pending<Sum::kComplete>&& stream);

// `residual.snapshot`: adds what is pending, copies what that wrote.
Captured Snapshot(Written&& stream);
Captured Snapshot(Pending<Sum::kComplete>&& stream);

template <typename T>
auto Start(T&&) {
  BATON_RESIDUAL_REFUSE(T, "residual.start: a stream starts from a Hidden");
}
template <typename T>
auto Read(T&&) {
  BATON_RESIDUAL_REFUSE(T,
                        "residual.read: a plain read needs a Written stream");
}
template <typename T>
auto Prepare(T&&, const Norm&) {
  BATON_RESIDUAL_REFUSE(
      T,
      "residual.prepare: a layer is entered with Written or Pending; Start or "
      "FromWire make one");
}
template <typename T>
auto FinalNorm(T&&, const Norm&) {
  BATON_RESIDUAL_REFUSE(
      T, "residual.final_norm: takes Written or Pending<Sum::kComplete>, once");
}
template <typename T>
auto Fold(T&&) {
  BATON_RESIDUAL_REFUSE(
      T, "residual.fold: takes Written or Pending<Sum::kComplete>");
}
template <typename T>
auto LoopNorm(T&&, const Norm&) {
  BATON_RESIDUAL_REFUSE(T, "residual.fold: LoopNorm takes a folded Hidden");
}
template <typename T>
auto ToWire(T&&) {
  BATON_RESIDUAL_REFUSE(
      T,
      "residual.to_wire: only Written or Pending<Sum::kComplete> crosses a "
      "cut");
}
template <typename T>
auto Snapshot(T&&) {
  BATON_RESIDUAL_REFUSE(
      T,
      "residual.snapshot: takes Written or Pending<Sum::kComplete>, not an "
      "unsummed update");
}

}  // namespace boundary
}  // namespace baton
