// SPDX-License-Identifier: Apache-2.0
// The delta rule for heads of 128 with the gated norm of its outputs, for
// sequences of one row. The four blocks of a head are a cluster: each tells the
// others the squares of its outputs, and norms its own. A warp's eight columns
// are what a lane of the norm's kernel has, so that squares are added up in the
// same order (gated_norm.cuh).
#pragma once

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/delta_kernel.cuh"
#include "kernels/cuda/delta_rows.h"
#include "kernels/cuda/gated_norm.cuh"
#include "kernels/cuda/tma.cuh"

namespace baton::cuda {

static_assert(kHeadBlocks * kDeltaWarps == kNormLanes);
static_assert(kNormLanes * 8 == kDeltaDim);

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The squares of the warp's eight columns, in order; y as DeltaStep gives it.
__device__ __forceinline__ float SquaresOfWarp(float y) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float x = __shfl_sync(
        kAllLanes, y, i / kLaneColumns * kKeyLanes + i % kLaneColumns);
    sum = fmaf(x, x, sum);
  }
  return sum;
}

// The squares of all warps of the cluster, which each sends to every block, and
// the barrier that counts their bytes.
struct DeltaSquares {
  uint64_t barrier;
  float sums[kNormLanes];

  // One thread, before the cluster meets.
  __device__ __forceinline__ void Expect() {
    BarrierInitFor(SharedOffset(&barrier), sizeof(sums));
  }
};
// Where a lane sends those of its warp: lane l to block l.
struct DeltaSender {
  uint32_t sum, barrier;

  __device__ __forceinline__ DeltaSender(const DeltaSquares& squares,
                                         int warp) {
    const int block = static_cast<int>(threadIdx.x) % kHeadBlocks;
    const int rank = static_cast<int>(blockIdx.x) % kHeadBlocks;
    sum = AddressIn(block,
                    SharedOffset(&squares.sums[rank * kDeltaWarps + warp]));
    barrier = AddressIn(block, SharedOffset(&squares.barrier));
  }
  // All lanes.
  __device__ __forceinline__ void Send(float squares) const {
    if (threadIdx.x % kWarp < kHeadBlocks) SendTo(sum, squares, barrier);
  }
};

#endif

// Blocks as DeltaRuleKernel's, those of a head in a cluster.
__global__ void __launch_bounds__((kDeltaWarps + 1) * kWarp, 3)
    DeltaNormedKernel(DeltaRuleArgs args, GatedNormArgs norm) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __shared__ DeltaShared block;
  __shared__ DeltaSquares squares;
  AllowNextGrid();
  const int warp = UniformWarp();
  const DeltaPlace place = PlaceOfBlock(args);
  const DeltaGate decay_gate = LoadGate(args, place.head);
  if (place.sequence.rows <= 0) {  // all blocks of the cluster
    AwaitPreviousGrids();
    return;
  }
  if (threadIdx.x == 0) squares.Expect();
  ClusterMeet();  // all have begun, and their barriers are there
  if (warp >= kDeltaWarps) {
    PrepareTokens<1>(args, place, decay_gate, 0, block);
    return;
  }
  const DeltaSender sender(squares, warp);
  const DeltaLane lane = LaneOf(args, place, warp);
  DeltaState state = {};
  if (lane.slot != nullptr) LoadState(lane.slot, lane.column, state);
  const float weight = norm.weight[place.column + lane.own];
  AwaitPreviousGrids();
  const float gate =
      FromBf16(Load2(static_cast<const uint16_t*>(norm.gate) +
                     OutputAt(place, lane.own, norm.gate_stride)));
  BarrierSync(kDeltaFull, (kDeltaWarps + 1) * kWarp);
  const DeltaToken& token = block.tokens[0][0];
  DeltaAhead ahead;
  ahead.Load(token);
  const float y = RoundBf16(DeltaStep(token, token, lane.own, ahead, state));
  sender.Send(SquaresOfWarp(y));
  BarrierWaitCluster(SharedOffset(&squares.barrier), 0);
  const float factor = GatedNormFactor(squares.sums[threadIdx.x % kNormLanes],
                                       ShareOf(kDeltaDim), norm.eps);
  if (lane.writes) {
    static_cast<uint16_t*>(
        args.out)[OutputAt(place, lane.own, args.out_stride)] =
        ToBf16(GatedNormOf(y, factor, weight, gate));
  }
  if (lane.slot != nullptr) StoreState(state, lane.column, lane.slot);
#endif
}

}  // namespace baton::cuda
