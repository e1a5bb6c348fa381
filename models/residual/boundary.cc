// SPDX-License-Identifier: Apache-2.0
#include "models/residual/boundary.h"

#include <utility>

#include "models/layers/norm.h"
#include "models/step.h"

namespace baton {

struct StreamAccess {
  // Adds what is pending, rounding the sum to the stream's dtype.
  static Written Settle(Pending<Sum::kComplete>&& s) {
    s.step_->AddTo(s.stream_.view(), s.update_.view());
    return {std::move(s.stream_), *s.step_};
  }

  template <Sum S>
  static Pending<S> Leave(Open&& open, Output<S>&& output) {
    return {std::move(open.stream_), std::move(output.rows_), *open.step_};
  }

  static Written AddPostNorm(Open&& open, Output<Sum::kComplete>&& output,
                             const Norm& norm) {
    Step& step = *open.step_;
    norm.ApplyAndAdd(output.rows_.view(), open.stream_.view(), step);
    return {std::move(open.stream_), step};
  }

  static Output<Sum::kComplete> Reduced(Output<Sum::kPartial>&& output,
                                        Collective& group) {
    Step& step = *output.step_;
    return {step.Reduced(std::move(output.rows_), group), step};
  }
  static Output<Sum::kComplete> Moved(Output<Sum::kPartial>&& output) {
    return {std::move(output.rows_), *output.step_};
  }

  static boundary::Entered Read(Written&& s) {
    const ConstView rows = s.stream_.view();
    return {Input(rows), Open(std::move(s.stream_), *s.step_)};
  }

  static boundary::Entered Prepare(Written&& s, const Norm& norm) {
    Scratch x = NormRows(s.stream_, *s.step_, norm);
    return {Input(std::move(x)), Open(std::move(s.stream_), *s.step_)};
  }

  // One kernel adds, rounds and norms; the update's memory becomes the input.
  template <Sum S>
  static boundary::Entered Prepare(Pending<S>&& s, const Norm& norm) {
    if (S == Sum::kPartial && s.step_->tp().size() > 1) {
      return ReduceAndPrepare(std::move(s), norm);
    }
    norm.AddAndApply(s.stream_.view(), s.update_.view(), s.update_.view(),
                     *s.step_);
    return {Input(std::move(s.update_)), Open(std::move(s.stream_), *s.step_)};
  }

  static Normed FinalNorm(Written&& s, const Norm& norm) {
    return Normed(NormRows(s.stream_, *s.step_, norm));
  }
  static Normed FinalNorm(Pending<Sum::kComplete>&& s, const Norm& norm) {
    norm.AddAndApply(s.stream_.view(), s.update_.view(), s.update_.view(),
                     *s.step_);
    return Normed(std::move(s.update_));
  }

  static Hidden Fold(Written&& s) { return {std::move(s.stream_), *s.step_}; }
  static Hidden LoopNorm(Hidden&& h, const Norm& norm) {
    norm.Apply(h.rows_.view(), h.rows_.view(), *h.step_);
    return {std::move(h.rows_), *h.step_};
  }

  static Written Start(Hidden&& h) { return {std::move(h.rows_), *h.step_}; }
  static Written FromWire(Tensor rows, Step& step) {
    return {std::move(rows), step};
  }
  static Tensor ToWire(Written&& s) { return std::move(s.stream_); }

  static boundary::Captured Snapshot(Written&& s) {
    Tensor copy = s.step_->NewTensor(s.stream_.dtype(), s.stream_.shape());
    if (s.step_->status().ok()) {
      s.step_->Copy(copy.view(), s.stream_.view());
    }
    return {std::move(copy), std::move(s)};
  }

 private:
  template <Sum S>
  static boundary::Entered ReduceAndPrepare(Pending<S>&& s, const Norm& norm) {
    const View partial = s.update_.view();
    Scratch x = s.step_->NewScratch(partial.dim(0), partial.dim(1));
    norm.ReduceAddAndApply(s.stream_.view(), partial, x.view(), *s.step_);
    return {Input(std::move(x)), Open(std::move(s.stream_), *s.step_)};
  }
  static Scratch NormRows(const Tensor& stream, Step& step, const Norm& norm) {
    const Shape& shape = stream.shape();
    Scratch x = step.NewScratch(shape[0], shape[1]);
    norm.Apply(stream.view(), x.view(), step);
    return x;
  }
};

Pending<Sum::kPartial> Open::Leave(Output<Sum::kPartial>&& output) && {
  return StreamAccess::Leave(std::move(*this), std::move(output));
}
Pending<Sum::kComplete> Open::Leave(Output<Sum::kComplete>&& output) && {
  return StreamAccess::Leave(std::move(*this), std::move(output));
}
Written Open::AddPostNorm(Output<Sum::kComplete>&& output,
                          const Norm& norm) && {
  return StreamAccess::AddPostNorm(std::move(*this), std::move(output), norm);
}

Output<Sum::kComplete> AllReduce(Output<Sum::kPartial>&& output,
                                 Collective& group) {
  return StreamAccess::Reduced(std::move(output), group);
}

Output<Sum::kComplete> ReduceScatter(Output<Sum::kPartial>&& output,
                                     Collective& group) {
  BATON_CHECK(group.size() == 1);  // rows have one layout so far
  return StreamAccess::Moved(std::move(output));
}

Output<Sum::kComplete> MoveRows(Output<Sum::kComplete>&& output,
                                Collective& group) {
  return std::move(output);  // rows have one layout so far: all on every rank
}

namespace boundary {

Written Start(Hidden&& hidden) {
  return StreamAccess::Start(std::move(hidden));
}

StatusOr<Written> FromWire(const WireStream& wire, const WireSpec& expected,
                           Step& step) {
  const Shape shape{expected.rows, expected.hidden};
  if (wire.rows.shape() != shape || wire.rows.dtype() != expected.dtype) {
    return InvalidArgument("stream from the wire: {} {}, the step says {} {}",
                           Name(wire.rows.dtype()), ToString(wire.rows.shape()),
                           Name(expected.dtype), ToString(shape));
  }
  if (wire.next != expected.next) {
    return InvalidArgument(
        "stream from the wire enters unrolled layer {}, the step says {}",
        wire.next.value(), expected.next.value());
  }
  Tensor rows = step.NewTensor(expected.dtype, shape);
  BATON_RETURN_IF_ERROR(step.status());
  step.Copy(rows.view(), wire.rows);
  return StreamAccess::FromWire(std::move(rows), step);
}

Entered Read(Written&& stream) { return StreamAccess::Read(std::move(stream)); }
Entered Prepare(Written&& stream, const Norm& norm) {
  return StreamAccess::Prepare(std::move(stream), norm);
}
Entered Prepare(Pending<Sum::kPartial>&& stream, const Norm& norm) {
  return StreamAccess::Prepare(std::move(stream), norm);
}
Entered Prepare(Pending<Sum::kComplete>&& stream, const Norm& norm) {
  return StreamAccess::Prepare(std::move(stream), norm);
}

Normed FinalNorm(Written&& stream, const Norm& norm) {
  return StreamAccess::FinalNorm(std::move(stream), norm);
}
Normed FinalNorm(Pending<Sum::kComplete>&& stream, const Norm& norm) {
  return StreamAccess::FinalNorm(std::move(stream), norm);
}

Hidden Fold(Written&& stream) { return StreamAccess::Fold(std::move(stream)); }
Hidden Fold(Pending<Sum::kComplete>&& stream) {
  return StreamAccess::Fold(StreamAccess::Settle(std::move(stream)));
}
Hidden LoopNorm(Hidden&& hidden, const Norm& norm) {
  return StreamAccess::LoopNorm(std::move(hidden), norm);
}

Tensor ToWire(Written&& stream) {
  return StreamAccess::ToWire(std::move(stream));
}
Tensor ToWire(Pending<Sum::kComplete>&& stream) {
  return StreamAccess::ToWire(StreamAccess::Settle(std::move(stream)));
}

Captured Snapshot(Written&& stream) {
  return StreamAccess::Snapshot(std::move(stream));
}
Captured Snapshot(Pending<Sum::kComplete>&& stream) {
  return StreamAccess::Snapshot(StreamAccess::Settle(std::move(stream)));
}

}  // namespace boundary
}  // namespace baton
