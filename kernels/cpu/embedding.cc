// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/embedding.h"

#include <algorithm>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {

template <typename T>
Status EmbeddingCpu(const Embedding::Args& args, Stream& stream) {
  const bool wide = args.out.dtype() == DType::kF32;
  ShapeMatch match("embedding");
  match.Match("table", args.table, {"vocab", "hidden"})
      .Match("out", args.out, {"tokens", "hidden"})
      .IsType("table", args.table, kDTypeOf<T>)
      .IsType("out", args.out, wide ? DType::kF32 : kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());
  const auto tokens = static_cast<int64_t>(args.ids.size());
  match.Require(tokens == match["tokens"], "out must have one row per id");
  BATON_RETURN_IF_ERROR(match.status());

  const int64_t hidden = match["hidden"];
  ForRows(stream, tokens, hidden, [&](int64_t row) {
    int32_t id = args.ids[static_cast<size_t>(row)];
    if (id < 0) id = args.drawn[static_cast<size_t>(-1 - id)];
    const T* from = args.table.template Row<T>(id);
    if (wide) {
      std::transform(from, from + hidden, args.out.template Row<float>(row),
                     [](T value) { return static_cast<float>(value); });
    } else {
      std::copy(from, from + hidden, args.out.template Row<T>(row));
    }
  });
  return OkStatus();
}

template Status EmbeddingCpu<float>(const Embedding::Args&, Stream&);
template Status EmbeddingCpu<bf16>(const Embedding::Args&, Stream&);

}  // namespace baton::cpu
