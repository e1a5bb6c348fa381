// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/embedding.h"

#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {

template <typename T>
Status EmbeddingCpu(const Embedding::Args& args, Stream& stream) {
  ShapeMatch match("embedding");
  match.Match("table", args.table, {"vocab", "hidden"})
      .Match("out", args.out, {"tokens", "hidden"})
      .IsType("table", args.table, kDTypeOf<T>)
      .IsType("out", args.out, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());
  const auto tokens = static_cast<int64_t>(args.ids.size());
  match.Require(tokens == match["tokens"], "out must have one row per id");
  BATON_RETURN_IF_ERROR(match.status());

  const int64_t hidden = match["hidden"];
  ForRows(stream, tokens, hidden, [&](int64_t row) {
    int32_t id = args.ids[static_cast<size_t>(row)];
    if (id < 0) id = args.drawn[static_cast<size_t>(-1 - id)];
    std::memcpy(args.out.template Row<T>(row), args.table.template Row<T>(id),
                static_cast<size_t>(hidden) * sizeof(T));
  });
  return OkStatus();
}

template Status EmbeddingCpu<float>(const Embedding::Args&, Stream&);
template Status EmbeddingCpu<bf16>(const Embedding::Args&, Stream&);

}  // namespace baton::cpu
