// SPDX-License-Identifier: Apache-2.0
// The residual stream as types. README.md here is the contract; the names in
// the messages below (`residual.consumed`) are its sections.
//
// Each value owns its memory and says what may be done with it next. Values are
// move-only, transitions consume their left side, and there is no stream
// without a tensor. What people get wrong: a value that was moved from is gone;
// clang-tidy's bugprone-use-after-move says so.
#pragma once

#include <type_traits>
#include <utility>

#include "models/scratch.h"
#include "runtime/tensor/tensor.h"
#include "runtime/transport/collective.h"

namespace baton {

class Norm;
class Step;

// Whether an output still owes a sum over the stage's ranks.
enum class Sum { kPartial, kComplete };

#define BATON_RESIDUAL_NODISCARD \
  [[nodiscard("residual.dropped: this value must be handed on")]]
#define BATON_RESIDUAL_CONSUMED \
  "residual.consumed: transitions consume; pass the value with std::move"
// The body of an overload that exists to say why a call is refused.
#define BATON_RESIDUAL_REFUSE(T, why)                                     \
  static_assert(!std::is_lvalue_reference_v<T>, BATON_RESIDUAL_CONSUMED); \
  static_assert(std::is_lvalue_reference_v<T>, why)

// The key of boundary.cc: only it makes a Written, Pending, Open, Input or
// Normed.
struct StreamAccess;

// [rows, hidden]. Rows that have not entered a stream: an embedding's, or those
// of a loop that has been folded.
class BATON_RESIDUAL_NODISCARD Hidden {
 public:
  Hidden(Tensor rows, Step& step) : rows_(std::move(rows)), step_(&step) {}

 private:
  friend struct StreamAccess;
  Tensor rows_;
  Step* step_;
};

// A finished stream [rows, hidden]: everything has been added.
class BATON_RESIDUAL_NODISCARD Written {
 private:
  friend struct StreamAccess;
  Written(Tensor stream, Step& step)
      : stream_(std::move(stream)), step_(&step) {}
  Tensor stream_;
  Step* step_;
};

// What a sublayer reads, [rows, hidden].
class BATON_RESIDUAL_NODISCARD Input {
 public:
  [[nodiscard]] ConstView view() const { return view_; }

 private:
  friend struct StreamAccess;
  explicit Input(Scratch rows) : rows_(std::move(rows)), view_(rows_.view()) {}
  explicit Input(ConstView stream) : view_(stream) {}
  Scratch rows_;
  ConstView view_;
};

// What a sublayer computed, [rows, hidden]; made by the layer that knows
// whether its sum is complete. A rank's share of a sum is f32, where there are
// several.
template <Sum S>
class BATON_RESIDUAL_NODISCARD Output {
 public:
  Output(Scratch rows, Step& step) : rows_(std::move(rows)), step_(&step) {}
  [[nodiscard]] ConstView view() const { return rows_.view(); }

 private:
  friend struct StreamAccess;
  Scratch rows_;
  Step* step_;
};

// A stream with an output to be added: stream + update.
template <Sum S>
class BATON_RESIDUAL_NODISCARD Pending {
 private:
  friend struct StreamAccess;
  Pending(Tensor stream, Scratch update, Step& step)
      : stream_(std::move(stream)), update_(std::move(update)), step_(&step) {}
  Tensor stream_;
  Scratch update_;
  Step* step_;
};

// A stream whose sublayer runs: waits for exactly one output.
class BATON_RESIDUAL_NODISCARD Open {
 public:
  // Leaves the output to be added by whoever reads the stream next.
  Pending<Sum::kPartial> Leave(Output<Sum::kPartial>&& output) &&;
  Pending<Sum::kComplete> Leave(Output<Sum::kComplete>&& output) &&;
  // stream += norm(output).
  Written AddPostNorm(Output<Sum::kComplete>&& output, const Norm& norm) &&;

  template <typename T>
  auto Leave(T&&) && {
    BATON_RESIDUAL_REFUSE(T, "residual.open: Leave takes an Output");
  }
  template <typename T>
  auto Leave(T&&) & {
    static_assert(!std::is_same_v<T, T>, BATON_RESIDUAL_CONSUMED);
  }
  template <typename T>
  auto AddPostNorm(T&&, const Norm&) && {
    BATON_RESIDUAL_REFUSE(T,
                          "residual.post_norm: a post-norm needs a complete "
                          "output; reduce it first");
  }
  template <typename T>
  auto AddPostNorm(T&&, const Norm&) & {
    static_assert(!std::is_same_v<T, T>, BATON_RESIDUAL_CONSUMED);
  }

 private:
  friend struct StreamAccess;
  Open(Tensor stream, Step& step) : stream_(std::move(stream)), step_(&step) {}
  Tensor stream_;
  Step* step_;
};

// The decoder's output after its last norm, [rows, hidden].
class BATON_RESIDUAL_NODISCARD Normed {
 public:
  [[nodiscard]] ConstView view() const { return rows_.view(); }

 private:
  friend struct StreamAccess;
  explicit Normed(Scratch rows) : rows_(std::move(rows)) {}
  Scratch rows_;
};

// f32 [logit_rows, vocab].
class BATON_RESIDUAL_NODISCARD Logits {
 public:
  explicit Logits(Tensor rows) : rows_(std::move(rows)) {}
  [[nodiscard]] ConstView view() const { return rows_.view(); }
  [[nodiscard]] Tensor Take() && { return std::move(rows_); }

 private:
  Tensor rows_;
};

// What a layer may be entered with.
template <typename T>
concept StreamForm =
    std::is_same_v<T, Written> || std::is_same_v<T, Pending<Sum::kPartial>> ||
    std::is_same_v<T, Pending<Sum::kComplete>>;

}  // namespace baton
