// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/kernels.h"

namespace baton::cpu {

template <typename T, CpuIsa kIsa>
Status RotateAndStoreCpu(const RotateAndStore::Args& args, Stream& stream) {
  const auto norm = [&](View x, ConstView weight) {
    return RmsNormCpu<T, kIsa>(
        {.x = x, .weight = weight, .out = x, .eps = args.eps}, stream);
  };
  if (args.q_norm.data() != nullptr) {
    BATON_RETURN_IF_ERROR(norm(args.q, args.q_norm));
    BATON_RETURN_IF_ERROR(norm(args.k, args.k_norm));
  }
  if (args.inv_freq.data() != nullptr) {
    const std::span<const float> inv_freq(
        args.inv_freq.Row<float>(0), static_cast<size_t>(args.inv_freq.dim(0)));
    for (const View& x : {args.q, args.k}) {
      const Rope::Args rope = {.x = x,
                               .positions = args.batch->positions,
                               .inv_freq = inv_freq,
                               .amplitude = args.amplitude};
      BATON_RETURN_IF_ERROR((RopeCpu<T, kIsa>(rope, stream)));
    }
  }
  return KvWriteCpu<T>(
      {.k = args.k, .v = args.v, .pages = args.pages, .batch = args.batch},
      stream);
}

template <typename T, CpuIsa kIsa>
Status RotateAndAttendCpu(const RotateAndAttend::Args& args, Stream& stream) {
  BATON_RETURN_IF_ERROR((RotateAndStoreCpu<T, kIsa>(args.entry, stream)));
  return PagedAttentionCpu<T, kIsa>({.q = args.entry.q,
                                     .pages = args.entry.pages,
                                     .batch = args.entry.batch,
                                     .scale = args.scale,
                                     .out = args.out},
                                    stream);
}

BATON_INSTANTIATE_CPU(RotateAndStoreCpu, RotateAndStore);
BATON_INSTANTIATE_CPU(RotateAndAttendCpu, RotateAndAttend);

}  // namespace baton::cpu
