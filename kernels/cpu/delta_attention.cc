// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/delta_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/batch_shapes.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/scratch.h"
#include "runtime/base/thread_pool.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {
namespace {

// Channels of a unit of work of a convolution.
constexpr int64_t kConvChannels = 512;

template <typename T>
T* StateOf(const StateSlots& states, const SequenceSpan& sequence) {
  return reinterpret_cast<T*>(states.data +
                              sequence.state_slot * states.slot_bytes);
}

// The last rows of [before | x] become the rows before the next one.
template <typename T>
void KeepLast(const ConvTile<T>& tile, T* state) {
  const int64_t kept = tile.taps - 1;
  for (int64_t i = 0; i < kept; ++i) {
    const int64_t row = tile.rows - kept + i;
    const T* from = row < 0 ? state + (kept + row) * tile.before_stride
                            : tile.x + row * tile.x_stride;
    std::memcpy(static_cast<void*>(state + i * tile.before_stride), from,
                static_cast<size_t>(tile.channels) * sizeof(T));
  }
}

template <typename T>
void Convolve(const ShortConv::Args& args, const InnerLoops<T>& loops,
              const SequenceSpan& sequence, int64_t begin) {
  const int64_t channels = args.x.dim(1);
  T* state = StateOf<T>(args.states, sequence) + begin;
  const ConvTile<T> tile = {
      .x = args.x.template Row<T>(sequence.first_row) + begin,
      .x_stride = args.x.row_stride(),
      .before = state,
      .before_stride = channels,
      .weight = args.weight.template Row<float>(0) + begin,
      .weight_stride = args.weight.row_stride(),
      .out = args.out.template Row<T>(sequence.first_row) + begin,
      .out_stride = args.out.row_stride(),
      .rows = sequence.rows,
      .taps = args.weight.dim(0),
      .channels = std::min(kConvChannels, channels - begin)};
  loops.short_conv(tile);
  KeepLast(tile, state);
}

// Rows of one head.
template <typename T, typename V>
Strided<T> HeadRows(const V& view, const SequenceSpan& sequence, int64_t head) {
  const int64_t dim = view.shape().rank() == 3 ? view.dim(2) : 1;
  return {view.template Row<std::remove_const_t<T>>(sequence.first_row) +
              head * dim,
          view.row_stride()};
}

template <typename T>
void RunHead(const DeltaRule::Args& args, const InnerLoops<T>& loops,
             const SequenceSpan& sequence, int64_t head) {
  const int64_t dim = args.q.dim(2);
  thread_local Scratch scratch;
  loops.delta_rule(
      {.q = HeadRows<const T>(args.q, sequence, head),
       .k = HeadRows<const T>(args.k, sequence, head),
       .v = HeadRows<const T>(args.v, sequence, head),
       .decay = HeadRows<const T>(args.decay, sequence, head),
       .beta = HeadRows<const T>(args.beta, sequence, head),
       .rate = args.rate.template Row<float>(0)[head],
       .decay_bias = args.decay_bias.template Row<float>(head),
       .state = StateOf<float>(args.states, sequence) + head * dim * dim,
       .out = HeadRows<T>(args.out, sequence, head),
       .rows = sequence.rows,
       .dim = dim,
       .q_scale = 1.0f / std::sqrt(static_cast<float>(dim)),
       .scratch = scratch.Get<float>(DeltaScratch(dim))});
}

// Calls body(sequence, part) for all parts of all sequences with rows.
template <typename Body>
void ForSequenceParts(Stream& stream, const AttentionBatch& batch,
                      int64_t parts, const Body& body) {
  const auto sequences = static_cast<int64_t>(batch.sequences.size());
  PoolOf(stream).ParallelFor(
      sequences * parts, 1, [&](int64_t unit, int64_t end, int) {
        for (; unit < end; ++unit) {
          const SequenceSpan& sequence =
              batch.sequences[static_cast<size_t>(unit / parts)];
          if (sequence.rows > 0) body(sequence, unit % parts);
        }
      });
}

}  // namespace

template <typename T, CpuIsa kIsa>
Status ShortConvCpu(const ShortConv::Args& args, Stream& stream) {
  ShapeMatch match("short_conv");
  match.Match("x", args.x, {"tokens", "channels"})
      .Match("weight", args.weight, {"taps", "channels"})
      .Match("out", args.out, {"tokens", "channels"})
      .IsType("x", args.x, kDTypeOf<T>)
      .IsType("weight", args.weight, DType::kF32)
      .IsType("out", args.out, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t channels = match["channels"];
  match.Require(match["taps"] >= 1, "there must be a tap");
  MatchStates(match, args.batch, args.states,
              (match["taps"] - 1) * channels * SizeOf(kDTypeOf<T>),
              match["tokens"]);
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t blocks = (channels + kConvChannels - 1) / kConvChannels;
  ForSequenceParts(stream, *args.batch, blocks,
                   [&](const SequenceSpan& sequence, int64_t block) {
                     Convolve(args, loops, sequence, block * kConvChannels);
                   });
  return OkStatus();
}

template <typename T, CpuIsa kIsa>
Status ShortConvAndHeadMatmulCpu(const ShortConvAndHeadMatmul::Args& args,
                                 Stream& stream) {
  BATON_RETURN_IF_ERROR((ShortConvCpu<T, kIsa>(args.conv, stream)));
  return HeadMatmulCpu<T, kIsa>(args.heads, stream);
}

template <typename T, CpuIsa kIsa>
Status DeltaRuleCpu(const DeltaRule::Args& args, Stream& stream) {
  ShapeMatch match("delta_rule");
  const std::pair<const char*, ConstView> inputs[] = {{"q", args.q},
                                                      {"k", args.k},
                                                      {"v", args.v},
                                                      {"decay", args.decay},
                                                      {"out", args.out}};
  for (const auto& [name, view] : inputs) {
    match.Match(name, view, {"tokens", "heads", "dim"})
        .IsType(name, view, kDTypeOf<T>);
  }
  match.Match("beta", args.beta, {"tokens", "heads"})
      .Match("rate", args.rate, {"heads"})
      .Match("decay_bias", args.decay_bias, {"heads", "dim"})
      .IsType("beta", args.beta, kDTypeOf<T>)
      .IsType("rate", args.rate, DType::kF32)
      .IsType("decay_bias", args.decay_bias, DType::kF32);
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t heads = match["heads"];
  const int64_t dim = match["dim"];
  MatchStates(match, args.batch, args.states,
              heads * dim * dim * SizeOf(DType::kF32), match["tokens"]);
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  ForSequenceParts(stream, *args.batch, heads,
                   [&](const SequenceSpan& sequence, int64_t head) {
                     RunHead(args, loops, sequence, head);
                   });
  return OkStatus();
}

template <typename T, CpuIsa kIsa>
Status GatedRmsNormCpu(const GatedRmsNorm::Args& args, Stream& stream) {
  ShapeMatch match("gated_rms_norm");
  match.Match("x", args.x, {"tokens", "heads", "dim"})
      .Match("weight", args.weight, {"dim"})
      .Match("gate", args.gate, {"tokens", "heads", "dim"})
      .Match("out", args.out, {"tokens", "heads", "dim"})
      .IsType("x", args.x, kDTypeOf<T>)
      .IsType("weight", args.weight, DType::kF32)
      .IsType("gate", args.gate, kDTypeOf<T>)
      .IsType("out", args.out, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t heads = match["heads"];
  const int64_t dim = match["dim"];
  const float* weight = args.weight.template Row<float>(0);
  ForRows(stream, match["tokens"], heads * dim, [&](int64_t row) {
    for (int64_t at = 0; at < heads * dim; at += dim) {
      loops.gated_rms_norm(args.x.template Row<T>(row) + at, weight,
                           args.gate.template Row<T>(row) + at,
                           args.out.template Row<T>(row) + at, dim, args.eps);
    }
  });
  return OkStatus();
}

template <typename T, CpuIsa kIsa>
Status DeltaRuleNormedCpu(const DeltaRuleNormed::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR((DeltaRuleCpu<T, kIsa>(args.rule, stream)));
  return GatedRmsNormCpu<T, kIsa>({.x = args.rule.out,
                                   .weight = args.weight,
                                   .gate = args.gate,
                                   .out = args.rule.out,
                                   .eps = args.eps},
                                  stream);
}

BATON_INSTANTIATE_CPU(ShortConvCpu, ShortConv);
BATON_INSTANTIATE_CPU(ShortConvAndHeadMatmulCpu, ShortConvAndHeadMatmul);
BATON_INSTANTIATE_CPU(DeltaRuleCpu, DeltaRule);
BATON_INSTANTIATE_CPU(GatedRmsNormCpu, GatedRmsNorm);
BATON_INSTANTIATE_CPU(DeltaRuleNormedCpu, DeltaRuleNormed);

}  // namespace baton::cpu
