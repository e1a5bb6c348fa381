// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/activation.h"

#include "kernels/cpu/inner.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {
namespace {

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
  ShapeMatch match("silu_mul");
  match.Match("out", args.out, {"tokens", "ffn"})
      .Match("gate_up", args.gate_up, {"tokens", "gate_up"})
      .IsType("gate_up", args.gate_up, kDTypeOf<T>)
      .IsType("out", args.out, kDTypeOf<T>);
  BATON_RETURN_IF_ERROR(match.status());
  match.Require(match["gate_up"] == 2 * match["ffn"],
                "gate_up must be twice as wide as out");
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<T>& loops = LoopsOf<T>(kIsa);
  const int64_t ffn = match["ffn"];
  ForRows(stream, match["tokens"], 2 * ffn, [&](int64_t row) {
    const T* gate = args.gate_up.template Row<T>(row);
    loops.silu_mul(gate, gate + ffn, args.out.template Row<T>(row), ffn);
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

BATON_INSTANTIATE_CPU(SiluMulCpu, SiluMul);
BATON_INSTANTIATE_CPU(Relu2Cpu, Relu2);
BATON_INSTANTIATE_CPU(XieluCpu, Xielu);

}  // namespace baton::cpu
