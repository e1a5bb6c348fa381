// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/attention.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/attention_shapes.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/kernels.h"
#include "runtime/base/thread_pool.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {
namespace {

// Rows [begin, end) of a sequence for one KV head: what one tile computes.
struct Unit {
  const SequenceSpan* sequence;
  int64_t begin;
  int64_t end;
  int64_t kv_head;
};

// Cuts the batch so that the query vectors of a unit fill a tile. A ratio of
// query to KV heads beyond a tile is cut again in RunUnit.
std::vector<Unit> Cut(const PagedAttention::Args& args, int64_t ratio) {
  const int64_t rows_per_unit =
      std::max<int64_t>(1, AttentionTile<float>::kMaxQueries / ratio);
  std::vector<Unit> units;
  for (const SequenceSpan& sequence : args.batch->sequences) {
    for (int64_t kv = 0; kv < args.pages.kv_heads; ++kv) {
      for (int64_t row = 0; row < sequence.rows; row += rows_per_unit) {
        units.push_back(
            {&sequence, row, std::min(row + rows_per_unit, sequence.rows), kv});
      }
    }
  }
  return units;
}

// Of the keys before `end` that a row sees.
int64_t FirstKey(int64_t end, int64_t window) {
  return window > 0 ? std::max<int64_t>(0, end - window) : 0;
}

template <typename T>
void RunUnit(const PagedAttention::Args& args, const InnerLoops<T>& loops,
             const Unit& unit, int64_t ratio, float* scratch) {
  const SequenceSpan& sequence = *unit.sequence;
  AttentionTile<T> tile;
  tile.queries = 0;
  tile.pages = sequence.PagesOf(args.pages.window).data();
  tile.keys = reinterpret_cast<const std::byte*>(
      KeyBlock<T>(args.pages, 0, unit.kv_head));
  tile.values = reinterpret_cast<const std::byte*>(
      ValueBlock<T>(args.pages, 0, unit.kv_head));
  tile.page_bytes = args.pages.PageBytes();
  tile.head_dim = args.pages.head_dim;
  tile.scale = args.scale;
  tile.scratch = scratch;
  for (int64_t row = unit.begin; row < unit.end; ++row) {
    const T* q = args.q.template Row<T>(sequence.first_row + row);
    T* out = args.out.template Row<T>(sequence.first_row + row);
    for (int64_t i = 0; i < ratio; ++i) {
      const int64_t offset = (unit.kv_head * ratio + i) * tile.head_dim;
      tile.query[tile.queries] = q + offset;
      tile.out[tile.queries] = out + offset;
      const int64_t end = sequence.first_position + row + 1;
      tile.visible[tile.queries] = end;
      tile.first[tile.queries] = FirstKey(end, args.pages.window);
      if (++tile.queries == AttentionTile<T>::kMaxQueries) {
        loops.attention(tile);
        tile.queries = 0;
      }
    }
  }
  if (tile.queries > 0) loops.attention(tile);
}

}  // namespace

template <typename T, CpuIsa kIsa>
Status PagedAttentionCpu(const PagedAttention::Args& args, Stream& stream) {
  ShapeMatch match("paged_attention");
  match.Match("q", args.q, {"tokens", "q_heads", "head_dim"})
      .Match("out", args.out, {"tokens", "q_heads", "head_dim"})
      .IsType("q", args.q, kDTypeOf<T>)
      .IsType("out", args.out, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());
  match
      .Require(match["head_dim"] == args.pages.head_dim,
               "head_dim of the pages")
      .Require(args.pages.kv_heads > 0 &&
                   match["q_heads"] % args.pages.kv_heads == 0 &&
                   match["q_heads"] > 0,
               "q_heads must be a multiple of kv_heads");
  MatchBatch(match, args.batch, args.pages, kDTypeOf<T>, match["tokens"]);
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t ratio = match["q_heads"] / args.pages.kv_heads;
  const std::vector<Unit> units = Cut(args, ratio);
  const auto count = static_cast<int64_t>(units.size());
  PoolOf(stream).ParallelFor(count, 1, [&](int64_t unit, int64_t end, int) {
    thread_local std::vector<float> scratch;
    scratch.resize(static_cast<size_t>(AttentionScratch(args.pages.head_dim)));
    for (; unit < end; ++unit) {
      RunUnit<T>(args, loops, units[static_cast<size_t>(unit)], ratio,
                 scratch.data());
    }
  });
  return OkStatus();
}

BATON_INSTANTIATE_CPU(PagedAttentionCpu, PagedAttention);

}  // namespace baton::cpu
