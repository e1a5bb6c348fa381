// SPDX-License-Identifier: Apache-2.0
// y = x W^T with packed weights, and the packing.
//
// Numerics contract: every output element is computed by one recipe of its
// row's kind, whatever the number of rows. On a CPU both kinds have one: K is
// cut into MatmulLeaves(k) equal leaves; inside a leaf products accumulate in
// fp32 in one fixed order; leaves are combined by a balanced binary tree
// ((0+1)+(2+3))+((4+5)+(6+7)). A rank that owns an aligned run of leaves owns a
// subtree: its PackedMatrix says how many leaves that is, its sums stay in f32,
// and the ranks' collective goes on with the tree (transport/collective.h).
// CUDA: kernels/README.md.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/ops/batch.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// Outputs are packed in blocks of this many, K in pairs:
//   bf16 [n/64][k/2][64][2]   f32 [n/64][k][64]
// n is padded with zeros to a multiple of 64, each leaf of k to one of 32.
inline constexpr int64_t kPackRows = 64;
inline constexpr int64_t kPackDepth = 32;

[[nodiscard]] constexpr int64_t PadTo(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
// Leaves of a K of this size: the largest of 8, 4, 2, 1 that cuts it into
// multiples of kLeafDepth.
inline constexpr int64_t kLeafDepth = 8;
[[nodiscard]] constexpr int MatmulLeaves(int64_t k) {
  for (int leaves = 8; leaves > 1; leaves /= 2) {
    if (k % (leaves * kLeafDepth) == 0) return leaves;
  }
  return 1;
}
// Of the `held` columns of a matrix of k that a rank has.
[[nodiscard]] constexpr int LeavesHeld(int64_t k, int64_t held) {
  return MatmulLeaves(k) / static_cast<int>(k / held);
}
// Runs of k that lie apart in a packed row, since each is padded: the leaves,
// or all of k where those need no padding.
struct PackedRuns {
  int64_t count, size, depth;  // of a run as it is, and packed
};
[[nodiscard]] constexpr PackedRuns PackedRunsOf(int64_t k, int leaves) {
  const bool apart = leaves > 1 && k % (leaves * kPackDepth) != 0;
  const int64_t size = apart ? k / leaves : k;
  return {apart ? leaves : 1, size, PadTo(size, kPackDepth)};
}
// k of a packed row.
[[nodiscard]] constexpr int64_t PackedDepth(int64_t k, int leaves) {
  const PackedRuns runs = PackedRunsOf(k, leaves);
  return runs.count * runs.depth;
}
// On CUDA two ranks may share a K of this size: rows of a half, too, are whole
// pieces of 16 bytes.
inline constexpr int64_t kCudaHalfDepth = 8;
[[nodiscard]] constexpr bool HasCudaHalves(int64_t k) {
  return k % (2 * kCudaHalfDepth) == 0;
}
[[nodiscard]] constexpr int64_t PackedBytes(int64_t n, int64_t k, int leaves,
                                            DType dtype) {
  return PadTo(n, kPackRows) * PackedDepth(k, leaves) * SizeOf(dtype);
}

// On CUDA rows stay as they are, [n, PadTo(k, 8)], zeros after k: tensor cores
// take their pieces out of rows by themselves, and cuBLASLt wants rows.
inline constexpr int64_t kCudaRowPad = 8;
[[nodiscard]] constexpr int64_t PackedBytesOn(DeviceKind device, int64_t n,
                                              int64_t k, int leaves,
                                              DType dtype) {
  if (device == DeviceKind::kCpu) return PackedBytes(n, k, leaves, dtype);
  return n * PadTo(k, kCudaRowPad) * SizeOf(dtype);
}

// A packed weight matrix [n, k] as kernels see it.
struct PackedMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t n = 0;  // outputs, without padding
  int64_t k = 0;  // inputs, without padding
  // That k is cut into: MatmulLeaves(k), or of a rank's columns its share of
  // the leaves of all columns. CPUs only.
  int leaves = 1;
  // Of a matrix whose columns two ranks may share: how many halves of all
  // columns these are, 2 or 1; 0: ranks never share them. CUDA only.
  int halves = 0;
};

// Packs rows [first_row, first_row + rows) of a weight. The caller zeroes
// `packed` once before the first call. bf16 rows may be packed as f32
// (exactly); the registry's dtype is that of `packed`.
struct PackMatrix {
  static constexpr std::string_view kName = "pack_matrix";
  struct Args {
    ConstView rows;     // [rows, k] f32 or bf16, host
    int64_t first_row;  // place of rows in the packed matrix
    std::byte* packed;  // PackedBytesOn(device, n, k, leaves, dtype)
    DType dtype;        // of packed
    int64_t n, k;
    int leaves = 1;  // of PackedMatrix
  };
};

// What happens to y once it is rounded to its dtype, as the op of the name
// would do it (ops/activation.h): a kernel saves a pass over y. The weight of a
// gated one has the rows of all gates, then as many others.
struct MatmulActivation {
  enum class Kind : uint8_t { kNone, kRelu2, kXielu, kSiluMul, kGeluMul };
  Kind kind = Kind::kNone;
  float alpha_p = 0, alpha_n = 0, beta = 0, eps = 0;  // of xIELU, as stored

  [[nodiscard]] bool IsGated() const {
    return kind == Kind::kSiluMul || kind == Kind::kGeluMul;
  }
};

struct Matmul {
  static constexpr std::string_view kName = "matmul";
  struct Args {
    ConstView x;          // [tokens, k], dtype of the weight; tokens may be 0
    PackedMatrix weight;  // [n, k]
    // [tokens, n], dtype of x or f32; must not alias x. Of a gated activation
    // [tokens, n / 2].
    View out;
    // Kinds of the rows, covering all in order; none: all are generated.
    std::span<const RowRun> runs = {};
    MatmulActivation activation = {};  // none where out is f32 and x is not
    // [tokens, n] as out: room for y of a gated activation, where a kernel has
    // none of its own.
    View product = {};
  };
};

}  // namespace baton
