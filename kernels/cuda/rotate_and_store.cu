// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/rotate_and_store.h"

namespace baton::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
// Up to this many rows, heads of a row go to different blocks.
constexpr int64_t kFewRows = 128;

// One head vector in the registers of a warp. It is cut into chunks of kWidth
// elements; a lane holds pairs of chunks. The first `pairs` pairs are chunks
// that rotation combines, the rest are chunks that it leaves alone, with an
// empty partner.
template <int kWidth>
struct HeadVector {
  static constexpr int kPairs = static_cast<int>(kMaxHeadDim) / kWidth / kWarp;
  float a[kPairs][kWidth];
  float b[kPairs][kWidth];
};

struct HeadShape {
  int pairs;    // chunks i < pairs are combined with chunk i + pairs
  int singles;  // chunks after those
  int half;     // elements, num_freqs
};

// Calls f(slot, first element of a, first element of b or -1).
template <int kWidth, typename Function>
__device__ __forceinline__ void ForSlots(const HeadShape& shape,
                                         const Function& f) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int slot = 0; slot < HeadVector<kWidth>::kPairs; ++slot) {
    const int i = lane + slot * kWarp;
    if (i < shape.pairs) {
      f(slot, i * kWidth, i * kWidth + shape.half);
    } else if (i < shape.pairs + shape.singles) {
      f(slot, (i + shape.pairs) * kWidth, -1);
    }
  }
}

template <int kWidth>
__device__ __forceinline__ void LoadChunk(const uint16_t* from,
                                          float (&x)[kWidth]) {
  if constexpr (kWidth == 2) {
    const uint32_t pair = Load4(from);
    x[0] = LowOf(pair);
    x[1] = HighOf(pair);
  } else {
    x[0] = FromBf16(Load2(from));
  }
}
template <int kWidth>
__device__ __forceinline__ void StoreChunk(uint16_t* to,
                                           const float (&x)[kWidth]) {
  if constexpr (kWidth == 2) {
    *reinterpret_cast<uint32_t*>(to) = PackBf16(x[0], x[1]);
  } else {
    *to = ToBf16(x[0]);
  }
}

template <int kWidth>
__device__ __forceinline__ HeadVector<kWidth> LoadHead(const uint16_t* from,
                                                       const HeadShape& shape) {
  HeadVector<kWidth> x = {};
  ForSlots<kWidth>(shape, [&](int slot, int a, int b) {
    LoadChunk<kWidth>(from + a, x.a[slot]);
    if (b >= 0) LoadChunk<kWidth>(from + b, x.b[slot]);
  });
  return x;
}

// Squares are added per lane by slot, then over the lanes as a tree.
template <int kWidth>
__device__ __forceinline__ void Normalize(HeadVector<kWidth>& x,
                                          const HeadShape& shape,
                                          const uint16_t* weight, int head_dim,
                                          float eps) {
  float sum = 0;
#pragma unroll
  for (int slot = 0; slot < HeadVector<kWidth>::kPairs; ++slot) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sum = fmaf(x.a[slot][i], x.a[slot][i], sum);
      sum = fmaf(x.b[slot][i], x.b[slot][i], sum);
    }
  }
  const float mean = WarpSum(sum) / static_cast<float>(head_dim);
  const float factor = 1.0f / sqrtf(mean + eps);
  ForSlots<kWidth>(shape, [&](int slot, int a, int b) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float w = FromBf16(Load2(weight + a + i));
      x.a[slot][i] = RoundBf16(w * (x.a[slot][i] * factor));
      if (b < 0) continue;
      const float u = FromBf16(Load2(weight + b + i));
      x.b[slot][i] = RoundBf16(u * (x.b[slot][i] * factor));
    }
  });
}

template <int kWidth>
__device__ __forceinline__ void Rotate(HeadVector<kWidth>& x,
                                       const HeadShape& shape,
                                       const float2* angles) {
  ForSlots<kWidth>(shape, [&](int slot, int a, int b) {
    if (b < 0) return;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float2 cos_sin = angles[a + i];
      const float low = x.a[slot][i];
      const float high = x.b[slot][i];
      x.a[slot][i] = low * cos_sin.x - high * cos_sin.y;
      x.b[slot][i] = high * cos_sin.x + low * cos_sin.y;
    }
  });
}

template <int kWidth>
__device__ __forceinline__ void StoreHead(const HeadVector<kWidth>& x,
                                          const HeadShape& shape,
                                          uint16_t* to) {
  ForSlots<kWidth>(shape, [&](int slot, int a, int b) {
    StoreChunk<kWidth>(to + a, x.a[slot]);
    if (b >= 0) StoreChunk<kWidth>(to + b, x.b[slot]);
  });
}

// Where the token of a row lies in its page.
struct Place {
  uint16_t* page;  // [2][kv_heads][16 * head_dim]
  int slot;
};

// A warp takes one head of q, k or v of the block's row at a time.
template <int kWidth>
__device__ __forceinline__ void OneHead(const RotateAndStoreArgs& args,
                                        const HeadShape& shape, int64_t row,
                                        int task, const Place& place,
                                        const float2* angles) {
  const int head_dim = static_cast<int>(args.pages.head_dim);
  const int q_heads = static_cast<int>(args.q_heads);
  const int kv_heads = static_cast<int>(args.pages.kv_heads);
  const int block = 16 * head_dim;  // elements of a head in a page
  if (task >= q_heads + kv_heads) {
    const int head = task - q_heads - kv_heads;
    const auto* v = static_cast<const uint16_t*>(args.v) +
                    row * args.row_stride + head * head_dim;
    uint16_t* to = place.page + (kv_heads + head) * block + place.slot;
    for (int i = static_cast<int>(threadIdx.x) % kWarp; i < head_dim;
         i += kWarp) {
      to[i * 16] = Load2(v + i);
    }
    return;
  }
  const bool is_query = task < q_heads;
  const int head = is_query ? task : task - q_heads;
  auto* x = static_cast<uint16_t*>(is_query ? args.q : args.k) +
            row * args.row_stride + head * head_dim;
  const auto* norm =
      static_cast<const uint16_t*>(is_query ? args.q_norm : args.k_norm);
  HeadVector<kWidth> values = LoadHead<kWidth>(x, shape);
  if (norm != nullptr) Normalize(values, shape, norm, head_dim, args.eps);
  if (shape.half > 0) Rotate(values, shape, angles);
  StoreHead(values, shape, x);
  if (is_query) return;
  StoreHead(values, shape, place.page + head * block + place.slot * head_dim);
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    RotateAndStoreKernel(RotateAndStoreArgs args, HeadShape shape) {
  __shared__ float2 angles[kMaxHeadDim / 2];  // (cos, sin)
  EnterKernel();
  const int64_t row = blockIdx.x;
  const int sequence = LoadInt(args.row_sequence + row);
  if (sequence < 0) return;
  const int position = LoadInt(args.positions + row);
  const int64_t page =
      LoadInt(args.pages.page_table + sequence * args.pages.page_stride +
              position / kPageTokens);
  const Place place = {
      reinterpret_cast<uint16_t*>(static_cast<char*>(args.pages.pool) +
                                  page * args.pages.page_bytes),
      static_cast<int>(position % kPageTokens)};
  for (int i = static_cast<int>(threadIdx.x); i < shape.half; i += kThreads) {
    float sine;
    float cosine;
    sincosf(static_cast<float>(position) * __ldg(args.inv_freq + i), &sine,
            &cosine);
    angles[i] = {cosine * args.amplitude, sine * args.amplitude};
  }
  __syncthreads();
  const int tasks = static_cast<int>(args.q_heads + 2 * args.pages.kv_heads);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int task = static_cast<int>(blockIdx.y) * kWarps + warp; task < tasks;
       task += static_cast<int>(gridDim.y) * kWarps) {
    OneHead<kWidth>(args, shape, row, task, place, angles);
  }
}

}  // namespace

cudaError_t RotateAndStore(const RotateAndStoreArgs& args,
                           cudaStream_t stream) {
  const int64_t head_dim = args.pages.head_dim;
  if (head_dim % 2 != 0 || head_dim > kMaxHeadDim ||
      2 * args.num_freqs > head_dim || args.row_stride % 2 != 0 ||
      !IsAligned(args.q, 4) || !IsAligned(args.k, 4) || !IsAligned(args.v, 4)) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const int width = args.num_freqs % 2 == 0 ? 2 : 1;
  const HeadShape shape = {
      .pairs = static_cast<int>(args.num_freqs) / width,
      .singles = static_cast<int>(head_dim - 2 * args.num_freqs) / width,
      .half = static_cast<int>(args.num_freqs)};
  const int64_t tasks = args.q_heads + 2 * args.pages.kv_heads;
  const dim3 grid(Blocks(args.rows),
                  args.rows <= kFewRows ? Blocks(CeilDiv(tasks, kWarps)) : 1u);
  return Launch(
      width == 2 ? &RotateAndStoreKernel<2> : &RotateAndStoreKernel<1>, grid,
      kThreads, 0, stream, args, shape);
}

}  // namespace baton::cuda
