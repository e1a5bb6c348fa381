// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <type_traits>

#include "kernels/cpu/attention_shapes.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {
namespace {

template <typename T>
void WriteKey(const T* key, T* block, int64_t slot, int64_t head_dim) {
  constexpr int64_t kPair = std::is_same_v<T, bf16> ? 2 : 1;
  T* to = block + slot * kPair;
  for (int64_t d = 0; d < head_dim; ++d) {
    to[d / kPair * kPageTokens * kPair + d % kPair] = key[d];
  }
}

}  // namespace

template <typename T>
Status KvWriteCpu(const KvWrite::Args& args, Stream& stream) {
  ShapeMatch match("kv_write");
  match.Match("k", args.k, {"tokens", "kv_heads", "head_dim"})
      .Match("v", args.v, {"tokens", "kv_heads", "head_dim"})
      .IsType("k", args.k, kDTypeOf<T>)
      .IsType("v", args.v, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());
  const KvPages& pages = args.pages;
  match.Require(match["kv_heads"] == pages.kv_heads, "kv_heads of the pages")
      .Require(match["head_dim"] == pages.head_dim, "head_dim of the pages");
  MatchBatch(match, args.batch, pages, kDTypeOf<T>, match["tokens"]);
  BATON_RETURN_IF_ERROR(match.status());

  const int64_t head_dim = pages.head_dim;
  for (const SequenceSpan& sequence : args.batch->sequences) {
    const std::span<const PageId> table = sequence.PagesOf(pages.window);
    ForRows(stream, sequence.rows, 2 * pages.kv_heads * head_dim,
            [&](int64_t i) {
              const int64_t row = sequence.first_row + i;
              const int64_t position = sequence.first_position + i;
              const PageId page =
                  table[static_cast<size_t>(position / kPageTokens)];
              const int64_t slot = position % kPageTokens;
              const T* k = args.k.template Row<T>(row);
              const T* v = args.v.template Row<T>(row);
              for (int64_t head = 0; head < pages.kv_heads; ++head) {
                WriteKey(k + head * head_dim, KeyBlock<T>(pages, page, head),
                         slot, head_dim);
                std::memcpy(ValueBlock<T>(pages, page, head) + slot * head_dim,
                            v + head * head_dim,
                            static_cast<size_t>(head_dim) * sizeof(T));
              }
            });
  }
  return OkStatus();
}

template Status KvWriteCpu<float>(const KvWrite::Args&, Stream&);
template Status KvWriteCpu<bf16>(const KvWrite::Args&, Stream&);

}  // namespace baton::cpu
