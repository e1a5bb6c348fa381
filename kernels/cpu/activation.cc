// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/activation.h"

#include <cmath>

#include "kernels/cpu/inner.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {
namespace {

// out = act(gate) * up, by `row_of(gate, up, out, ffn)`.
template <typename T, typename Args>
Status GatedRows(std::string_view what, const Args& args, Stream& stream,
                 void (*row_of)(const T*, const T*, T*, int64_t)) {
  ShapeMatch match(what);
  match.Match("out", args.out, {"tokens", "ffn"})
      .Match("gate_up", args.gate_up, {"tokens", "gate_up"})
      .IsType("gate_up", args.gate_up, kDTypeOf<T>)
      .IsType("out", args.out, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());
  match.Require(match["gate_up"] == 2 * match["ffn"],
                "gate_up must be twice as wide as out");
  BATON_RETURN_IF_ERROR(match.status());

  const int64_t ffn = match["ffn"];
  ForRows(stream, match["tokens"], 2 * ffn, [&](int64_t row) {
    const T* gate = args.gate_up.template Row<T>(row);
    row_of(gate, gate + ffn, args.out.template Row<T>(row), ffn);
  });
  return OkStatus();
}

template <typename T>
Status MatchUnary(std::string_view what, ConstView x, View out) {
  return ShapeMatch(what)
      .Match("x", x, {"tokens", "ffn"})
      .Match("out", out, {"tokens", "ffn"})
      .IsType("x", x, kDTypeOf<T>)
      .IsType("out", out, kDTypeOf<T>)
      .status();
}

}  // namespace

template <typename T, CpuIsa kIsa>
Status SiluMulCpu(const SiluMul::Args& args, Stream& stream) {
  return GatedRows("silu_mul", args, stream, LoopsOf<T>(kIsa).silu_mul);
}

template <typename T, CpuIsa kIsa>
Status GeluMulCpu(const GeluMul::Args& args, Stream& stream) {
  return GatedRows("gelu_mul", args, stream, LoopsOf<T>(kIsa).gelu_mul);
}

template <typename T>
Status GateHeadsCpu(const GateHeads::Args& args, Stream& stream) {
  ShapeMatch match("gate_heads");
  match.Match("x", args.x, {"tokens", "heads", "head_dim"})
      .Match("gate", args.gate, {"tokens", "heads"})
      .IsType("x", args.x, kDTypeOf<T>)
      .IsType("gate", args.gate, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t heads = match["heads"];
  const int64_t dim = match["head_dim"];
  ForRows(stream, match["tokens"], heads * dim, [&](int64_t row) {
    const T* gate = args.gate.template Row<T>(row);
    T* x = args.x.template Row<T>(row);
    for (int64_t head = 0; head < heads; ++head, x += dim) {
      const float z = static_cast<float>(gate[head]);
      const float share = 1.0f / (1.0f + std::exp(-z));
      for (int64_t i = 0; i < dim; ++i) {
        x[i] = T(static_cast<float>(x[i]) * share);
      }
    }
  });
  return OkStatus();
}

template <typename T, CpuIsa kIsa>
Status Relu2Cpu(const Relu2::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR(MatchUnary<T>("relu2", args.x, args.out));
  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t ffn = args.x.dim(1);
  ForRows(stream, args.x.dim(0), ffn, [&](int64_t row) {
    loops.relu2(args.x.template Row<T>(row), args.out.template Row<T>(row),
                ffn);
  });
  return OkStatus();
}

template <typename T, CpuIsa kIsa>
Status XieluCpu(const Xielu::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR(MatchUnary<T>("xielu", args.x, args.out));
  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const XieluConstants constants =
      XieluConstantsOf(args.alpha_p, args.alpha_n, args.beta, args.eps);
  const int64_t ffn = args.x.dim(1);
  ForRows(stream, args.x.dim(0), ffn, [&](int64_t row) {
    loops.xielu(args.x.template Row<T>(row), args.out.template Row<T>(row), ffn,
                constants);
  });
  return OkStatus();
}

template Status GateHeadsCpu<float>(const GateHeads::Args&, Stream&);
template Status GateHeadsCpu<bf16>(const GateHeads::Args&, Stream&);
BATON_INSTANTIATE_CPU(SiluMulCpu, SiluMul);
BATON_INSTANTIATE_CPU(GeluMulCpu, GeluMul);
BATON_INSTANTIATE_CPU(Relu2Cpu, Relu2);
BATON_INSTANTIATE_CPU(XieluCpu, Xielu);

}  // namespace baton::cpu
