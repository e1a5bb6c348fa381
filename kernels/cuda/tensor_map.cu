// SPDX-License-Identifier: Apache-2.0
#include <cudaTypedefs.h>

#include "kernels/cuda/tensor_map.h"

namespace baton::cuda {
namespace {

using Encoder = PFN_cuTensorMapEncodeTiled_v12000;

// cuTensorMapEncodeTiled, without linking the driver; null where there is none.
Encoder FindEncoder() {
  static const Encoder encoder = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? reinterpret_cast<Encoder>(found)
               : nullptr;
  }();
  return encoder;
}

}  // namespace

cudaError_t EncodeMap(const void* matrix, int64_t rows, int64_t columns,
                      int64_t ld, int box_rows, int box_columns,
                      CUtensorMap* map) {
  const Encoder encode = FindEncoder();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns),
                              static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(2 * ld)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns),
                            static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result = encode(
      map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix),
      sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace baton::cuda
