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

// Of bf16; sizes and box inner dimension first, strides in elements.
template <int kRank>
cudaError_t Encode(const void* tensor, const cuuint64_t (&sizes)[kRank],
                   const int64_t (&strides)[kRank - 1],
                   const cuuint32_t (&box)[kRank], CUtensorMap* map) {
  const Encoder encode = FindEncoder();
  if (encode == nullptr) return cudaErrorNotSupported;
  cuuint64_t stride_bytes[kRank - 1];
  cuuint32_t steps[kRank];
  for (int i = 0; i < kRank - 1; ++i) {
    stride_bytes[i] = static_cast<cuuint64_t>(2 * strides[i]);
  }
  for (cuuint32_t& step : steps) step = 1;
  const CUresult result = encode(
      map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<void*>(tensor),
      sizes, stride_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t EncodeMap(const void* matrix, int64_t rows, int64_t columns,
                      int64_t ld, int box_rows, int box_columns,
                      CUtensorMap* map) {
  return Encode<2>(
      matrix, {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
      {ld},
      {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows)},
      map);
}

cudaError_t EncodeHalfMap(const void* matrix, int64_t rows, int64_t columns,
                          int64_t ld, int box_rows, int box_columns,
                          CUtensorMap* map) {
  return Encode<3>(
      matrix,
      {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows), 2},
      {ld, columns},
      {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows),
       1},
      map);
}

cudaError_t EncodePairMap(const void* matrix, int64_t pairs, int64_t columns,
                          int64_t ld, int box_pairs, int box_columns,
                          CUtensorMap* map) {
  return Encode<3>(
      matrix,
      {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(pairs), 2},
      {ld, pairs * ld},
      {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_pairs),
       2},
      map);
}

}  // namespace baton::cuda
