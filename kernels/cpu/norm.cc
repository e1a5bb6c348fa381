// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/norm.h"

#include "kernels/cpu/inner.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/scratch.h"
#include "runtime/base/thread_pool.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {
namespace {

// Whether a stream is f32 where the kernel's type is another.
template <typename T>
bool IsWide(ConstView stream) {
  return kDTypeOf<T> != DType::kF32 && stream.dtype() == DType::kF32;
}

template <typename T>
void AddRowOf(const InnerLoops<T>& loops, View stream, const T* update,
              int64_t row, int64_t n) {
  if (IsWide<T>(stream)) {
    loops.wide_add(stream.Row<float>(row), update, n);
  } else {
    loops.add(stream.Row<T>(row), update, n);
  }
}

// The `n` elements at `first` of a row.
template <typename T>
void NormRowOf(const InnerLoops<T>& loops, ConstView x, const T* weight,
               View out, int64_t row, int64_t first, int64_t n, float eps) {
  T* to = out.Row<T>(row) + first;
  if (IsWide<T>(x)) {
    loops.wide_rms_norm(x.Row<float>(row) + first, weight, to, n, eps);
  } else {
    loops.rms_norm(x.Row<T>(row) + first, weight, to, n, eps);
  }
}

}  // namespace

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
      .IsType("x", args.x, IsWide<T>(args.x) ? DType::kF32 : kDTypeOf<T>)
      .IsType("weight", args.weight, kDTypeOf<T>)
      .IsType("out", args.out, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t hidden = match["hidden"];
  const int64_t heads = args.x.shape().rank() == 3 ? match["heads"] : 1;
  const T* weight = args.weight.template Row<T>(0);
  ForRows(stream, match["rows"], heads * hidden, [&](int64_t row) {
    for (int64_t head = 0; head < heads; ++head) {
      NormRowOf(loops, args.x, weight, args.out, row, head * hidden, hidden,
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
      .IsType("stream", args.stream,
              IsWide<T>(args.stream) ? DType::kF32 : kDTypeOf<T>)
      .IsType("update", args.update, kDTypeOf<T>)
      .IsType("weight", args.weight, kDTypeOf<T>)
      .IsType("out", args.out, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t hidden = match["hidden"];
  const T* weight = args.weight.template Row<T>(0);
  ForRows(stream, match["rows"], 2 * hidden, [&](int64_t row) {
    AddRowOf(loops, args.stream, args.update.template Row<T>(row), row, hidden);
    NormRowOf<T>(loops, args.stream, weight, args.out, row, 0, hidden,
                 args.eps);
  });
  return OkStatus();
}

template <typename T, CpuIsa kIsa>
Status RmsNormAddCpu(const RmsNormAdd::Args& args, Stream& stream) {
  ShapeMatch match("rms_norm_add");
  match.Match("update", args.update, {"rows", "hidden"})
      .Match("weight", args.weight, {"hidden"})
      .Match("stream", args.stream, {"rows", "hidden"})
      .IsType("update", args.update, kDTypeOf<T>)
      .IsType("weight", args.weight, kDTypeOf<T>)
      .IsType("stream", args.stream,
              IsWide<T>(args.stream) ? DType::kF32 : kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t hidden = match["hidden"];
  const T* weight = args.weight.template Row<T>(0);
  ForRows(stream, match["rows"], 2 * hidden, [&](int64_t row) {
    thread_local Scratch scratch;
    T* normed = scratch.Get<T>(hidden);
    loops.rms_norm(args.update.template Row<T>(row), weight, normed, hidden,
                   args.eps);
    AddRowOf<T>(loops, args.stream, normed, row, hidden);
  });
  return OkStatus();
}

template <typename T, CpuIsa kIsa>
Status AllReduceAddRmsNormCpu(const AllReduceAddRmsNorm::Args& args,
                              Stream& stream) {
  ShapeMatch match("all_reduce_add_rms_norm");
  match.Match("partial", args.partial, {"rows", "hidden"})
      .Match("out", args.out, {"rows", "hidden"})
      .IsType("partial", args.partial, DType::kF32)
      .IsType("out", args.out, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());
  BATON_RETURN_IF_ERROR(args.group->AllReduce(args.partial, args.out, stream));
  return AddRmsNormCpu<T, kIsa>({.stream = args.stream,
                                 .update = args.out,
                                 .weight = args.weight,
                                 .out = args.out,
                                 .eps = args.eps},
                                stream);
}

template <typename T, CpuIsa kIsa>
Status AddCpu(const Add::Args& args, Stream& stream) {
  ShapeMatch match("add");
  match.Match("stream", args.stream, {"rows", "hidden"})
      .Match("update", args.update, {"rows", "hidden"})
      .IsType("stream", args.stream,
              IsWide<T>(args.stream) ? DType::kF32 : kDTypeOf<T>)
      .IsType("update", args.update, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t hidden = match["hidden"];
  ForRows(stream, match["rows"], hidden, [&](int64_t row) {
    AddRowOf(loops, args.stream, args.update.template Row<T>(row), row, hidden);
  });
  return OkStatus();
}

BATON_INSTANTIATE_CPU(RmsNormCpu, RmsNorm);
BATON_INSTANTIATE_CPU(AddRmsNormCpu, AddRmsNorm);
BATON_INSTANTIATE_CPU(RmsNormAddCpu, RmsNormAdd);
BATON_INSTANTIATE_CPU(AllReduceAddRmsNormCpu, AllReduceAddRmsNorm);
BATON_INSTANTIATE_CPU(AddCpu, Add);

}  // namespace baton::cpu
