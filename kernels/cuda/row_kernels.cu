// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/row_kernels.h"

namespace baton::cuda {
namespace {

constexpr int kMaxNormThreads = 512;
constexpr int kMapThreads = 256;
// Few rows are shared out among more blocks.
constexpr int kFewMapThreads = 64;
constexpr int64_t kFewMapRows = 8;
constexpr int64_t kMaxGridY = 65535;

// Whether 16-byte accesses suit a row of `size` at p.
bool SuitsVectors(const void* p, int64_t stride, int64_t size) {
  return IsAligned(p, 16) && stride % 8 == 0 && size % 8 == 0;
}

// ---- Norms -----------------------------------------------------------------

// One block per row; thread t keeps elements [8 (t + v threads), + 8) of it.
// The order of the sum depends on the size alone.
template <bool kVectors, int kHeld, bool kAdd>
__global__ void __launch_bounds__(kMaxNormThreads)
    NormKernel(AddRmsNormArgs args) {
  __shared__ float scratch[kMaxNormThreads / kWarp];
  AllowNextGrid();
  const auto* weight = static_cast<const uint16_t*>(args.weight);
  const int64_t n = args.hidden;
  const int64_t step = 8 * static_cast<int64_t>(blockDim.x);
  const int64_t first = 8 * static_cast<int64_t>(threadIdx.x);
  constexpr bool kWeightFirst = kHeld <= 2;  // else there are no registers
  uint4 scale[kHeld];
  if constexpr (kWeightFirst) {
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      scale[v] = LoadEight<kVectors>(weight, first + v * step, n);
    }
  }
  AwaitPreviousGrids();

  const int64_t row = blockIdx.x;
  auto* residual =
      static_cast<uint16_t*>(args.residual) + row * args.residual_stride;
  const auto* update =
      static_cast<const uint16_t*>(args.update) + row * args.update_stride;
  auto* out = static_cast<uint16_t*>(args.out) + row * args.out_stride;
  uint4 held[kHeld];
#pragma unroll
  for (int v = 0; v < kHeld; ++v) {
    held[v] = LoadEight<kVectors>(residual, first + v * step, n);
  }
  float sum = 0;
#pragma unroll
  for (int v = 0; v < kHeld; ++v) {
    float x[8];
    Unpack(held[v], x);
    if constexpr (kAdd) {
      float y[8];
      Unpack(LoadEight<kVectors>(update, first + v * step, n), y);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] += y[i];
      held[v] = Pack(x);
      StoreEight<kVectors>(residual, first + v * step, n, held[v]);
      Unpack(held[v], x);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(x[i], x[i], sum);
  }
  const float mean = BlockSum(sum, scratch) / static_cast<float>(n);
  const float factor = 1.0f / sqrtf(mean + args.eps);
#pragma unroll
  for (int v = 0; v < kHeld; ++v) {
    float x[8];
    float w[8];
    Unpack(held[v], x);
    if constexpr (!kWeightFirst) {
      scale[v] = LoadEight<kVectors>(weight, first + v * step, n);
    }
    Unpack(scale[v], w);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = w[i] * (x[i] * factor);
    StoreEight<kVectors>(out, first + v * step, n, Pack(x));
  }
}

template <bool kVectors, bool kAdd>
cudaError_t LaunchNorm(const AddRmsNormArgs& args, cudaStream_t stream) {
  const int64_t vectors = CeilDiv(args.hidden, 8);
  const int threads = static_cast<int>(std::min<int64_t>(
      CeilDiv(vectors, kWarp) * kWarp, int64_t{kMaxNormThreads}));
  const dim3 grid(Blocks(args.rows));
  const int64_t held = CeilDiv(vectors, threads);
  if (held <= 1) {
    return Launch(&NormKernel<kVectors, 1, kAdd>, grid, threads, 0, stream,
                  args);
  }
  if (held <= 2) {
    return Launch(&NormKernel<kVectors, 2, kAdd>, grid, threads, 0, stream,
                  args);
  }
  return Launch(&NormKernel<kVectors, 8, kAdd>, grid, threads, 0, stream, args);
}

bool IsNormSize(int64_t hidden) { return hidden > 0 && hidden <= kMaxNormSize; }

// ---- Element by element ----------------------------------------------------

struct AddFunction {
  __device__ float operator()(float a, float b) const { return a + b; }
};
// The quick division has no slow path, which would keep elements from being
// worked on side by side; it is good to 2 ulp of fp32.
struct SiluMulFunction {
  __device__ float operator()(float gate, float up) const {
    return __fdividef(gate, 1.0f + expf(-gate)) * up;
  }
};
struct Relu2Function {
  __device__ float operator()(float x, float /*unused*/) const {
    return Relu2Of(x);
  }
};
struct XieluFunction {
  XieluConstants c;
  __device__ float operator()(float x, float /*unused*/) const {
    return XieluOf(x, c.positive, c.negative, c.beta, c.eps);
  }
};

struct MapArgs {
  const uint16_t* a;  // [rows, size]
  int64_t a_stride;
  const uint16_t* b;  // [rows, size], or null
  int64_t b_stride;
  uint16_t* out;  // [rows, size]
  int64_t out_stride;
  int64_t rows, size;
};

template <bool kVectors, typename Function>
__global__ void __launch_bounds__(kMapThreads)
    MapKernel(MapArgs args, Function function) {
  EnterKernel();
  const int64_t at =
      8 * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (at >= args.size) return;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    float x[8];
    float y[8] = {};
    const uint4 a =
        LoadEight<kVectors>(args.a + row * args.a_stride, at, args.size);
    if (args.b != nullptr) {
      Unpack(LoadEight<kVectors>(args.b + row * args.b_stride, at, args.size),
             y);
    }
    Unpack(a, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = function(x[i], y[i]);
    StoreEight<kVectors>(args.out + row * args.out_stride, at, args.size,
                         Pack(x));
  }
}

int MapThreads(int64_t rows) {
  return rows <= kFewMapRows ? kFewMapThreads : kMapThreads;
}
dim3 MapGrid(int64_t rows, int64_t size) {
  return {Blocks(CeilDiv(size, 8 * int64_t{MapThreads(rows)})),
          Blocks(std::min(rows, kMaxGridY))};
}

template <typename Function>
cudaError_t Map(const MapArgs& args, Function function, cudaStream_t stream) {
  if (args.rows == 0 || args.size == 0) return cudaSuccess;
  const dim3 grid = MapGrid(args.rows, args.size);
  const int threads = MapThreads(args.rows);
  const bool vectors =
      SuitsVectors(args.a, args.a_stride, args.size) &&
      SuitsVectors(args.out, args.out_stride, args.size) &&
      (args.b == nullptr || SuitsVectors(args.b, args.b_stride, args.size));
  return vectors ? Launch(&MapKernel<true, Function>, grid, threads, 0, stream,
                          args, function)
                 : Launch(&MapKernel<false, Function>, grid, threads, 0, stream,
                          args, function);
}

template <typename Function>
cudaError_t MapActivation(const ActivationArgs& args, Function function,
                          cudaStream_t stream) {
  return Map({.a = static_cast<const uint16_t*>(args.x),
              .a_stride = args.x_stride,
              .b = nullptr,
              .b_stride = 0,
              .out = static_cast<uint16_t*>(args.out),
              .out_stride = args.out_stride,
              .rows = args.rows,
              .size = args.ffn},
             function, stream);
}

// ---- Look-up ---------------------------------------------------------------

template <bool kVectors>
__global__ void __launch_bounds__(kMapThreads) LookUpKernel(LookUpArgs args) {
  EnterKernel();
  const int64_t at =
      8 * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (at >= args.hidden) return;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    int64_t from = LoadInt(args.index + row);
    if (from < 0) from = LoadInt(args.tokens + (-1 - from));
    const auto* table =
        static_cast<const uint16_t*>(args.table) + from * args.table_stride;
    auto* out = static_cast<uint16_t*>(args.out) + row * args.out_stride;
    StoreEight<kVectors>(out, at, args.hidden,
                         LoadEight<kVectors>(table, at, args.hidden));
  }
}

}  // namespace

cudaError_t AddRmsNormRows(const AddRmsNormArgs& args, cudaStream_t stream) {
  if (!IsNormSize(args.hidden)) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const bool vectors =
      SuitsVectors(args.residual, args.residual_stride, args.hidden) &&
      SuitsVectors(args.update, args.update_stride, args.hidden) &&
      SuitsVectors(args.out, args.out_stride, args.hidden) &&
      IsAligned(args.weight, 16);
  return vectors ? LaunchNorm<true, true>(args, stream)
                 : LaunchNorm<false, true>(args, stream);
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
  };
  return vectors ? LaunchNorm<true, false>(only_norm, stream)
                 : LaunchNorm<false, false>(only_norm, stream);
}

cudaError_t AddRows(const AddArgs& args, cudaStream_t stream) {
  return Map({.a = static_cast<const uint16_t*>(args.residual),
              .a_stride = args.residual_stride,
              .b = static_cast<const uint16_t*>(args.update),
              .b_stride = args.update_stride,
              .out = static_cast<uint16_t*>(args.residual),
              .out_stride = args.residual_stride,
              .rows = args.rows,
              .size = args.hidden},
             AddFunction{}, stream);
}

cudaError_t SiluMulRows(const ActivationArgs& args, cudaStream_t stream) {
  const auto* gate = static_cast<const uint16_t*>(args.x);
  return Map({.a = gate,
              .a_stride = args.x_stride,
              .b = gate + args.ffn,
              .b_stride = args.x_stride,
              .out = static_cast<uint16_t*>(args.out),
              .out_stride = args.out_stride,
              .rows = args.rows,
              .size = args.ffn},
             SiluMulFunction{}, stream);
}

cudaError_t Relu2Rows(const ActivationArgs& args, cudaStream_t stream) {
  return MapActivation(args, Relu2Function{}, stream);
}

cudaError_t XieluRows(const ActivationArgs& args,
                      const XieluConstants& constants, cudaStream_t stream) {
  return MapActivation(args, XieluFunction{constants}, stream);
}

cudaError_t LookUpRows(const LookUpArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.hidden == 0) return cudaSuccess;
  const dim3 grid = MapGrid(args.rows, args.hidden);
  const int threads = MapThreads(args.rows);
  const bool vectors =
      SuitsVectors(args.table, args.table_stride, args.hidden) &&
      SuitsVectors(args.out, args.out_stride, args.hidden);
  return vectors ? Launch(&LookUpKernel<true>, grid, threads, 0, stream, args)
                 : Launch(&LookUpKernel<false>, grid, threads, 0, stream, args);
}

}  // namespace baton::cuda
