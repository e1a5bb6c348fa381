// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "kernels/cpu/inner.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "kernels/ops/attention.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {

template <typename T, CpuIsa kIsa>
Status RopeCpu(const Rope::Args& args, Stream& stream) {
  ShapeMatch match("rope");
  match.Match("x", args.x, {"tokens", "heads", "head_dim"})
      .IsType("x", args.x, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t tokens = match["tokens"];
  const int64_t head_dim = match["head_dim"];
  const auto half = static_cast<int64_t>(args.inv_freq.size());
  match
      .Require(static_cast<int64_t>(args.positions.size()) == tokens,
               "x must have one row per position")
      .Require(2 * half <= head_dim, "more frequencies than pairs in a head");
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t heads = match["heads"];
  ForRows(stream, tokens, heads * head_dim, [&](int64_t row) {
    thread_local std::vector<float> angles;
    angles.resize(static_cast<size_t>(2 * half));
    float* cos = angles.data();
    float* sin = cos + half;
    loops.rope_angles(args.inv_freq.data(),
                      args.positions[static_cast<size_t>(row)], args.amplitude,
                      cos, sin, half);
    T* x = args.x.template Row<T>(row);
    for (int64_t head = 0; head < heads; ++head) {
      loops.rope(x + head * head_dim, cos, sin, half);
    }
  });
  return OkStatus();
}

BATON_INSTANTIATE_CPU(RopeCpu, Rope);

}  // namespace baton::cpu
