// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/grouped_sort.h"

namespace baton::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kHeld = 8;  // loads that a thread has in flight

// Calls f(slot, expert) for the slots whose expert exists.
template <typename Function>
__device__ __forceinline__ void ForSlots(const GroupedArgs& args, int experts,
                                         const Function& f) {
  const int slots = static_cast<int>(args.tokens * args.top);
  const int top = static_cast<int>(args.top);
  const int64_t pad = args.ld_experts - args.top;
#pragma unroll 1
  for (int begin = static_cast<int>(threadIdx.x); begin < slots;
       begin += kThreads * kHeld) {
    int expert[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int slot = begin + i * kThreads;
      const int64_t at = pad == 0 ? slot : slot + slot / top * pad;
      expert[i] = slot < slots ? LoadInt(args.experts + at) : -1;
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (expert[i] >= 0 && expert[i] < experts) {
        f(begin + i * kThreads, expert[i]);
      }
    }
  }
}

// A warp: the parts [first, end) of one expert, whose slots are [slot,
// slots_end) of the sorted ones.
__device__ __forceinline__ void WriteParts(GroupedPart* parts, int expert,
                                           int first, int end, int slot,
                                           int slots_end, int part_rows) {
  const int count = end - first;
  const int bands = (count + kBandParts - 1) / kBandParts;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < count; i += kWarp) {
    const int band = ((i + 1) * bands - 1) / count;
    const int band_first = band * count / bands;
    const int at = slot + i * part_rows;
    parts[first + i] = {expert, at, min(part_rows, slots_end - at),
                        first + band_first,
                        (band + 1) * count / bands - band_first};
  }
}

__global__ void __launch_bounds__(kThreads)
    SortSlotsKernel(GroupedArgs args, GroupedPlan plan, int experts,
                    int part_rows) {
  __shared__ int32_t rows_before[kMaxExperts + 1];
  __shared__ int32_t parts_before[kMaxExperts + 1];
  __shared__ int32_t next[kMaxExperts];
  EnterKernel();
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < experts; e += kThreads) rows_before[e + 1] = 0;
  __syncthreads();
  ForSlots(args, experts,
           [&](int, int expert) { atomicAdd(&rows_before[expert + 1], 1); });
  __syncthreads();
  for (int e = thread; e < experts; e += kThreads) {
    parts_before[e + 1] = (rows_before[e + 1] + part_rows - 1) / part_rows;
  }
  __syncthreads();
  if (thread / kWarp == 0) AddUp(experts, rows_before);
  if (thread / kWarp == 1) AddUp(experts, parts_before);
  __syncthreads();
  for (int e = thread; e < experts; e += kThreads) next[e] = rows_before[e];
  for (int e = thread / kWarp; e < experts; e += kThreads / kWarp) {
    WriteParts(plan.parts, e, parts_before[e], parts_before[e + 1],
               rows_before[e], rows_before[e + 1], part_rows);
  }
  if (thread == 0) *plan.part_count = parts_before[experts];
  __syncthreads();
  ForSlots(args, experts, [&](int slot, int expert) {
    plan.slots[atomicAdd(&next[expert], 1)] = slot;
  });
  const int slots = static_cast<int>(args.tokens * args.top);
  for (int i = rows_before[experts] + thread; i < slots; i += kThreads) {
    plan.slots[i] = 0;
  }
}

}  // namespace

int64_t GroupedPlanBytes(int64_t slots) {
  return GroupedScratch::PlanBytes(slots);
}

cudaError_t SortSlots(const GroupedArgs& args, int64_t experts, int part_rows,
                      const GroupedPlan& plan, cudaStream_t stream) {
  if (args.sort == GroupedSort::kDone) return cudaSuccess;
  return Launch(&SortSlotsKernel, dim3(1), kThreads, 0, stream, args, plan,
                static_cast<int>(experts), part_rows);
}

}  // namespace baton::cuda
