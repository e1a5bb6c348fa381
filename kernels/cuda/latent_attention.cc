// SPDX-License-Identifier: Apache-2.0
// Attention over latents: shapes, then latent_attention.h.
#include "kernels/ops/latent_attention.h"

#include "kernels/cuda/batch_shapes.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/latent_attention.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cuda {
namespace {

LatentPages PagesOf(const baton::LatentPages& pages, const DeviceBatch& batch) {
  return {.pool = pages.data,
          .page_bytes = pages.PageBytes(),
          .page_table = batch.page_table,
          .page_stride = batch.page_stride,
          .latent = pages.latent,
          .shared = pages.shared};
}

Status Attend(const baton::LatentAttention::Args& args, const RowRun& run,
              Stream& stream) {
  const DeviceBatch& batch = *args.batch->device;
  Context& context = Context::Of(stream);
  const int64_t heads = args.q.dim(1);
  const int64_t head_stride = args.q.dim(2);
  const ConstView q_latent =
      args.q_latent.Rows(run.first, run.first + run.rows);
  const ConstView q = args.q.Rows(run.first, run.first + run.rows);
  const View out = args.out.Rows(run.first, run.first + run.rows);
  const int64_t spans =
      run.kind == RowKind::kGenerated ? LatentSpans(batch.longest) : 0;
  BATON_ASSIGN_OR_RETURN(
      void* const scratch,
      context.Workspace(LatentScratchBytes(run.rows, heads, spans)));
  const auto shared_at = static_cast<size_t>((head_stride - args.pages.shared) *
                                             SizeOf(DType::kBF16));
  return CudaStatus(
      LatentAttention({.q_latent = q_latent.data(),
                       .q_latent_stride = q_latent.row_stride(),
                       .q_shared = q.data() + shared_at,
                       .q_shared_stride = q.row_stride(),
                       .head_stride = head_stride,
                       .out = out.data(),
                       .out_stride = out.row_stride(),
                       .rows = run.rows,
                       .heads = heads,
                       .positions = batch.positions + run.first,
                       .row_sequence = batch.row_sequence + run.first,
                       .pages = PagesOf(args.pages, batch),
                       .scale = args.scale,
                       .max_spans = spans,
                       .scratch = scratch},
                      context.stream()),
      "latent_attention");
}

}  // namespace

Status LatentWriteCuda(const baton::LatentWrite::Args& args, Stream& stream) {
  ShapeMatch match("latent_write");
  match.Match("rows", args.rows, {"tokens", "width"})
      .IsType("rows", args.rows, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  match.Require(match["width"] == args.pages.Width(),
                "rows must be as the pages'");
  MatchBatch(match, args.batch, match["tokens"], args.pages.dtype);
  BATON_RETURN_IF_ERROR(match.status());
  const DeviceBatch& batch = *args.batch->device;
  return CudaStatus(LatentWrite({.rows = args.rows.data(),
                                 .stride = args.rows.row_stride(),
                                 .count = match["tokens"],
                                 .positions = batch.positions,
                                 .row_sequence = batch.row_sequence,
                                 .pages = PagesOf(args.pages, batch)},
                                CudaStreamOf(stream)),
                    "latent_write");
}

Status LatentAttentionCuda(const baton::LatentAttention::Args& args,
                           Stream& stream) {
  ShapeMatch match("latent_attention");
  match.Match("q_latent", args.q_latent, {"tokens", "heads", "latent"})
      .Match("q", args.q, {"tokens", "heads", "head_width"})
      .Match("out", args.out, {"tokens", "heads", "latent"})
      .IsType("q_latent", args.q_latent, DType::kBF16)
      .IsType("q", args.q, DType::kBF16)
      .IsType("out", args.out, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  match.Require(match["latent"] == args.pages.latent, "latent of the pages")
      .Require(match["head_width"] >= args.pages.shared,
               "heads of q must hold the shared columns");
  MatchBatch(match, args.batch, match["tokens"], args.pages.dtype);
  BATON_RETURN_IF_ERROR(match.status());
  for (const RowRun& run : args.batch->runs) {
    BATON_RETURN_IF_ERROR(Attend(args, run, stream));
  }
  return OkStatus();
}

}  // namespace baton::cuda
