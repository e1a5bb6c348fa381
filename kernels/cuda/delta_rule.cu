// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/delta_kernel.cuh"
#include "kernels/cuda/delta_normed.cuh"
#include "kernels/cuda/delta_plain.cuh"
#include "kernels/cuda/delta_rule.h"

namespace baton::cuda {
namespace {

constexpr int64_t kMaxSequences = 65535;

bool SuitsRegisters(const DeltaRuleArgs& args) {
  const auto suits = [](const DeltaInput& input) {
    return IsAligned(input.data, 8) && input.stride % 4 == 0;
  };
  return args.dim == kDeltaDim && suits(args.q) && suits(args.k) &&
         suits(args.decay) && IsAligned(args.states.data, 16) &&
         args.states.slot_bytes % 16 == 0;
}

dim3 GridOf(const DeltaRuleArgs& args) {
  return {Blocks(args.heads * kHeadBlocks), Blocks(args.sequences.count)};
}

}  // namespace

cudaError_t DeltaRule(const DeltaRuleArgs& args, cudaStream_t stream) {
  if (args.dim < 1 || args.dim > kMaxDeltaDim ||
      args.sequences.count > kMaxSequences) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0 || args.heads == 0) return cudaSuccess;
  if (!SuitsRegisters(args)) {
    const dim3 grid(Blocks(args.heads), Blocks(args.sequences.count));
    return Launch(&DeltaPlainKernel, grid, kDeltaPlainThreads,
                  static_cast<size_t>(DeltaPlainBytes(args.dim)), stream, args);
  }
  return Launch(&DeltaRuleKernel, GridOf(args),
                (kDeltaWarps + kPrepareWarps) * kWarp, 0, stream, args);
}

cudaError_t DeltaRuleNormed(const DeltaRuleArgs& args,
                            const GatedNormArgs& norm, cudaStream_t stream) {
  if (!SuitsRegisters(args) || !HasDependentLaunch() ||
      args.sequences.count > kMaxSequences || args.rows == 0 ||
      args.heads == 0) {
    return cudaErrorNotSupported;
  }
  return LaunchClusters(&DeltaNormedKernel, GridOf(args), kHeadBlocks,
                        (kDeltaWarps + 1) * kWarp, 0, stream, args, norm);
}

}  // namespace baton::cuda
