// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/norm.h"

#include "kernels/cpu/inner.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "runtime/base/thread_pool.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {

template <typename T, CpuIsa kIsa>
Status RmsNormCpu(const RmsNorm::Args& args, Stream& stream) {
  ShapeMatch match("rms_norm");
  if (args.x.shape().rank() == 3) {
    match.Match("x", args.x, {"rows", "heads", "hidden"})
        .Match("out", args.out, {"rows", "heads", "hidden"});
  } else {
    match.Match("x", args.x, {"rows", "hidden"})
        .Match("out", args.out, {"rows", "hidden"});
  }
  match.Match("weight", args.weight, {"hidden"})
      .IsType("x", args.x, kDTypeOf<T>)
      .IsType("weight", args.weight, kDTypeOf<T>)
      .IsType("out", args.out, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t hidden = match["hidden"];
  const int64_t heads = args.x.shape().rank() == 3 ? match["heads"] : 1;
  const T* weight = args.weight.template Row<T>(0);
  ForRows(stream, match["rows"], heads * hidden, [&](int64_t row) {
    const T* x = args.x.template Row<T>(row);
    T* out = args.out.template Row<T>(row);
    for (int64_t head = 0; head < heads; ++head) {
      loops.rms_norm(x + head * hidden, weight, out + head * hidden, hidden,
                     args.eps);
    }
  });
  return OkStatus();
}

template <typename T, CpuIsa kIsa>
Status AddRmsNormCpu(const AddRmsNorm::Args& args, Stream& stream) {
  ShapeMatch match("add_rms_norm");
  match.Match("stream", args.stream, {"rows", "hidden"})
      .Match("update", args.update, {"rows", "hidden"})
      .Match("weight", args.weight, {"hidden"})
      .Match("out", args.out, {"rows", "hidden"})
      .IsType("stream", args.stream, kDTypeOf<T>)
      .IsType("update", args.update, kDTypeOf<T>)
      .IsType("weight", args.weight, kDTypeOf<T>)
      .IsType("out", args.out, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t hidden = match["hidden"];
  const T* weight = args.weight.template Row<T>(0);
  ForRows(stream, match["rows"], 2 * hidden, [&](int64_t row) {
    T* sum = args.stream.template Row<T>(row);
    loops.add(sum, args.update.template Row<T>(row), hidden);
    loops.rms_norm(sum, weight, args.out.template Row<T>(row), hidden,
                   args.eps);
  });
  return OkStatus();
}

template <typename T, CpuIsa kIsa>
Status AddCpu(const Add::Args& args, Stream& stream) {
  ShapeMatch match("add");
  match.Match("stream", args.stream, {"rows", "hidden"})
      .Match("update", args.update, {"rows", "hidden"})
      .IsType("stream", args.stream, kDTypeOf<T>)
      .IsType("update", args.update, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t hidden = match["hidden"];
  ForRows(stream, match["rows"], hidden, [&](int64_t row) {
    loops.add(args.stream.template Row<T>(row),
              args.update.template Row<T>(row), hidden);
  });
  return OkStatus();
}

BATON_INSTANTIATE_CPU(RmsNormCpu, RmsNorm);
BATON_INSTANTIATE_CPU(AddRmsNormCpu, AddRmsNorm);
BATON_INSTANTIATE_CPU(AddCpu, Add);

}  // namespace baton::cpu
