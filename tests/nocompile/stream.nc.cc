// SPDX-License-Identifier: Apache-2.0
// Forbidden sequences of the residual stream; CMakeLists.txt here says how they
// are run. Contract: models/residual/README.md.
#include "tests/nocompile/stream_nc.h"

namespace baton {

using Partial = Output<Sum::kPartial>;
using Complete = Output<Sum::kComplete>;
using PendingPartial = Pending<Sum::kPartial>;
using PendingComplete = Pending<Sum::kComplete>;

// A sublayer of each kind.
Partial Attend(Input&& x, Step& step);
Complete FeedForward(Input&& x, Step& step);

// Control: a pre-norm and a post-norm layer, a loop's end, a cut, a head.
struct PreNorm {
  using Between = PendingComplete;
  Between Forward(StreamForm auto s, Step& step) const {
    auto [x, open] = boundary::Prepare(std::move(s), norm);
    PendingPartial mid = std::move(open).Leave(Attend(std::move(x), step));
    auto [h, open2] = boundary::Prepare(std::move(mid), norm);
    return std::move(open2).Leave(FeedForward(std::move(h), step));
  }
  const Norm& norm;
};
struct PostNorm {
  using Between = Written;
  Written Forward(Written s, Step& step) const {
    auto [x, open] = boundary::Read(std::move(s));
    return std::move(open).AddPostNorm(
        AllReduce(Attend(std::move(x), step), step.tp()), norm);
  }
  const Norm& norm;
};
static_assert(DecoderLayer<PreNorm> && DecoderLayer<PostNorm>);
static_assert(!std::is_copy_constructible_v<Written> &&
              !std::is_copy_constructible_v<PendingComplete> &&
              !std::is_copy_constructible_v<Open> &&
              !std::is_copy_constructible_v<Input> &&
              !std::is_copy_constructible_v<Complete> &&
              !std::is_copy_constructible_v<Hidden>);

Tensor Cut(Hidden h, const PreNorm& layer, const Norm& norm, Step& step) {
  Written s = boundary::Start(std::move(h));
  PendingComplete p = layer.Forward(std::move(s), step);
  p = layer.Forward(std::move(p), step);
  Hidden folded = boundary::LoopNorm(boundary::Fold(std::move(p)), norm);
  auto [copy, again] = boundary::Snapshot(boundary::Start(std::move(folded)));
  return boundary::ToWire(std::move(again));
}
Logits Head(PendingComplete p, const Norm& norm, const LmHead& head,
            Step& step) {
  return head(boundary::FinalNorm(std::move(p), norm), {}, step);
}
Complete Rows(Partial p, Step& step) {
  return MoveRows(ReduceScatter(std::move(p), step.tp()), step.tp());
}

#if defined(NC_POST_NORM_ON_A_PARTIAL)  // residual.post_norm
void F(Open open, Partial out, const Norm& norm) {
  Written s = std::move(open).AddPostNorm(std::move(out), norm);
}
#elif defined(NC_SUMS_TWICE)                  // residual.sum_once
void F(Partial out, Step& step) {
  Complete once = AllReduce(std::move(out), step.tp());
  Complete twice = AllReduce(std::move(once), step.tp());
}
#elif defined(NC_SCATTERS_A_COMPLETE_OUTPUT)  // residual.sum_once
void F(Complete out, Step& step) {
  Complete twice = ReduceScatter(std::move(out), step.tp());
}
#elif defined(NC_MOVES_ROWS_OF_A_PARTIAL)     // residual.move_rows
void F(Partial out, Step& step) {
  Complete moved = MoveRows(std::move(out), step.tp());
}
#elif defined(NC_LEAVES_TWICE)                // no member named 'Leave'
void F(Open open, Complete a, Complete b) {
  PendingComplete s = std::move(open).Leave(std::move(a)).Leave(std::move(b));
}
#elif defined(NC_LEAVES_SOMETHING_ELSE)       // residual.open
void F(Open open, Input x) {
  PendingComplete s = std::move(open).Leave(std::move(x));
}
#elif defined(NC_LEAVES_INTO_AN_LVALUE)       // residual.consumed
void F(Open open, Complete out) {
  PendingComplete s = open.Leave(std::move(out));
}
#elif defined(NC_PREPARES_AN_LVALUE)          // residual.consumed
void F(Written s, const Norm& norm) {
  boundary::Entered e = boundary::Prepare(s, norm);
}
#elif defined(NC_SENDS_AN_LVALUE)             // residual.consumed
void F(Written s) { Tensor t = boundary::ToWire(s); }
#elif defined(NC_SUMS_AN_LVALUE)              // residual.consumed
void F(Partial out, Step& step) { Complete sum = AllReduce(out, step.tp()); }
#elif defined(NC_HANDS_ON_THE_WRONG_FORM)  // could not convert|no viable conv
Written F(Open open, Complete out) {
  return std::move(open).Leave(std::move(out));
}
#elif defined(NC_LAYER_HANDS_ON_THE_WRONG_FORM)  // residual.between
struct Layer {
  using Between = Written;
  PendingComplete Forward(Written s, Step& step) const;
};
static_assert(DecoderLayer<Layer>, "residual.between");
#elif defined(NC_LAYER_HANDS_ON_A_PARTIAL)       // residual.between
struct Layer {
  using Between = PendingPartial;
  PendingPartial Forward(StreamForm auto s, Step& step) const;
};
static_assert(DecoderLayer<Layer>, "residual.between");
#elif defined(NC_COPIES_A_STREAM)                // deleted.*Written
void F(Written s) { Written copy = s; }
#elif defined(NC_COPIES_AN_OUTPUT)               // deleted.*Output
void F(Partial out) { Partial copy = out; }
#elif defined(NC_DROPS_A_STREAM)                 // residual.dropped
void F(Hidden h) { boundary::Start(std::move(h)); }
#elif defined(NC_DROPS_A_PENDING)                // residual.dropped
void F(Open open, Complete out) { std::move(open).Leave(std::move(out)); }
#elif defined(NC_DROPS_AN_OUTPUT)                // residual.dropped
void F(Input x, Step& step) { FeedForward(std::move(x), step); }
#elif defined(NC_DROPS_WHAT_IT_ENTERED)          // residual.dropped
void F(Written s) { boundary::Read(std::move(s)); }
#elif defined(NC_SENDS_A_PARTIAL)                // residual.to_wire
void F(PendingPartial s) { Tensor t = boundary::ToWire(std::move(s)); }
#elif defined(NC_SENDS_AN_OPEN_STREAM)           // residual.to_wire
void F(Open s) { Tensor t = boundary::ToWire(std::move(s)); }
#elif defined(NC_HEAD_READS_A_STREAM)            // residual.normed
void F(Written s, const LmHead& head, Step& step) {
  Logits logits = head(std::move(s), {}, step);
}
#elif defined(NC_HEAD_READS_AN_INPUT)            // residual.normed
void F(Input x, const LmHead& head, Step& step) {
  Logits logits = head(std::move(x), {}, step);
}
#elif defined(NC_NORMS_TWICE)                    // residual.final_norm
void F(Written s, const Norm& norm) {
  Normed twice =
      boundary::FinalNorm(boundary::FinalNorm(std::move(s), norm), norm);
}
#elif defined(NC_FINAL_NORM_OF_A_PARTIAL)        // residual.final_norm
void F(PendingPartial s, const Norm& norm) {
  Normed n = boundary::FinalNorm(std::move(s), norm);
}
#elif defined(NC_LOOP_NORM_WITHOUT_FOLD)         // residual.fold
void F(PendingComplete s, const Norm& norm) {
  Hidden h = boundary::LoopNorm(std::move(s), norm);
}
#elif defined(NC_FOLDS_A_PARTIAL)                // residual.fold
void F(PendingPartial s) { Hidden h = boundary::Fold(std::move(s)); }
#elif defined(NC_ENTERS_WITHOUT_START)           // residual.prepare
void F(Hidden h, const Norm& norm) {
  boundary::Entered e = boundary::Prepare(std::move(h), norm);
}
#elif defined(NC_MAKES_A_STREAM_BY_HAND)         // private
void F(Tensor rows, Step& step) { Written s(std::move(rows), step); }
#elif defined(NC_STARTS_A_STREAM_AGAIN)          // residual.start
void F(Written s) { Written again = boundary::Start(std::move(s)); }
#elif defined(NC_ENTERS_A_LAYER_WITH_HIDDEN)     // no matching|no match
struct Layer {
  PendingComplete Forward(StreamForm auto s, Step& step) const;
};
void F(const Layer& layer, Hidden h, Step& step) {
  PendingComplete s = layer.Forward(std::move(h), step);
}
#elif defined(NC_USES_UNCHECKED_ROWS)  // could not convert|no viable conv
Written F(const boundary::WireStream& wire, Step& step) {
  return boundary::FromWire(wire, {}, step);
}
#elif defined(NC_SNAPSHOTS_AN_UNSUMMED_UPDATE)  // residual.snapshot
void F(PendingPartial s) {
  boundary::Captured c = boundary::Snapshot(std::move(s));
}
#elif defined(NC_READS_PLAIN_WHAT_IS_PENDING)   // residual.read
void F(PendingComplete s) {
  boundary::Entered e = boundary::Read(std::move(s));
}
#elif defined(NC_REPLACES_A_PENDING_OUTPUT)     // no member named 'Leave'
void F(PendingComplete s, Complete out) {
  PendingComplete other = std::move(s).Leave(std::move(out));
}
#elif defined(NC_CAPTURES_A_PHYSICAL_LAYER)  // could not convert|no viable conv
CapturePoint F(LayerIndex layer) {
  return CapturePoint{.layer = layer, .edge = Edge::kAfter};
}
#elif defined(NC_COMPARES_LAYERS_OF_TWO_KINDS)  // no match|invalid operands
bool F(LayerIndex physical, UnrolledLayer unrolled) {
  return physical == unrolled;
}
#endif
}  // namespace baton
