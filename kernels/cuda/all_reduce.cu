// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/all_reduce.h"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/rank_links.cuh"

namespace baton::cuda {
namespace {

constexpr int kGatherThreads = 512;

// Elements [8 t, 8 t + 8), 8 (t + threads), ... of the block's rows go to the
// other rank, row after row.
template <bool kVectors>
__device__ __forceinline__ void SendRows(const RankCall& call,
                                         const float* partial, int64_t rows,
                                         int64_t n) {
  auto* to = reinterpret_cast<float*>(call.Out());
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x, to += n) {
    const float* from = partial + row * n;
    for (int64_t at = 8 * static_cast<int64_t>(threadIdx.x); at < n;
         at += 8 * static_cast<int64_t>(blockDim.x)) {
      StoreEight<kVectors>(to, at, n, LoadEight<kVectors>(from, at, n));
    }
  }
}

// Eight elements of a row's sum.
template <bool kVectors>
__device__ __forceinline__ void SumEight(const float* mine, const float* other,
                                         int64_t at, int64_t n, float (&y)[8]) {
  const Eight<float> a = LoadEight<kVectors>(mine, at, n);
  const Eight<float> b = LoadEight<kVectors>(other, at, n);
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = a.x[i] + b.x[i];
}

template <typename T, bool kVectors>
__global__ void __launch_bounds__(kMaxNormThreads)
    AllReduceKernel(RankLinks links, AllReduceArgs args) {
  EnterKernel();
  const RankCall call(links);
  const int64_t n = args.size;
  SendRows<kVectors>(call, args.partial, args.rows, n);
  call.Meet();
  const auto* other = reinterpret_cast<const float*>(call.In());
  for (int64_t row = blockIdx.x; row < args.rows;
       row += gridDim.x, other += n) {
    T* out = static_cast<T*>(args.out) + row * args.out_stride;
    for (int64_t at = 8 * static_cast<int64_t>(threadIdx.x); at < n;
         at += 8 * static_cast<int64_t>(blockDim.x)) {
      float y[8];
      SumEight<kVectors>(args.partial + row * n, other, at, n, y);
      StoreEight<kVectors>(out, at, n, PackTo<T>(y));
    }
  }
}

template <bool kVectors, int kHeld>
__global__ void __launch_bounds__(kMaxNormThreads)
    AllReduceNormKernel(RankLinks links, AllReduceNormArgs args, float share) {
  __shared__ NormScratch scratch;
  AllowNextGrid();
  const AddRmsNormArgs& norm = args.norm;
  const int64_t n = norm.hidden;
  NormRow<uint16_t, kVectors, kHeld> work(norm.weight, n, share);
  AwaitPreviousGrids();
  const RankCall call(links);
  SendRows<kVectors>(call, args.partial, norm.rows, n);
  call.Meet();
  const auto* other = reinterpret_cast<const float*>(call.In());
  for (int64_t row = blockIdx.x; row < norm.rows;
       row += gridDim.x, other += n) {
    auto* residual =
        static_cast<uint16_t*>(norm.residual) + row * norm.residual_stride;
    work.Load(residual);
    work.Add(residual, [&](int /*v*/, int64_t at, float(&y)[8]) {
      SumEight<kVectors>(args.partial + row * n, other, at, n, y);
#pragma unroll
      for (float& value : y) value = RoundBf16(value);
    });
    work.Store(norm.eps,
               static_cast<uint16_t*>(norm.out) + row * norm.out_stride,
               scratch);
    __syncthreads();  // scratch is free again
  }
}

// The sum of the block's row in a quick call.
template <typename T, bool kVectors>
__global__ void __launch_bounds__(kMaxNormThreads)
    QuickAllReduceKernel(RankLinks links, AllReduceArgs args) {
  EnterKernel();
  const RankCall call(links);
  const int64_t n = args.size;
  const int64_t step = 8 * static_cast<int64_t>(blockDim.x);
  const int64_t first = 8 * static_cast<int64_t>(threadIdx.x);
  const float* mine = args.partial + blockIdx.x * n;
  T* out = static_cast<T*>(args.out) + blockIdx.x * args.out_stride;
  for (int64_t at = first; at < n; at += step) {
    call.SendQuick(at, LoadEight<kVectors>(mine, at, n).x);
  }
  for (int64_t at = first; at < n; at += step) {
    const Eight<float> x = LoadEight<kVectors>(mine, at, n);
    float y[8];
    call.ReceiveQuick(at, y);
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = x.x[i] + y[i];
    StoreEight<kVectors>(out, at, n, PackTo<T>(y));
  }
  call.FinishQuick();
}

// A row a block; the call is quick or has one meeting.
template <bool kVectors, int kHeld, bool kQuick>
__global__ void __launch_bounds__(kMaxNormThreads)
    RowAllReduceNormKernel(RankLinks links, AllReduceNormArgs args,
                           float share) {
  __shared__ NormScratch scratch;
  AllowNextGrid();
  const AddRmsNormArgs& norm = args.norm;
  const int64_t n = norm.hidden;
  using Work = NormRow<uint16_t, kVectors, kHeld>;
  Work work(norm.weight, n, share);
  AwaitPreviousGrids();
  const RankCall call(links);
  const float* partial = args.partial + blockIdx.x * n;
  Eight<float> mine[kHeld];
#pragma unroll
  for (int v = 0; v < kHeld; ++v) {
    mine[v] = LoadEight<kVectors>(partial, Work::At(v), n);
  }
#pragma unroll
  for (int v = 0; v < kHeld; ++v) {
    const int64_t at = Work::At(v);
    if constexpr (kQuick) {
      if (at < n) call.SendQuick(at, mine[v].x);
    } else {
      StoreEight<kVectors>(reinterpret_cast<float*>(call.Out()), at, n,
                           mine[v]);
    }
  }
  auto* residual =
      static_cast<uint16_t*>(norm.residual) + blockIdx.x * norm.residual_stride;
  work.Load(residual);
  if constexpr (!kQuick) call.Meet();
  work.Add(residual, [&](int v, int64_t at, float(&y)[8]) {
    Eight<float> other = {};
    if constexpr (kQuick) {
      if (at < n) call.ReceiveQuick(at, other.x);
    } else {
      other =
          LoadEight<kVectors>(reinterpret_cast<const float*>(call.In()), at, n);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = RoundBf16(mine[v].x[i] + other.x[i]);
  });
  work.Store(norm.eps,
             static_cast<uint16_t*>(norm.out) + blockIdx.x * norm.out_stride,
             scratch);
  if constexpr (kQuick) call.FinishQuick();
}

// Units of rows that lie one after the other, shared out among blocks.
template <typename Unit>
__global__ void __launch_bounds__(kGatherThreads)
    AllGatherKernel(RankLinks links, AllGatherArgs args) {
  EnterKernel();
  const RankCall call(links);
  constexpr auto kUnit = static_cast<int64_t>(sizeof(Unit));
  const int64_t row_units = args.row_bytes / kUnit;
  const int64_t all = args.rows * row_units;
  const int64_t piece = (all + gridDim.x - 1) / gridDim.x;
  const int64_t begin = blockIdx.x * piece;
  const int64_t count = max(int64_t{0}, min(piece, all - begin));
  const auto* from = reinterpret_cast<const Unit*>(args.x) + begin;
  auto* to = reinterpret_cast<Unit*>(call.Out());
  for (int64_t i = threadIdx.x; i < count; i += kGatherThreads) {
    to[i] = __ldcg(from + i);
  }
  call.Meet();
  if (args.out == nullptr) return;
  const auto* other = reinterpret_cast<const Unit*>(call.In());
  for (int64_t i = threadIdx.x; i < count; i += kGatherThreads) {
    const int64_t row = (begin + i) / row_units;
    auto* out = reinterpret_cast<Unit*>(args.out + row * args.out_stride) +
                (begin + i) % row_units;
    out[args.rank * row_units] = __ldcg(from + i);
    out[(1 - args.rank) * row_units] = __ldcg(other + i);
  }
}

// Where a flag with every value is faster: few rows.
bool IsQuick(int64_t rows, int64_t n) {
  constexpr int64_t kMostRows = 8;
  return rows <= kMostRows && n <= kQuickElements;
}

// Rows that one call takes.
int64_t CallRows(int64_t row_bytes) {
  return kRankBlocks * (kRankSlotBytes / row_bytes);
}

template <bool kVectors>
cudaError_t LaunchNorm(const RankLinks& links, const AllReduceNormArgs& args,
                       cudaStream_t stream) {
  const int threads = NormThreads(args.norm.hidden);
  const dim3 grid(Blocks(std::min<int64_t>(args.norm.rows, kRankBlocks)));
  const int64_t held = CeilDiv(CeilDiv(args.norm.hidden, 8), threads);
  const float share = ShareOf(args.norm.hidden);
  if (args.norm.rows <= kRankBlocks && held <= 2) {
    const bool quick = IsQuick(args.norm.rows, args.norm.hidden);
    if (held <= 1) {
      return Launch(quick ? &RowAllReduceNormKernel<kVectors, 1, true>
                          : &RowAllReduceNormKernel<kVectors, 1, false>,
                    grid, threads, 0, stream, links, args, share);
    }
    return Launch(quick ? &RowAllReduceNormKernel<kVectors, 2, true>
                        : &RowAllReduceNormKernel<kVectors, 2, false>,
                  grid, threads, 0, stream, links, args, share);
  }
  if (held <= 1) {
    return Launch(&AllReduceNormKernel<kVectors, 1>, grid, threads, 0, stream,
                  links, args, share);
  }
  if (held <= 2) {
    return Launch(&AllReduceNormKernel<kVectors, 2>, grid, threads, 0, stream,
                  links, args, share);
  }
  return Launch(&AllReduceNormKernel<kVectors, 8>, grid, threads, 0, stream,
                links, args, share);
}

template <typename T>
cudaError_t LaunchSumOf(const RankLinks& links, const AllReduceArgs& args,
                        dim3 grid, int threads, bool vectors,
                        cudaStream_t stream) {
  if (IsQuick(args.rows, args.size)) {
    return Launch(vectors ? &QuickAllReduceKernel<T, true>
                          : &QuickAllReduceKernel<T, false>,
                  grid, threads, 0, stream, links, args);
  }
  return Launch(
      vectors ? &AllReduceKernel<T, true> : &AllReduceKernel<T, false>, grid,
      threads, 0, stream, links, args);
}

cudaError_t LaunchSum(const RankLinks& links, const AllReduceArgs& args,
                      cudaStream_t stream) {
  const int threads = NormThreads(args.size);
  const dim3 grid(Blocks(std::min<int64_t>(args.rows, kRankBlocks)));
  const bool vectors = SuitsVectors(args.partial, args.size, args.size) &&
                       SuitsVectors(args.out, args.out_stride, args.size);
  return args.out_f32
             ? LaunchSumOf<float>(links, args, grid, threads, vectors, stream)
             : LaunchSumOf<uint16_t>(links, args, grid, threads, vectors,
                                     stream);
}

void* RowsOn(void* p, int64_t elements, int64_t element_bytes) {
  return static_cast<std::byte*>(p) + elements * element_bytes;
}

}  // namespace

cudaError_t AllReduceRows(const RankLinks& links, const AllReduceArgs& args,
                          cudaStream_t stream) {
  if (args.size <= 0 || args.size > kMaxNormSize) return cudaErrorInvalidValue;
  const int64_t most = CallRows(args.size * 4);
  for (int64_t row = 0; row < args.rows; row += most) {
    AllReduceArgs part = args;
    part.rows = std::min(most, args.rows - row);
    part.partial += row * args.size;
    part.out = RowsOn(args.out, row * args.out_stride, args.out_f32 ? 4 : 2);
    const cudaError_t error = LaunchSum(links, part, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t AllReduceAddRmsNormRows(const RankLinks& links,
                                    const AllReduceNormArgs& args,
                                    cudaStream_t stream) {
  const AddRmsNormArgs& norm = args.norm;
  if (norm.hidden <= 0 || norm.hidden > kMaxNormSize) {
    return cudaErrorInvalidValue;
  }
  const bool vectors =
      SuitsVectors(norm.residual, norm.residual_stride, norm.hidden) &&
      SuitsVectors(norm.out, norm.out_stride, norm.hidden) &&
      SuitsVectors(args.partial, norm.hidden, norm.hidden) &&
      IsAligned(norm.weight, 16);
  const int64_t most = CallRows(norm.hidden * 4);
  for (int64_t row = 0; row < norm.rows; row += most) {
    AllReduceNormArgs part = args;
    part.partial += row * norm.hidden;
    part.norm.rows = std::min(most, norm.rows - row);
    part.norm.residual = RowsOn(norm.residual, row * norm.residual_stride, 2);
    part.norm.out = RowsOn(norm.out, row * norm.out_stride, 2);
    const cudaError_t error = vectors ? LaunchNorm<true>(links, part, stream)
                                      : LaunchNorm<false>(links, part, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t AllGatherRows(const RankLinks& links, const AllGatherArgs& args,
                          cudaStream_t stream) {
  constexpr int64_t kMost = kRankBlocks * kRankSlotBytes;
  constexpr int64_t kBlockBytes = 8 << 10;  // at least, for one more block
  if (args.row_bytes <= 0 || args.row_bytes % 2 != 0 ||
      args.row_bytes > kMost / 2) {
    return cudaErrorInvalidValue;
  }
  // Both ranks must choose alike: by the row alone.
  const bool vectors = args.row_bytes % 16 == 0;
  if (vectors && !(IsAligned(args.x, 16) && IsAligned(args.out, 16) &&
                   args.out_stride % 16 == 0)) {
    return cudaErrorInvalidValue;
  }
  const int64_t most = kMost / 2 / args.row_bytes;
  for (int64_t row = 0; row < args.rows; row += most) {
    AllGatherArgs part = args;
    part.rows = std::min(most, args.rows - row);
    part.x += row * args.row_bytes;
    if (args.out != nullptr) part.out += row * args.out_stride;
    const dim3 grid(Blocks(std::min<int64_t>(
        CeilDiv(part.rows * args.row_bytes, kBlockBytes), kRankBlocks)));
    const cudaError_t error =
        Launch(vectors ? &AllGatherKernel<uint4> : &AllGatherKernel<uint16_t>,
               grid, kGatherThreads, 0, stream, links, part);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace baton::cuda
