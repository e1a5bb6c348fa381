// SPDX-License-Identifier: Apache-2.0
// The norms of row_kernels.h: one block per row.
#include <type_traits>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/row_eights.cuh"
#include "kernels/cuda/row_kernels.h"

namespace baton::cuda {
namespace {

template <typename T, bool kVectors, int kHeld, bool kAdd>
__global__ void __launch_bounds__(kMaxNormThreads)
    NormKernel(AddRmsNormArgs args, float share) {
  __shared__ NormScratch scratch;
  AllowNextGrid();
  NormRow<T, kVectors, kHeld> work(args.weight, args.hidden, share);
  AwaitPreviousGrids();
  const int64_t row = blockIdx.x;
  auto* residual = static_cast<T*>(args.residual) + row * args.residual_stride;
  auto* out = static_cast<uint16_t*>(args.out) + row * args.out_stride;
  work.Load(residual);
  if constexpr (kAdd) {
    const auto* update =
        static_cast<const uint16_t*>(args.update) + row * args.update_stride;
    work.Add(residual, [&](int /*v*/, int64_t at, float(&y)[8]) {
      Unpack(LoadEight<kVectors>(update, at, args.hidden), y);
    });
  }
  work.Store(args.eps, out, scratch);
}

// T is the residual's.
template <typename T, bool kVectors, int kHeld>
__global__ void __launch_bounds__(kMaxNormThreads)
    NormAddKernel(RmsNormAddArgs args, float share) {
  __shared__ NormScratch scratch;
  AllowNextGrid();
  NormRow<uint16_t, kVectors, kHeld> work(args.weight, args.hidden, share);
  AwaitPreviousGrids();
  const int64_t row = blockIdx.x;
  work.Load(static_cast<const uint16_t*>(args.update) +
            row * args.update_stride);
  work.AddTo(args.eps,
             static_cast<T*>(args.residual) + row * args.residual_stride,
             scratch);
}

// Calls launch with how many eights of a row a thread holds.
template <typename Launcher>
cudaError_t LaunchHeld(int64_t hidden, const Launcher& launch) {
  const int64_t held = CeilDiv(CeilDiv(hidden, 8), NormThreads(hidden));
  if (held <= 1) return launch(std::integral_constant<int, 1>());
  if (held <= 2) return launch(std::integral_constant<int, 2>());
  return launch(std::integral_constant<int, 8>());
}

template <typename T, bool kVectors, bool kAdd>
cudaError_t LaunchNorm(const AddRmsNormArgs& args, cudaStream_t stream) {
  return LaunchHeld(args.hidden, [&](auto held) {
    return Launch(&NormKernel<T, kVectors, held(), kAdd>,
                  dim3(Blocks(args.rows)), NormThreads(args.hidden), 0, stream,
                  args, ShareOf(args.hidden));
  });
}
template <bool kAdd>
cudaError_t LaunchNorm(const AddRmsNormArgs& args, bool vectors,
                       cudaStream_t stream) {
  if (args.residual_type == StreamType::kF32) {
    return vectors ? LaunchNorm<float, true, kAdd>(args, stream)
                   : LaunchNorm<float, false, kAdd>(args, stream);
  }
  return vectors ? LaunchNorm<uint16_t, true, kAdd>(args, stream)
                 : LaunchNorm<uint16_t, false, kAdd>(args, stream);
}

template <typename T, bool kVectors>
cudaError_t LaunchNormAdd(const RmsNormAddArgs& args, cudaStream_t stream) {
  return LaunchHeld(args.hidden, [&](auto held) {
    return Launch(&NormAddKernel<T, kVectors, held()>, dim3(Blocks(args.rows)),
                  NormThreads(args.hidden), 0, stream, args,
                  ShareOf(args.hidden));
  });
}

bool IsNormSize(int64_t hidden) { return hidden > 0 && hidden <= kMaxNormSize; }

}  // namespace

cudaError_t AddRmsNormRows(const AddRmsNormArgs& args, cudaStream_t stream) {
  if (!IsNormSize(args.hidden)) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const bool vectors =
      SuitsVectors(args.residual, args.residual_stride, args.hidden) &&
      SuitsVectors(args.update, args.update_stride, args.hidden) &&
      SuitsVectors(args.out, args.out_stride, args.hidden) &&
      IsAligned(args.weight, 16);
  return LaunchNorm<true>(args, vectors, stream);
}

cudaError_t RmsNormRows(const RmsNormArgs& args, cudaStream_t stream) {
  if (!IsNormSize(args.hidden)) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const bool vectors = SuitsVectors(args.x, args.x_stride, args.hidden) &&
                       SuitsVectors(args.out, args.out_stride, args.hidden) &&
                       IsAligned(args.weight, 16);
  const AddRmsNormArgs only_norm = {
      .residual = const_cast<void*>(args.x),  // not written without an update
      .residual_stride = args.x_stride,
      .update = nullptr,
      .update_stride = 0,
      .weight = args.weight,
      .out = args.out,
      .out_stride = args.out_stride,
      .rows = args.rows,
      .hidden = args.hidden,
      .eps = args.eps,
      .residual_type = args.x_type,
  };
  return LaunchNorm<false>(only_norm, vectors, stream);
}

cudaError_t RmsNormAddRows(const RmsNormAddArgs& args, cudaStream_t stream) {
  if (!IsNormSize(args.hidden)) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const bool vectors =
      SuitsVectors(args.update, args.update_stride, args.hidden) &&
      SuitsVectors(args.residual, args.residual_stride, args.hidden) &&
      IsAligned(args.weight, 16);
  if (args.residual_type == StreamType::kF32) {
    return vectors ? LaunchNormAdd<float, true>(args, stream)
                   : LaunchNormAdd<float, false>(args, stream);
  }
  return vectors ? LaunchNormAdd<uint16_t, true>(args, stream)
                 : LaunchNormAdd<uint16_t, false>(args, stream);
}

}  // namespace baton::cuda
