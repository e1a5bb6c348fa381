// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/latent_attention.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/batch_shapes.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/scratch.h"
#include "kernels/ops/match_heads.h"
#include "runtime/base/thread_pool.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {
namespace {

void MatchLatents(ShapeMatch& match, const LatentPages& pages,
                  const AttentionBatch* batch, DType dtype, int64_t tokens) {
  match.Require(pages.dtype == dtype,
                "the pages must be of the kernel's dtype");
  MatchPages(match, batch, /*window=*/0, pages.num_pages, tokens);
}

// Of every row of the batch its sequence and position.
struct RowPlace {
  const SequenceSpan* sequence;
  int64_t position;
};
std::vector<RowPlace> PlacesOf(const AttentionBatch& batch) {
  std::vector<RowPlace> places;
  for (const SequenceSpan& sequence : batch.sequences) {
    for (int64_t i = 0; i < sequence.rows; ++i) {
      places.push_back({&sequence, sequence.first_position + i});
    }
  }
  return places;
}

// Up to a tile of heads from `head` on of one row.
template <typename T>
void RunHeads(const LatentAttention::Args& args, const InnerLoops<T>& loops,
              const RowPlace& place, int64_t row, int64_t head) {
  const LatentPages& pages = args.pages;
  const int64_t head_width = args.q.dim(2);
  const int64_t left = args.q.dim(1) - head;
  thread_local Scratch scratch;
  LatentTile<T> tile;
  tile.queries =
      static_cast<int>(std::min<int64_t>(left, LatentTile<T>::kMaxQueries));
  for (int i = 0; i < tile.queries; ++i) {
    const int64_t at = head + i;
    tile.latent_query[i] =
        args.q_latent.template Row<T>(row) + at * pages.latent;
    tile.shared_query[i] =
        args.q.template Row<T>(row) + (at + 1) * head_width - pages.shared;
    tile.out[i] = args.out.template Row<T>(row) + at * pages.latent;
  }
  tile.visible = place.position + 1;
  tile.pages = place.sequence->pages.data();
  tile.data = pages.data;
  tile.page_bytes = pages.PageBytes();
  tile.latent = pages.latent;
  tile.width = pages.Width();
  tile.scale = args.scale;
  tile.scratch = scratch.Get<float>(LatentScratch(tile.width));
  loops.latent_attention(tile);
}

}  // namespace

template <typename T, CpuIsa kIsa>
Status HeadMatmulCpu(const HeadMatmul::Args& args, Stream& stream) {
  ShapeMatch match("head_matmul");
  BATON_RETURN_IF_ERROR(MatchHeads(match, args, kDTypeOf<T>));
  const auto heads = static_cast<int64_t>(args.weights.size());
  const int64_t stride = match["columns"] / heads;
  const PackedMatrix& first = args.weights[0];
  for (int64_t head = 0; head < heads; ++head) {
    BATON_RETURN_IF_ERROR((MatmulCpu<T, kIsa>(
        {.x = args.x.Columns(head * stride, head * stride + first.k),
         .weight = args.weights[static_cast<size_t>(head)],
         .out = args.out.Columns(head * first.n, (head + 1) * first.n)},
        stream)));
  }
  return OkStatus();
}

template <typename T>
Status LatentWriteCpu(const LatentWrite::Args& args, Stream& stream) {
  ShapeMatch match("latent_write");
  match.Match("rows", args.rows, {"tokens", "width"})
      .IsType("rows", args.rows, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());
  const LatentPages& pages = args.pages;
  match.Require(match["width"] == pages.Width(), "rows must be as the pages'");
  MatchLatents(match, pages, args.batch, kDTypeOf<T>, match["tokens"]);
  BATON_RETURN_IF_ERROR(match.status());

  const int64_t width = pages.Width();
  const std::vector<RowPlace> places = PlacesOf(*args.batch);
  ForRows(stream, match["tokens"], width, [&](int64_t row) {
    const auto& [sequence, position] = places[static_cast<size_t>(row)];
    const PageId page =
        sequence->pages[static_cast<size_t>(position / kPageTokens)];
    T* to = reinterpret_cast<T*>(pages.data + page * pages.PageBytes()) +
            position % kPageTokens * width;
    std::memcpy(static_cast<void*>(to), args.rows.template Row<T>(row),
                static_cast<size_t>(width) * sizeof(T));
  });
  return OkStatus();
}

template <typename T, CpuIsa kIsa>
Status LatentAttentionCpu(const LatentAttention::Args& args, Stream& stream) {
  ShapeMatch match("latent_attention");
  match.Match("q_latent", args.q_latent, {"tokens", "heads", "latent"})
      .Match("q", args.q, {"tokens", "heads", "head_width"})
      .Match("out", args.out, {"tokens", "heads", "latent"})
      .IsType("q_latent", args.q_latent, kDTypeOf<T>)
      .IsType("q", args.q, kDTypeOf<T>)
      .IsType("out", args.out, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());
  match.Require(match["latent"] == args.pages.latent, "latent of the pages")
      .Require(match["head_width"] >= args.pages.shared,
               "heads of q must hold the shared columns");
  MatchLatents(match, args.pages, args.batch, kDTypeOf<T>, match["tokens"]);
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  constexpr int64_t kHeads = LatentTile<T>::kMaxQueries;
  const int64_t groups = (match["heads"] + kHeads - 1) / kHeads;
  const std::vector<RowPlace> places = PlacesOf(*args.batch);
  PoolOf(stream).ParallelFor(
      match["tokens"] * groups, 1, [&](int64_t unit, int64_t end, int) {
        for (; unit < end; ++unit) {
          const int64_t row = unit / groups;
          RunHeads<T>(args, loops, places[static_cast<size_t>(row)], row,
                      unit % groups * kHeads);
        }
      });
  return OkStatus();
}

BATON_INSTANTIATE_CPU(HeadMatmulCpu, HeadMatmul);
BATON_INSTANTIATE_CPU(LatentAttentionCpu, LatentAttention);
template Status LatentWriteCpu<float>(const LatentWrite::Args&, Stream&);
template Status LatentWriteCpu<bf16>(const LatentWrite::Args&, Stream&);

}  // namespace baton::cpu
