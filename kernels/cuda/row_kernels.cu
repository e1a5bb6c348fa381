// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/row_eights.cuh"
#include "kernels/cuda/row_kernels.h"

namespace baton::cuda {
namespace {

constexpr int kMapThreads = 256;
// Few rows are shared out among more blocks.
constexpr int kFewMapThreads = 64;
constexpr int64_t kFewMapRows = 8;
constexpr int64_t kMaxGridY = 65535;

// ---- Element by element ----------------------------------------------------

struct AddFunction {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct SiluMulFunction {
  __device__ float operator()(float gate, float up) const {
    return SiluMulOf(gate, up);
  }
};
struct GeluMulFunction {
  __device__ float operator()(float gate, float up) const {
    return GeluMulOf(gate, up);
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

template <typename T>
struct MapArgs {
  const T* a;  // [rows, size]
  int64_t a_stride;
  const uint16_t* b;  // [rows, size], or null
  int64_t b_stride;
  T* out;  // [rows, size]
  int64_t out_stride;
  int64_t rows, size;
};

template <typename T, bool kVectors, typename Function>
__global__ void __launch_bounds__(kMapThreads)
    MapKernel(MapArgs<T> args, Function function) {
  EnterKernel();
  const int64_t at =
      8 * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (at >= args.size) return;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    float x[8];
    float y[8] = {};
    const Eight<T> a =
        LoadEight<kVectors>(args.a + row * args.a_stride, at, args.size);
    if (args.b != nullptr) {
      Unpack(LoadEight<kVectors>(args.b + row * args.b_stride, at, args.size),
             y);
    }
    Unpack(a, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = function(x[i], y[i]);
    StoreEight<kVectors>(args.out + row * args.out_stride, at, args.size,
                         PackTo<T>(x));
  }
}

int MapThreads(int64_t rows) {
  return rows <= kFewMapRows ? kFewMapThreads : kMapThreads;
}
dim3 MapGrid(int64_t rows, int64_t size) {
  return {Blocks(CeilDiv(size, 8 * int64_t{MapThreads(rows)})),
          Blocks(std::min(rows, kMaxGridY))};
}

template <typename T, typename Function>
cudaError_t Map(const MapArgs<T>& args, Function function,
                cudaStream_t stream) {
  if (args.rows == 0 || args.size == 0) return cudaSuccess;
  const dim3 grid = MapGrid(args.rows, args.size);
  const int threads = MapThreads(args.rows);
  const bool vectors =
      SuitsVectors(args.a, args.a_stride, args.size) &&
      SuitsVectors(args.out, args.out_stride, args.size) &&
      (args.b == nullptr || SuitsVectors(args.b, args.b_stride, args.size));
  return vectors ? Launch(&MapKernel<T, true, Function>, grid, threads, 0,
                          stream, args, function)
                 : Launch(&MapKernel<T, false, Function>, grid, threads, 0,
                          stream, args, function);
}

template <typename Function>
cudaError_t MapActivation(const ActivationArgs& args, Function function,
                          cudaStream_t stream) {
  return Map<uint16_t>({.a = static_cast<const uint16_t*>(args.x),
                        .a_stride = args.x_stride,
                        .b = nullptr,
                        .b_stride = 0,
                        .out = static_cast<uint16_t*>(args.out),
                        .out_stride = args.out_stride,
                        .rows = args.rows,
                        .size = args.ffn},
                       function, stream);
}

// function(gate, up).
template <typename Function>
cudaError_t MapGated(const ActivationArgs& args, Function function,
                     cudaStream_t stream) {
  const auto* gate = static_cast<const uint16_t*>(args.x);
  return Map<uint16_t>({.a = gate,
                        .a_stride = args.x_stride,
                        .b = gate + args.ffn,
                        .b_stride = args.x_stride,
                        .out = static_cast<uint16_t*>(args.out),
                        .out_stride = args.out_stride,
                        .rows = args.rows,
                        .size = args.ffn},
                       function, stream);
}

template <typename T>
cudaError_t AddTo(const AddArgs& args, cudaStream_t stream) {
  return Map<T>({.a = static_cast<const T*>(args.residual),
                 .a_stride = args.residual_stride,
                 .b = static_cast<const uint16_t*>(args.update),
                 .b_stride = args.update_stride,
                 .out = static_cast<T*>(args.residual),
                 .out_stride = args.residual_stride,
                 .rows = args.rows,
                 .size = args.hidden},
                AddFunction{}, stream);
}

// ---- Gates of heads --------------------------------------------------------

// A thread takes eight elements of a row, of one head where vectors suit.
template <bool kVectors>
__global__ void __launch_bounds__(kMapThreads)
    GateHeadsKernel(GateHeadsArgs args) {
  EnterKernel();
  const int64_t at =
      8 * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
  const int64_t size = args.heads * args.head_dim;
  if (at >= size) return;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    const auto* gate =
        static_cast<const uint16_t*>(args.gate) + row * args.gate_stride;
    auto* to = static_cast<uint16_t*>(args.x) + row * args.x_stride;
    const auto share_of = [&](int64_t element) {
      const float z = FromBf16(Load2(gate + element / args.head_dim));
      return 1.0f / (1.0f + expf(-z));
    };
    float x[8];
    Unpack(LoadEight<kVectors>(to, at, size), x);
    float share = share_of(at);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (!kVectors && at + i < size) share = share_of(at + i);
      x[i] *= share;
    }
    StoreEight<kVectors>(to, at, size, Pack(x));
  }
}

// ---- Rounding --------------------------------------------------------------

template <bool kVectors>
__global__ void __launch_bounds__(kMapThreads) RoundKernel(RoundArgs args) {
  EnterKernel();
  const int64_t at =
      8 * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (at >= args.size) return;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    float x[8];
    Unpack(LoadEight<kVectors>(args.x + row * args.x_stride, at, args.size), x);
    StoreEight<kVectors>(
        static_cast<uint16_t*>(args.out) + row * args.out_stride, at, args.size,
        Pack(x));
  }
}

// ---- Look-up ---------------------------------------------------------------

template <typename T, bool kVectors>
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
    auto* out = static_cast<T*>(args.out) + row * args.out_stride;
    const uint4 packed = LoadEight<kVectors>(table, at, args.hidden);
    if constexpr (std::is_same_v<T, float>) {
      float x[8];
      Unpack(packed, x);
      StoreEight<kVectors>(out, at, args.hidden, PackTo<float>(x));
    } else {
      StoreEight<kVectors>(out, at, args.hidden, packed);
    }
  }
}

template <typename T>
cudaError_t LaunchLookUp(const LookUpArgs& args, cudaStream_t stream) {
  const dim3 grid = MapGrid(args.rows, args.hidden);
  const int threads = MapThreads(args.rows);
  const bool vectors =
      SuitsVectors(args.table, args.table_stride, args.hidden) &&
      SuitsVectors(args.out, args.out_stride, args.hidden);
  return vectors
             ? Launch(&LookUpKernel<T, true>, grid, threads, 0, stream, args)
             : Launch(&LookUpKernel<T, false>, grid, threads, 0, stream, args);
}

}  // namespace

cudaError_t AddRows(const AddArgs& args, cudaStream_t stream) {
  return args.residual_type == StreamType::kF32 ? AddTo<float>(args, stream)
                                                : AddTo<uint16_t>(args, stream);
}

cudaError_t SiluMulRows(const ActivationArgs& args, cudaStream_t stream) {
  return MapGated(args, SiluMulFunction{}, stream);
}

cudaError_t GeluMulRows(const ActivationArgs& args, cudaStream_t stream) {
  return MapGated(args, GeluMulFunction{}, stream);
}

cudaError_t Relu2Rows(const ActivationArgs& args, cudaStream_t stream) {
  return MapActivation(args, Relu2Function{}, stream);
}

cudaError_t XieluRows(const ActivationArgs& args,
                      const XieluConstants& constants, cudaStream_t stream) {
  return MapActivation(args, XieluFunction{constants}, stream);
}

cudaError_t GateHeadsRows(const GateHeadsArgs& args, cudaStream_t stream) {
  const int64_t size = args.heads * args.head_dim;
  if (args.rows == 0 || size == 0) return cudaSuccess;
  const bool vectors =
      args.head_dim % 8 == 0 && SuitsVectors(args.x, args.x_stride, size);
  return Launch(vectors ? &GateHeadsKernel<true> : &GateHeadsKernel<false>,
                MapGrid(args.rows, size), MapThreads(args.rows), 0, stream,
                args);
}

cudaError_t RoundRows(const RoundArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.size == 0) return cudaSuccess;
  const dim3 grid = MapGrid(args.rows, args.size);
  const int threads = MapThreads(args.rows);
  return SuitsVectors(args.x, args.x_stride, args.size) &&
                 SuitsVectors(args.out, args.out_stride, args.size)
             ? Launch(&RoundKernel<true>, grid, threads, 0, stream, args)
             : Launch(&RoundKernel<false>, grid, threads, 0, stream, args);
}

cudaError_t LookUpRows(const LookUpArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.hidden == 0) return cudaSuccess;
  return args.out_type == StreamType::kF32
             ? LaunchLookUp<float>(args, stream)
             : LaunchLookUp<uint16_t>(args, stream);
}

}  // namespace baton::cuda
