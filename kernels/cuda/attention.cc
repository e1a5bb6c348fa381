// SPDX-License-Identifier: Apache-2.0
// Ops on queries, keys and values: shapes, then one kernel per kind of row.
#include <algorithm>
#include <cstddef>
#include <limits>

#include "kernels/cuda/batch_shapes.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/prompt_attention.h"
#include "kernels/cuda/rotate_and_store.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cuda {
namespace {

static_assert(kPageTokens == baton::kPageTokens);
static_assert(kPromptTileRows == baton::kPromptTileRows);
static_assert(sizeof(PromptTile) == sizeof(baton::PromptTile) &&
              offsetof(PromptTile, sequence) ==
                  offsetof(baton::PromptTile, sequence));

KvPages PagesOf(const baton::KvPages& pages, const DeviceBatch& batch) {
  constexpr int64_t kAll = std::numeric_limits<int32_t>::max();
  return {
      .pool = pages.data,
      .page_bytes = pages.PageBytes(),
      .page_table = pages.window > 0 ? batch.window_table : batch.page_table,
      .page_stride = batch.page_stride,
      .kv_heads = pages.kv_heads,
      .head_dim = pages.head_dim,
      .window = static_cast<int32_t>(std::min(pages.window, kAll))};
}

StatusOr<DecodeAttentionArgs> DecodeArgsOf(const PagedAttention::Args& args,
                                           const RowRun& run,
                                           Context& context) {
  const DeviceBatch& batch = *args.batch->device;
  const int64_t heads = args.q.dim(1);
  const int64_t head_dim = args.q.dim(2);
  const KvPages pages = PagesOf(args.pages, batch);
  const int64_t spans = DecodeSpans(batch.longest, pages.window);
  BATON_ASSIGN_OR_RETURN(
      void* const scratch,
      context.Workspace(DecodeScratchBytes(run.rows, heads, args.pages.kv_heads,
                                           head_dim, spans)));
  BATON_ASSIGN_OR_RETURN(
      int32_t* const counters,
      context.Counters(DecodeCounters(run.rows, heads, args.pages.kv_heads)));
  const ConstView q = args.q.Rows(run.first, run.first + run.rows);
  const View out = args.out.Rows(run.first, run.first + run.rows);
  return DecodeAttentionArgs{.q = q.data(),
                             .q_stride = q.row_stride(),
                             .out = out.data(),
                             .out_stride = out.row_stride(),
                             .rows = run.rows,
                             .q_heads = heads,
                             .positions = batch.positions + run.first,
                             .row_sequence = batch.row_sequence + run.first,
                             .sequences = batch.sequences,
                             .pages = pages,
                             .scale = args.scale,
                             .max_spans = spans,
                             .scratch = scratch,
                             .counters = counters};
}

Status Generated(const PagedAttention::Args& args, const RowRun& run,
                 Context& context) {
  BATON_ASSIGN_OR_RETURN(const DecodeAttentionArgs decode,
                         DecodeArgsOf(args, run, context));
  return CudaStatus(DecodeAttention(decode, context.stream()),
                    "paged_attention");
}

Status Prompts(const PagedAttention::Args& args, Stream& stream) {
  const DeviceBatch& batch = *args.batch->device;
  return CudaStatus(
      PromptAttention(
          {.q = args.q.data(),
           .q_stride = args.q.row_stride(),
           .out = args.out.data(),
           .out_stride = args.out.row_stride(),
           .q_heads = args.q.dim(1),
           .tiles = reinterpret_cast<const PromptTile*>(batch.tiles),
           .num_tiles = batch.num_tiles,
           .pages = PagesOf(args.pages, batch),
           .scale = args.scale},
          CudaStreamOf(stream)),
      "paged_attention");
}

// With all shapes checked.
StatusOr<RotateAndStoreArgs> EntryOf(const RotateAndStore::Args& args) {
  ShapeMatch match("rotate_and_store");
  match.Match("q", args.q, {"tokens", "heads", "head_dim"})
      .Match("k", args.k, {"tokens", "kv_heads", "head_dim"})
      .Match("v", args.v, {"tokens", "kv_heads", "head_dim"})
      .IsType("q", args.q, DType::kBF16)
      .IsType("k", args.k, DType::kBF16)
      .IsType("v", args.v, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  match
      .Require(args.q.row_stride() == args.k.row_stride() &&
                   args.q.row_stride() == args.v.row_stride(),
               "q, k and v are equally far apart")
      .Require(match["kv_heads"] == args.pages.kv_heads,
               "kv_heads of the pages")
      .Require(match["head_dim"] == args.pages.head_dim,
               "head_dim of the pages");
  MatchBatch(match, args.batch, match["tokens"], args.pages.dtype);
  if (args.q_norm.data() != nullptr) {
    match.Match("q_norm", args.q_norm, {"head_dim"})
        .Match("k_norm", args.k_norm, {"head_dim"})
        .IsType("q_norm", args.q_norm, DType::kBF16)
        .IsType("k_norm", args.k_norm, DType::kBF16);
  }
  int64_t num_freqs = 0;
  if (args.inv_freq.data() != nullptr) {
    match.IsType("inv_freq", args.inv_freq, DType::kF32);
    num_freqs = args.inv_freq.dim(0);
  }
  BATON_RETURN_IF_ERROR(match.status());
  const DeviceBatch& batch = *args.batch->device;
  return RotateAndStoreArgs{
      .q = args.q.data(),
      .k = args.k.data(),
      .v = args.v.data(),
      .row_stride = args.q.row_stride(),
      .rows = match["tokens"],
      .q_heads = match["heads"],
      .q_norm = args.q_norm.data(),
      .k_norm = args.k_norm.data(),
      .eps = args.eps,
      .inv_freq = reinterpret_cast<const float*>(args.inv_freq.data()),
      .num_freqs = num_freqs,
      .amplitude = args.amplitude,
      .positions = batch.positions,
      .row_sequence = batch.row_sequence,
      .pages = PagesOf(args.pages, batch)};
}

Status MatchAttention(const PagedAttention::Args& args) {
  ShapeMatch match("paged_attention");
  match.Match("q", args.q, {"tokens", "heads", "head_dim"})
      .Match("out", args.out, {"tokens", "heads", "head_dim"})
      .IsType("q", args.q, DType::kBF16)
      .IsType("out", args.out, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  match.Require(match["head_dim"] == args.pages.head_dim,
                "head_dim of the pages");
  MatchBatch(match, args.batch, match["tokens"], args.pages.dtype);
  return match.status();
}

Status Attend(const PagedAttention::Args& args, Stream& stream) {
  for (const RowRun& run : args.batch->runs) {
    if (run.kind == RowKind::kGenerated) {
      BATON_RETURN_IF_ERROR(Generated(args, run, Context::Of(stream)));
    }
  }
  return Prompts(args, stream);
}

}  // namespace

Status RotateAndStoreCuda(const RotateAndStore::Args& args, Stream& stream) {
  BATON_ASSIGN_OR_RETURN(const RotateAndStoreArgs entry, EntryOf(args));
  return CudaStatus(RotateAndStore(entry, CudaStreamOf(stream)),
                    "rotate_and_store");
}

Status PagedAttentionCuda(const PagedAttention::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR(MatchAttention(args));
  return Attend(args, stream);
}

Status RotateAndAttendCuda(const RotateAndAttend::Args& args, Stream& stream) {
  BATON_ASSIGN_OR_RETURN(const RotateAndStoreArgs entry, EntryOf(args.entry));
  const PagedAttention::Args attention = {.q = args.entry.q,
                                          .pages = args.entry.pages,
                                          .batch = args.entry.batch,
                                          .scale = args.scale,
                                          .out = args.out};
  BATON_RETURN_IF_ERROR(MatchAttention(attention));
  Context& context = Context::Of(stream);
  if (HasOneRowEach(*attention.batch)) {
    const RowRun all = {RowKind::kGenerated, 0, entry.rows};
    BATON_ASSIGN_OR_RETURN(const DecodeAttentionArgs decode,
                           DecodeArgsOf(attention, all, context));
    const cudaError_t error = RotateAndAttend(entry, decode, context.stream());
    if (error != cudaErrorNotSupported) {
      return CudaStatus(error, "rotate_and_attend");
    }
  }
  BATON_RETURN_IF_ERROR(
      CudaStatus(RotateAndStore(entry, context.stream()), "rotate_and_store"));
  return Attend(attention, stream);
}

}  // namespace baton::cuda
