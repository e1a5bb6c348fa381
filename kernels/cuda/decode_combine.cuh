// SPDX-License-Identifier: Apache-2.0
// How the kernel of generated tokens combines the results of warps and of
// spans. Called by the kVisitors threads that visit keys, which meet at a
// barrier of their own.
#pragma once

#include "kernels/cuda/decode_work.cuh"

namespace baton::cuda {

inline constexpr int kVisitorWarps = 4;
inline constexpr int kVisitors = kVisitorWarps * kWarp;
inline constexpr int kCombineSpans = 64;  // weighted at a time

__device__ __forceinline__ void SyncVisitors() {
  asm volatile("bar.sync 1, %0;" ::"n"(kVisitors) : "memory");
}

template <int kHeadDim>
struct DecodeMerge {
  static constexpr int kStride = kHeadDim + 4;  // no bank conflicts
  // Sets of four dims of a unit that a thread combines.
  static constexpr int kQuads = kUnitHeads * (kHeadDim / 4) / kVisitors;

  float out[kVisitorWarps * kUnitHeads * kStride];
  float2 softmax[kVisitorWarps * kUnitHeads];  // largest score, weight
  float factors[kUnitHeads][kCombineSpans];
  float3 heads[kUnitHeads];  // largest score, weight, factor of what was before
  int is_last;
};

__device__ __forceinline__ void AddScaled(float4& total, const float4& x,
                                          float factor) {
  total.x = fmaf(x.x, factor, total.x);
  total.y = fmaf(x.y, factor, total.y);
  total.z = fmaf(x.z, factor, total.z);
  total.w = fmaf(x.w, factor, total.w);
}

// Dims [dim, dim + 4) of a head.
template <int kHeadDim>
__device__ __forceinline__ void StoreOut(const DecodeWork& work, int row,
                                         int head, int dim, const float4& total,
                                         float sum) {
  auto* to = reinterpret_cast<uint32_t*>(work.out + row * work.out_stride +
                                         head * kHeadDim + dim);
  const float inverse = 1.0f / sum;
  to[0] = PackBf16(total.x * inverse, total.y * inverse);
  to[1] = PackBf16(total.z * inverse, total.w * inverse);
}

// Where the results of a unit are.
template <int kHeadDim>
__device__ __forceinline__ float* ResultsOf(const DecodeWork& work, int row,
                                            int unit) {
  const int64_t place = static_cast<int64_t>(row) * work.units + unit;
  return work.scratch +
         place * work.max_spans * ResultFloats(work.stored_heads, kHeadDim);
}

// All visitors, the warps' results being there: combines the first `warps`, in
// order. A row of one span is done then; the results of others are stored.
template <int kHeadDim>
__device__ __forceinline__ void MergeWarps(const DecodeWork& work,
                                           const DecodeItem& item, int warps,
                                           const DecodeMerge<kHeadDim>& merge) {
  using Merge = DecodeMerge<kHeadDim>;
  const int thread = static_cast<int>(threadIdx.x);
  const int heads = UnitHeads(work, item.unit);
  float* result = ResultsOf<kHeadDim>(work, item.row, item.unit) +
                  item.span * ResultFloats(work.stored_heads, kHeadDim);
#pragma unroll
  for (int n = 0; n < Merge::kQuads; ++n) {
    const int quad = thread + n * kVisitors;
    const int head = quad / (kHeadDim / 4);
    if (head >= heads) break;
    const int dim = quad % (kHeadDim / 4) * 4;
    float2 softmax[kVisitorWarps];
    float largest = -kInfinity;
#pragma unroll
    for (int w = 0; w < kVisitorWarps; ++w) {
      softmax[w] = w < warps ? merge.softmax[w * kUnitHeads + head]
                             : float2{-kInfinity, 0.0f};
      largest = fmaxf(largest, softmax[w].x);
    }
    float4 total = {};
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kVisitorWarps; ++w) {
      if (w >= warps) break;
      const float factor = exp2f(softmax[w].x - largest);
      AddScaled(total,
                *reinterpret_cast<const float4*>(
                    merge.out + (w * kUnitHeads + head) * Merge::kStride + dim),
                factor);
      sum = fmaf(softmax[w].y, factor, sum);
    }
    if (item.spans == 1) {
      StoreOut<kHeadDim>(work, item.row, UnitHead(work, item.unit) + head, dim,
                         total, sum);
      continue;
    }
    *reinterpret_cast<float4*>(result + 4 * quad) = total;
    if (dim == 0) {
      *reinterpret_cast<float2*>(result + work.stored_heads * kHeadDim +
                                 2 * head) = {largest, sum};
    }
  }
}

// All visitors: largest scores and weights with the spans [first, first +
// count) added, and the factors of these spans.
template <int kHeadDim>
__device__ __forceinline__ void WeighSpans(const float* softmax, int64_t stride,
                                           int heads, int first, int count,
                                           DecodeMerge<kHeadDim>& merge) {
  constexpr int kEach = kCombineSpans / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int head = static_cast<int>(threadIdx.x) / kWarp; head < heads;
       head += kVisitorWarps) {
    const float3 before =
        first == 0 ? float3{-kInfinity, 0, 0} : merge.heads[head];
    float2 x[kEach];
    float best = before.x;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int s = lane + i * kWarp;
      x[i] = s < count ? __ldcg(reinterpret_cast<const float2*>(
                             softmax + (first + s) * stride + 2 * head))
                       : float2{-kInfinity, 0.0f};
      best = fmaxf(best, x[i].x);
    }
    best = WarpMax(best);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float factor = exp2f(x[i].x - best);
      merge.factors[head][lane + i * kWarp] = factor;
      sum = fmaf(x[i].y, factor, sum);
    }
    sum = WarpSum(sum);
    const float factor = exp2f(before.x - best);
    __syncwarp();
    if (lane == 0) {
      merge.heads[head] = {best, fmaf(before.y, factor, sum), factor};
    }
  }
}

// All visitors: the spans of a unit, in order. Ends with a barrier.
template <int kHeadDim>
__device__ __forceinline__ void CombineSpans(const DecodeWork& work, int row,
                                             int unit, int spans,
                                             DecodeMerge<kHeadDim>& merge) {
  using Merge = DecodeMerge<kHeadDim>;
  const int thread = static_cast<int>(threadIdx.x);
  const int heads = UnitHeads(work, unit);
  const int64_t stride = ResultFloats(work.stored_heads, kHeadDim);
  const float* results = ResultsOf<kHeadDim>(work, row, unit);
  float4 total[Merge::kQuads] = {};
  for (int first = 0; first < spans; first += kCombineSpans) {
    const int count = min(kCombineSpans, spans - first);
    WeighSpans(results + work.stored_heads * kHeadDim, stride, heads, first,
               count, merge);
    SyncVisitors();
#pragma unroll
    for (int n = 0; n < Merge::kQuads; ++n) {
      const int quad = thread + n * kVisitors;
      const int head = quad / (kHeadDim / 4);
      if (head >= heads) break;
      float4 sum = {};
      AddScaled(sum, total[n], merge.heads[head].z);
      const float* from = results + first * stride + 4 * quad;
#pragma unroll 8
      for (int s = 0; s < count; ++s) {
        AddScaled(sum,
                  __ldcg(reinterpret_cast<const float4*>(from + s * stride)),
                  merge.factors[head][s]);
      }
      total[n] = sum;
    }
    if (first + kCombineSpans < spans) SyncVisitors();
  }
#pragma unroll
  for (int n = 0; n < Merge::kQuads; ++n) {
    const int quad = thread + n * kVisitors;
    const int head = quad / (kHeadDim / 4);
    if (head >= heads) break;
    StoreOut<kHeadDim>(work, row, UnitHead(work, unit) + head,
                       quad % (kHeadDim / 4) * 4, total[n],
                       merge.heads[head].y);
  }
  SyncVisitors();
}

// The span that a block counted last. Whether it was the last of its unit is
// looked at an item later, so that nobody waits for the counter.
class DecodeTally {
 public:
  // All visitors, between two barriers after the results are stored.
  __device__ __forceinline__ void Count(const DecodeWork& work,
                                        const DecodeItem& item) {
    is_open_ = item.spans > 1;
    row_ = item.row;
    unit_ = item.unit;
    spans_ = item.spans;
    if (!is_open_ || threadIdx.x != 0) return;
    Fence();
    done_ = atomicAdd(Counter(work), 1) + 1;
  }
  // First visitor, before a barrier.
  __device__ __forceinline__ void Tell(const DecodeWork& work, int& is_last) {
    if (threadIdx.x != 0) return;
    is_last = is_open_ && done_ == spans_ ? 1 : 0;
    if (is_last == 0) return;
    Fence();
    *Counter(work) = 0;
  }
  // All visitors, if it was the last.
  template <int kHeadDim>
  __device__ __forceinline__ void Combine(const DecodeWork& work,
                                          DecodeMerge<kHeadDim>& merge) const {
    CombineSpans<kHeadDim>(work, row_, unit_, spans_, merge);
  }

 private:
  // Orders the results of the block, by the barriers around it, with the
  // counter; __threadfence would wait for more.
  __device__ static __forceinline__ void Fence() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }
  __device__ __forceinline__ int32_t* Counter(const DecodeWork& work) const {
    return work.counters + static_cast<int64_t>(row_) * work.units + unit_;
  }
  bool is_open_ = false;
  int row_ = 0;
  int unit_ = 0;
  int spans_ = 0;
  int done_ = 0;  // of the first visitor
};

}  // namespace baton::cuda
