// SPDX-License-Identifier: Apache-2.0
// Attention over latents: shapes, then head_matmul.h and latent_attention.h.
#include "kernels/ops/latent_attention.h"

#include "kernels/cuda/batch_shapes.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/head_matmul.h"
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

Status HeadMatmulCuda(const baton::HeadMatmul::Args& args, Stream& stream) {
  ShapeMatch match("head_matmul");
  match.Match("x", args.x, {"tokens", "columns"})
      .Match("out", args.out, {"tokens", "outputs"})
      .IsType("x", args.x, DType::kBF16)
      .IsType("out", args.out, DType::kBF16);
  BATON_RETURN_IF_ERROR(match.status());
  const auto heads = static_cast<int64_t>(args.weights.size());
  match.Require(heads > 0, "there must be a head");
  BATON_RETURN_IF_ERROR(match.status());
  const PackedMatrix& first = args.weights[0];
  const int64_t stride = match["columns"] / heads;
  match
      .Require(match["columns"] % heads == 0 && first.k <= stride,
               "x must have columns enough for each head")
      .Require(match["outputs"] == heads * first.n,
               "out must be as wide as all heads");
  for (const PackedMatrix& weight : args.weights) {
    match.Require(weight.n == first.n && weight.k == first.k,
                  "heads must have matrices of one shape");
  }
  BATON_RETURN_IF_ERROR(match.status());
  BATON_ASSIGN_OR_RETURN(const GroupedWeights* weights,
                         Context::Of(stream).Grouped(args.weights));
  return CudaStatus(HeadMatmul({.pointers = weights->pointers,
                                .heads = heads,
                                .n = weights->n,
                                .k = weights->k,
                                .ldw = weights->ldw},
                               {.x = args.x.data(),
                                .ldx = args.x.row_stride(),
                                .head_stride = stride,
                                .out = args.out.data(),
                                .ldo = args.out.row_stride(),
                                .rows = match["tokens"]},
                               CudaStreamOf(stream)),
                    "head_matmul");
}

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
