// SPDX-License-Identifier: Apache-2.0
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <bit>
#include <limits>

#include "kernels/cuda/skinny_kernel.cuh"
#include "kernels/cuda/skinny_matmul.h"
#include "kernels/cuda/skinny_plain.cuh"

namespace baton::cuda {
namespace {

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max() / 2;

// One instantiation of the Hopper kernel.
struct Variant {
  void (*kernel)(CUtensorMap, SkinnyWork);
  int row_tiles, token_tiles;
  int min_slots;
};
template <int kRowTiles, int kTokenTiles>
constexpr Variant VariantOf() {
  using Tile = SkinnyTile<kRowTiles, kTokenTiles>;
  return {.kernel = &SkinnyKernel<kRowTiles, kTokenTiles>,
          .row_tiles = kRowTiles,
          .token_tiles = kTokenTiles,
          .min_slots = Tile::kMinSlots};
}
const Variant kVariants[] = {
    VariantOf<2, 1>(), VariantOf<2, 2>(), VariantOf<2, 4>(), VariantOf<2, 8>(),
    VariantOf<4, 1>(), VariantOf<4, 2>(), VariantOf<4, 4>(), VariantOf<4, 8>(),
};

const Variant* FindVariant(int row_tiles, int64_t m) {
  for (const Variant& variant : kVariants) {
    if (variant.row_tiles == row_tiles && m <= 8 * variant.token_tiles) {
      return &variant;
    }
  }
  return nullptr;
}

// Measured on an H200 over the shapes of the decoders (tests/device). Few
// blocks need deep rings; many tokens need few reads of x, which come through
// L2 once per block.
SkinnyTuning DefaultTuning(int64_t n, int64_t m) {
  constexpr int64_t kProcessors = 132;
  if ((n + 31) / 32 <= kProcessors) return {.row_tiles = 2, .slots = 6};
  if (m <= 8 || (m <= 16 && n < 12288)) return {.row_tiles = 2, .slots = 3};
  return {.row_tiles = 4, .slots = m <= 32 ? 3 : 6};
}

bool IsAligned(const void* p, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

// cuTensorMapEncodeTiled, without linking the driver.
cudaError_t FindEncoder(PFN_cuTensorMapEncodeTiled_v12000* encode) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess) return error;
  if (result != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  *encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  return cudaSuccess;
}

cudaError_t EncodeMap(SkinnyWeight* weight) {
  PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  const cudaError_t error = FindEncoder(&encode);
  if (error != cudaSuccess) return error;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(weight->k),
                              static_cast<cuuint64_t>(weight->n)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(2 * weight->ldw)};
  const cuuint32_t box[] = {kSkinnyGroup, kBoxRows};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result = encode(
      &weight->map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
      const_cast<void*>(weight->w), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// Lets every variant have its shared memory on the current device. Its code was
// compiled empty where it was not compiled for sm_90: NotSupported.
cudaError_t PrepareVariants() {
  int limit = 0, device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(
      &limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  for (const Variant& variant : kVariants) {
    cudaFuncAttributes attributes = {};
    error = cudaFuncGetAttributes(&attributes, variant.kernel);
    if (error != cudaSuccess) return error;
    if (attributes.ptxVersion < 90) return cudaErrorNotSupported;
    error = cudaFuncSetAttribute(
        variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
    if (error != cudaSuccess) return error;
    error = cudaFuncSetAttribute(variant.kernel,
                                 cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

bool FitTogether(const SkinnyWeight& weight, const SkinnyArgs& args) {
  if (args.m < 0 || args.m > kSkinnyMaxRows) return false;
  if (args.activation != SkinnyActivation::kNone &&
      args.out_type != SkinnyOut::kBf16) {
    return false;
  }
  if (args.m == 0) return true;
  if (args.x == nullptr || args.out == nullptr) return false;
  if (args.m > 1 && (args.ldx < weight.k || args.ldo < weight.n)) return false;
  return weight.plain || (IsAligned(args.x, 16) && args.ldx % 8 == 0);
}

cudaError_t LaunchPlain(const SkinnyWeight& weight, const SkinnyArgs& args,
                        const SkinnySink& sink, cudaStream_t stream) {
  const SkinnyPlainWork work = {
      .x = static_cast<const __nv_bfloat16*>(args.x),
      .ldx = args.ldx,
      .w = static_cast<const __nv_bfloat16*>(weight.w),
      .ldw = weight.ldw,
      .m = args.m,
      .n = weight.n,
      .k = weight.k,
      .sink = sink};
  const auto blocks =
      static_cast<unsigned>((weight.n + kPlainWarps - 1) / kPlainWarps);
  SkinnyPlainKernel<<<blocks, 32 * kPlainWarps, 0, stream>>>(work);
  return cudaGetLastError();
}

cudaError_t LaunchHopper(const SkinnyWeight& weight, const SkinnyArgs& args,
                         const SkinnySink& sink, cudaStream_t stream) {
  const SkinnyTuning defaults = DefaultTuning(weight.n, args.m);
  const int row_tiles =
      args.tuning.row_tiles != 0 ? args.tuning.row_tiles : defaults.row_tiles;
  const Variant* variant = FindVariant(row_tiles, args.m);
  if (variant == nullptr) return cudaErrorInvalidValue;
  const int slots = args.tuning.slots != 0 ? args.tuning.slots : defaults.slots;
  if (slots < variant->min_slots) return cudaErrorInvalidValue;
  const SkinnyWork work = {.x = static_cast<const __nv_bfloat16*>(args.x),
                           .ldx = args.ldx,
                           .m = static_cast<int>(args.m),
                           .n = static_cast<int>(weight.n),
                           .k = static_cast<int>(weight.k),
                           .leaf_shift = std::countr_zero(
                               static_cast<unsigned>(SkinnyLeaves(weight.k))),
                           .slots = slots,
                           .sink = sink};
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  const int rows = 16 * row_tiles;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>((weight.n + rows - 1) / rows));
  config.blockDim = dim3(kSkinnyThreads);
  config.dynamicSmemBytes = static_cast<size_t>(SkinnySharedBytes(slots));
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, variant->kernel, weight.map, work);
}

}  // namespace

cudaError_t MakeSkinnyWeight(const void* w, int64_t n, int64_t k, int64_t ldw,
                             SkinnyWeight* out) {
  if (n < 0 || k <= 0 || n > kMaxSize || k > kMaxSize || ldw < k ||
      (w == nullptr && n > 0)) {
    return cudaErrorInvalidValue;
  }
  *out = {};
  out->w = w;
  out->n = n;
  out->k = k;
  out->ldw = ldw;
  out->plain = true;
  if (n == 0 || k % 8 != 0 || ldw % 8 != 0 || !IsAligned(w, 16)) {
    return cudaSuccess;
  }
  int device = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess || major < 9) return error;
  error = PrepareVariants();
  if (error == cudaErrorNotSupported) return cudaSuccess;
  if (error != cudaSuccess) return error;
  error = EncodeMap(out);
  if (error != cudaSuccess) return error;
  out->plain = false;
  return cudaSuccess;
}

cudaError_t SkinnyMatmul(const SkinnyWeight& weight, const SkinnyArgs& args,
                         cudaStream_t stream) {
  if (!FitTogether(weight, args)) return cudaErrorInvalidValue;
  if (args.m == 0 || weight.n == 0) return cudaSuccess;
  const SkinnySink sink = {.out = args.out,
                           .ldo = args.ldo,
                           .out_type = args.out_type,
                           .activation = args.activation,
                           .xielu = args.xielu};
  return weight.plain ? LaunchPlain(weight, args, sink, stream)
                      : LaunchHopper(weight, args, sink, stream);
}

}  // namespace baton::cuda
