// SPDX-License-Identifier: Apache-2.0
// How the copy engine finds boxes of a matrix.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace baton::cuda {

// The map of a bf16 matrix [rows, columns] in boxes of box_rows x box_columns,
// swizzled by 128 bytes; what is outside the matrix reads as zeros.
// NotSupported where the driver has no such maps.
[[nodiscard]] cudaError_t EncodeMap(const void* matrix, int64_t rows,
                                    int64_t columns, int64_t ld, int box_rows,
                                    int box_columns, CUtensorMap* map);

// A matrix [rows, 2 * columns] as two of `columns`, side by side: boxes are of
// one of them, and what is outside it reads as zeros. Columns are a multiple of
// 8.
[[nodiscard]] cudaError_t EncodeHalfMap(const void* matrix, int64_t rows,
                                        int64_t columns, int64_t ld,
                                        int box_rows, int box_columns,
                                        CUtensorMap* map);

// A matrix [2 * pairs, columns] as pairs of row p and row pairs + p: boxes have
// the first rows of box_pairs of them, then the second ones, as EncodeMap has
// rows.
[[nodiscard]] cudaError_t EncodePairMap(const void* matrix, int64_t pairs,
                                        int64_t columns, int64_t ld,
                                        int box_pairs, int box_columns,
                                        CUtensorMap* map);

}  // namespace baton::cuda
