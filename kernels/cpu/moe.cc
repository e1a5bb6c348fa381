// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/scratch.h"
#include "kernels/ops/activation.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {
namespace {

// p = softmax(logits) of one row.
void Softmax(const float* logits, float* p, int64_t n) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    if (logits[i] > largest) largest = logits[i];
  }
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    p[i] = std::exp(logits[i] - largest);
    sum += p[i];
  }
  for (int64_t i = 0; i < n; ++i) p[i] /= sum;
}

// Takes the largest of p, `top` times. A row of NaNs takes the first experts,
// so that it spoils itself alone.
void TakeLargest(float* p, int64_t n, int32_t* experts, float* weights,
                 int64_t top) {
  constexpr float kTaken = -1;
  float sum = 0;
  for (int64_t s = 0; s < top; ++s) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; ++i) {
      if (p[i] != kTaken && (best < 0 || p[i] > p[best])) best = i;
    }
    experts[s] = static_cast<int32_t>(best);
    weights[s] = p[best];
    sum += p[best];
    p[best] = kTaken;
  }
  for (int64_t s = 0; s < top; ++s) weights[s] /= sum;
}

// The slots of each expert, ascending.
class SlotsByExpert {
 public:
  void Sort(ConstView experts, int64_t count) {
    const int64_t top = experts.dim(1);
    ends_.assign(static_cast<size_t>(count), 0);
    slots_.resize(static_cast<size_t>(experts.dim(0) * top));
    for (int64_t t = 0; t < experts.dim(0); ++t) {
      for (int64_t s = 0; s < top; ++s) ++End(experts, t, s);
    }
    int64_t before = 0;
    for (int64_t& end : ends_) {
      const int64_t size = end;
      end = before;
      before += size;
    }
    for (int64_t t = 0; t < experts.dim(0); ++t) {
      for (int64_t s = 0; s < top; ++s) {
        slots_[static_cast<size_t>(End(experts, t, s)++)] = t * top + s;
      }
    }
  }
  [[nodiscard]] std::span<const int64_t> operator[](size_t expert) const {
    const int64_t begin = expert == 0 ? 0 : ends_[expert - 1];
    return std::span(slots_).subspan(
        static_cast<size_t>(begin), static_cast<size_t>(ends_[expert] - begin));
  }

 private:
  int64_t& End(ConstView experts, int64_t t, int64_t s) {
    return ends_[static_cast<size_t>(experts.Row<int32_t>(t)[s])];
  }
  std::vector<int64_t> ends_, slots_;
};

template <typename T>
Status CheckGroupedMatmul(const GroupedMatmul::Args& args) {
  ShapeMatch match("grouped_matmul");
  match.Match("x", args.x, {"rows", "k"})
      .Match("experts", args.experts, {"tokens", "top"})
      .Match("out", args.out, {"slots", "columns"})
      .IsType("x", args.x, kDTypeOf<T>)
      .IsType("experts", args.experts, DType::kI32);
  const bool gated = args.activation.IsGated();
  if (gated) {
    match.Match("product", args.product, {"slots", "n"})
        .IsType("product", args.product, kDTypeOf<T>)
        .IsType("out", args.out, kDTypeOf<T>);
  }
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t n = gated ? match["n"] : match["columns"];
  const int64_t tokens = match["tokens"];
  const int64_t slots = match["slots"];
  match.Require(slots == tokens * match["top"], "out must have a row a slot")
      .Require(
          args.out.dtype() == kDTypeOf<T> || args.out.dtype() == DType::kF32,
          "out must be of the dtype of x, or f32")
      .Require(match["rows"] == tokens || match["rows"] == slots,
               "x must have a row for each of experts, or for each slot")
      .Require(gated || args.activation.kind == MatmulActivation::Kind::kNone,
               "experts have gated activations")
      .Require(!gated || n == 2 * match["columns"],
               "product must be twice as wide as out");
  for (const PackedMatrix& weight : args.weights) {
    match.Require(weight.dtype == kDTypeOf<T>, "weights must be as x")
        .Require(weight.n == n, "weights must be as wide as their products")
        .Require(weight.k == match["k"], "weights must be as deep as x");
  }
  const auto count = static_cast<int64_t>(args.weights.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t s = 0; s < match["top"]; ++s) {
      const int32_t expert = args.experts.Row<int32_t>(t)[s];
      match.Require(expert >= 0 && expert < count, "there is no such expert");
    }
  }
  return match.status();
}

// The slots of one expert: their rows of x side by side, then one matmul.
template <typename T, CpuIsa kIsa>
Status MultiplyGroup(const GroupedMatmul::Args& args,
                     const PackedMatrix& weight, std::span<const int64_t> slots,
                     Stream& stream) {
  const int64_t per_row = args.out.dim(0) / args.x.dim(0);
  const auto rows = static_cast<int64_t>(slots.size());
  if (rows == 0) return OkStatus();
  if (rows == 1) {
    const int64_t from = slots[0] / per_row;
    return MatmulCpu<T, kIsa>({.x = args.x.Rows(from, from + 1),
                               .weight = weight,
                               .out = args.out.Rows(slots[0], slots[0] + 1)},
                              stream);
  }
  thread_local Scratch gathered, product;
  const auto view = [rows](Scratch& memory, DType dtype, int64_t columns) {
    std::byte* data = memory.Get<std::byte>(rows * columns * SizeOf(dtype));
    return View(data, dtype, {rows, columns});
  };
  const View x = view(gathered, kDTypeOf<T>, weight.k);
  const View y = view(product, args.out.dtype(), weight.n);
  ForRows(stream, rows, weight.k, [&](int64_t row) {
    const int64_t from = slots[static_cast<size_t>(row)] / per_row;
    std::memcpy(static_cast<void*>(x.Row<T>(row)), args.x.Row<T>(from),
                static_cast<size_t>(weight.k) * sizeof(T));
  });
  BATON_RETURN_IF_ERROR(
      (MatmulCpu<T, kIsa>({.x = x, .weight = weight, .out = y}, stream)));
  ForRows(stream, rows, weight.n, [&](int64_t row) {
    const int64_t bytes = y.RowElements() * SizeOf(y.dtype());
    const int64_t to = slots[static_cast<size_t>(row)];
    std::memcpy(args.out.Rows(to, to + 1).data(), y.data() + row * bytes,
                static_cast<size_t>(bytes));
  });
  return OkStatus();
}

// Of products that a gated activation is applied to.
template <typename T, CpuIsa kIsa>
Status ActivateSlots(const GroupedMatmul::Args& args, Stream& stream) {
  if (!args.activation.IsGated()) return OkStatus();
  if (args.activation.kind == MatmulActivation::Kind::kSiluMul) {
    return SiluMulCpu<T, kIsa>({.gate_up = args.product, .out = args.out},
                               stream);
  }
  return GeluMulCpu<T, kIsa>({.gate_up = args.product, .out = args.out},
                             stream);
}

// out = the weighted sum of `top` rows that lie `stride` apart.
template <typename T>
void CombineRow(const T* y, int64_t stride, const float* weights, int64_t top,
                T* out, int64_t n) {
  constexpr int64_t kRun = 256;
  for (int64_t begin = 0; begin < n; begin += kRun) {
    const int64_t count = std::min(kRun, n - begin);
    float sums[kRun] = {};
    for (int64_t s = 0; s < top; ++s) {
      const T* from = y + s * stride + begin;
      for (int64_t i = 0; i < count; ++i) {
        sums[i] += weights[s] * static_cast<float>(from[i]);
      }
    }
    for (int64_t i = 0; i < count; ++i) out[begin + i] = T(sums[i]);
  }
}

}  // namespace

Status RouteTopKCpu(const RouteTopK::Args& args, Stream& stream) {
  ShapeMatch match("route_top_k");
  match.Match("logits", args.logits, {"tokens", "experts"})
      .Match("experts", args.experts, {"tokens", "top"})
      .Match("weights", args.weights, {"tokens", "top"})
      .IsType("logits", args.logits, DType::kF32)
      .IsType("experts", args.experts, DType::kI32)
      .IsType("weights", args.weights, DType::kF32);
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t n = match["experts"];
  const int64_t top = match["top"];
  match.Require(top >= 1 && top <= n, "top must be 1 to the experts there are");
  BATON_RETURN_IF_ERROR(match.status());

  ForRows(stream, match["tokens"], n * top, [&](int64_t row) {
    thread_local std::vector<float> p;
    p.resize(static_cast<size_t>(n));
    Softmax(args.logits.Row<float>(row), p.data(), n);
    TakeLargest(p.data(), n, args.experts.Row<int32_t>(row),
                args.weights.Row<float>(row), top);
  });
  return OkStatus();
}

template <typename T, CpuIsa kIsa>
Status GroupedMatmulCpu(const GroupedMatmul::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR(CheckGroupedMatmul<T>(args));
  if (args.out.dim(0) == 0) return OkStatus();
  GroupedMatmul::Args product = args;
  if (args.activation.IsGated()) product.out = args.product;
  thread_local SlotsByExpert slots;
  slots.Sort(args.experts, static_cast<int64_t>(args.weights.size()));
  for (size_t e = 0; e < args.weights.size(); ++e) {
    BATON_RETURN_IF_ERROR(
        (MultiplyGroup<T, kIsa>(product, args.weights[e], slots[e], stream)));
  }
  return ActivateSlots<T, kIsa>(args, stream);
}

template <typename T, CpuIsa kIsa>
Status GroupedAndSharedMatmulCpu(const GroupedAndSharedMatmul::Args& args,
                                 Stream& stream) {
  BATON_RETURN_IF_ERROR((MatmulCpu<T, kIsa>(args.shared, stream)));
  return GroupedMatmulCpu<T, kIsa>(args.grouped, stream);
}

template <typename T>
Status CombineExpertsCpu(const CombineExperts::Args& args, Stream& stream) {
  ShapeMatch match("combine_experts");
  match.Match("y", args.y, {"slots", "hidden"})
      .Match("weights", args.weights, {"tokens", "top"})
      .Match("out", args.out, {"tokens", "hidden"})
      .IsType("y", args.y, kDTypeOf<T>)
      .IsType("weights", args.weights, DType::kF32)
      .IsType("out", args.out, kDTypeOf<T>);
  const bool adds = args.added.data() != nullptr;
  if (adds) {
    match.Match("added", args.added, {"tokens", "hidden"})
        .IsType("added", args.added, kDTypeOf<T>);
  }
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t top = match["top"];
  match.Require(match["slots"] == match["tokens"] * top,
                "y must have a row a slot");
  BATON_RETURN_IF_ERROR(match.status());

  const int64_t hidden = match["hidden"];
  ForRows(stream, match["tokens"], hidden * top, [&](int64_t row) {
    CombineRow(args.y.template Row<T>(row * top), args.y.row_stride(),
               args.weights.Row<float>(row), top, args.out.template Row<T>(row),
               hidden);
    if (!adds) return;
    T* out = args.out.template Row<T>(row);
    const T* added = args.added.template Row<T>(row);
    for (int64_t i = 0; i < hidden; ++i) {
      out[i] = T(static_cast<float>(out[i]) + static_cast<float>(added[i]));
    }
  });
  return OkStatus();
}

BATON_INSTANTIATE_CPU(GroupedMatmulCpu, GroupedMatmul);
BATON_INSTANTIATE_CPU(GroupedAndSharedMatmulCpu, GroupedAndSharedMatmul);
template Status CombineExpertsCpu<float>(const CombineExperts::Args&, Stream&);
template Status CombineExpertsCpu<bf16>(const CombineExperts::Args&, Stream&);

}  // namespace baton::cpu
