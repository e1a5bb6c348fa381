// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numbers>

#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/decode_few.cuh"
#include "kernels/cuda/decode_kernel.cuh"
#include "kernels/cuda/plain_attention.cuh"

namespace baton::cuda {
namespace {

int64_t Tiles(int64_t q_heads, int64_t kv_heads) {
  return CeilDiv(q_heads / kv_heads, kUnitHeads);
}
int64_t StoredHeads(int64_t q_heads, int64_t kv_heads) {
  return std::min<int64_t>(q_heads / kv_heads, kUnitHeads);
}
int64_t RowScratchFloats(int64_t q_heads, int64_t kv_heads, int64_t head_dim,
                         int64_t max_spans) {
  return kv_heads * Tiles(q_heads, kv_heads) * max_spans *
         ResultFloats(StoredHeads(q_heads, kv_heads), head_dim);
}

float ScaleLog2(float scale) {
  return static_cast<float>(static_cast<double>(scale) *
                            std::numbers::log2e_v<double>);
}

int SharedBytesOfBlock() {
  static const int bytes =
      DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return bytes;
}

// Rows [first, first + rows) of a launch.
DecodeWork WorkOf(const DecodeAttentionArgs& args, int64_t first,
                  int64_t rows) {
  const int64_t kv_heads = args.pages.kv_heads;
  const int64_t tiles = Tiles(args.q_heads, kv_heads);
  const int64_t row_floats = RowScratchFloats(
      args.q_heads, kv_heads, args.pages.head_dim, args.max_spans);
  return {
      .q = static_cast<const uint16_t*>(args.q) + first * args.q_stride,
      .q_stride = args.q_stride,
      .out = static_cast<uint16_t*>(args.out) + first * args.out_stride,
      .out_stride = args.out_stride,
      .positions = args.positions + first,
      .row_sequence = args.row_sequence + first,
      .sequences = args.sequences,
      .pages = args.pages,
      .scale_log2 = ScaleLog2(args.scale),
      .rows = static_cast<int>(rows),
      .group = static_cast<int>(args.q_heads / kv_heads),
      .unit_tiles = static_cast<int>(tiles),
      .units = static_cast<int>(kv_heads * tiles),
      .stored_heads = static_cast<int>(StoredHeads(args.q_heads, kv_heads)),
      .max_spans = args.max_spans,
      .scratch = static_cast<float*>(args.scratch) + first * row_floats,
      .counters = args.counters + first * kv_heads * tiles,
  };
}

template <int kHeadDim>
FewPlaces<kHeadDim> PlacesOf(const DecodeWork& work, int shift) {
  return {work.max_spans, work.stored_heads,
          FewLayoutOf<kHeadDim>(work.max_spans, shift)};
}

// The log2 of the most blocks that may share each unit of a row, all being on
// the device at once; 0: units are too many for that, or their spans.
template <int kHeadDim>
int FewShift(const DecodeWork& work) {
  constexpr int kMaxShift = 3;  // of a cluster
  if (!HasDependentLaunch() || work.max_spans > kMaxFewSpans) return 0;
  int shift = kMaxShift;
  while (shift > 0 && (work.rows * work.units) << shift > Multiprocessors()) {
    --shift;
  }
  return PlacesOf<kHeadDim>(work, shift).bytes <= SharedBytesOfBlock() ? shift
                                                                       : 0;
}

// `args`: of what this launch enters, else of nothing.
template <int kHeadDim, FewKeys kKeys>
cudaError_t LaunchFew(const DecodeWork& work, int shift,
                      const RotateAndStoreArgs& args, cudaStream_t stream) {
  const FewLayout layout = FewLayoutOf<kHeadDim>(work.max_spans, shift);
  const int64_t blocks = int64_t{work.rows * work.units} << shift;
  return LaunchClusters(
      &DecodeFewKernel<kHeadDim, kKeys>, dim3(Blocks(blocks)), 1 << shift,
      kFewThreads, static_cast<size_t>(PlacesOf<kHeadDim>(work, shift).bytes),
      stream, work, layout, args,
      kKeys == FewKeys::kEnters ? ShapeOf(args) : HeadShape());
}

template <int kHeadDim>
cudaError_t LaunchDecode(const DecodeWork& work, cudaStream_t stream) {
  const int shift = FewShift<kHeadDim>(work);
  if (shift > 0) {
    return LaunchFew<kHeadDim, FewKeys::kStored>(work, shift, {}, stream);
  }
  const int64_t items = work.rows * work.max_spans * work.units;
  const int64_t blocks = std::min<int64_t>(items, Multiprocessors());
  return Launch(&DecodeKernel<kHeadDim>, dim3(Blocks(blocks)),
                2 * DecodeShape<kHeadDim>::kThreads,
                sizeof(DecodeShared<kHeadDim>), stream, work);
}

template <int kHeadDim>
cudaError_t LaunchEnter(const DecodeWork& work, const RotateAndStoreArgs& args,
                        cudaStream_t stream) {
  const int shift = FewShift<kHeadDim>(work);
  return shift > 0
             ? LaunchFew<kHeadDim, FewKeys::kEnters>(work, shift, args, stream)
             : cudaErrorNotSupported;
}

cudaError_t LaunchTensor(const DecodeWork& work, cudaStream_t stream) {
  switch (work.pages.head_dim) {
    case 64:
      return LaunchDecode<64>(work, stream);
    case 128:
      return LaunchDecode<128>(work, stream);
    default:
      return LaunchDecode<256>(work, stream);
  }
}

cudaError_t LaunchPlain(const DecodeWork& work, int64_t q_heads,
                        cudaStream_t stream) {
  const PlainAttentionWork plain = {
      .q = work.q,
      .q_stride = work.q_stride,
      .out = work.out,
      .out_stride = work.out_stride,
      .group = work.group,
      .positions = work.positions,
      .row_sequence = work.row_sequence,
      .tiles = nullptr,
      .pages = work.pages,
      .scale_log2 = work.scale_log2,
  };
  return Launch(&PlainAttentionKernel, dim3(Blocks(work.rows), Blocks(q_heads)),
                kPlainThreads, 0, stream, plain);
}

size_t TensorSharedBytes(int64_t head_dim) {
  switch (head_dim) {
    case 64:
      return sizeof(DecodeShared<64>);
    case 128:
      return sizeof(DecodeShared<128>);
    default:
      return sizeof(DecodeShared<256>);
  }
}

bool SuitsTensorCores(const DecodeAttentionArgs& args) {
  const int64_t head_dim = args.pages.head_dim;
  return (head_dim == 64 || head_dim == 128 || head_dim == 256) &&
         TensorSharedBytes(head_dim) <=
             static_cast<size_t>(SharedBytesOfBlock()) &&
         IsAligned(args.q, 16) && args.q_stride % 8 == 0 &&
         IsAligned(args.out, 4) && args.out_stride % 2 == 0 &&
         IsAligned(args.pages.pool, 16) && args.pages.page_bytes % 16 == 0;
}

}  // namespace

int64_t DecodeSpans(int64_t longest, int32_t window) {
  // A window of a row begins anywhere in its first page.
  const int64_t in_window = int64_t{window} + kPageTokens - 1;
  const int64_t tokens = window > 0 ? std::min(longest, in_window) : longest;
  return FullSpans(static_cast<int>(tokens)) + 1;
}

int64_t DecodeScratchBytes(int64_t rows, int64_t q_heads, int64_t kv_heads,
                           int64_t head_dim, int64_t max_spans) {
  return rows * RowScratchFloats(q_heads, kv_heads, head_dim, max_spans) *
         static_cast<int64_t>(sizeof(float));
}

int64_t DecodeCounters(int64_t rows, int64_t q_heads, int64_t kv_heads) {
  return rows * kv_heads * Tiles(q_heads, kv_heads);
}

cudaError_t DecodeAttention(const DecodeAttentionArgs& args,
                            cudaStream_t stream) {
  const int64_t head_dim = args.pages.head_dim;
  if (head_dim <= 0 || head_dim % 2 != 0 || head_dim > kPlainMaxHeadDim ||
      args.pages.kv_heads <= 0 || args.q_heads % args.pages.kv_heads != 0 ||
      args.max_spans <= 0) {
    return cudaErrorInvalidValue;
  }
  const bool tensor = SuitsTensorCores(args);
  for (int64_t first = 0; first < args.rows; first += kMaxDecodeRows) {
    const int64_t rows =
        std::min<int64_t>(args.rows - first, int64_t{kMaxDecodeRows});
    const DecodeWork work = WorkOf(args, first, rows);
    const cudaError_t error = tensor ? LaunchTensor(work, stream)
                                     : LaunchPlain(work, args.q_heads, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t RotateAndAttend(const RotateAndStoreArgs& entry,
                            const DecodeAttentionArgs& args,
                            cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (!SuitsTensorCores(args) || !SuitsVectors(entry) ||
      ShapeOf(entry).used > kWarp || args.rows > kMaxDecodeRows) {
    return cudaErrorNotSupported;
  }
  const DecodeWork work = WorkOf(args, 0, args.rows);
  switch (work.pages.head_dim) {
    case 64:
      return LaunchEnter<64>(work, entry, stream);
    case 128:
      return LaunchEnter<128>(work, entry, stream);
    default:
      return LaunchEnter<256>(work, entry, stream);
  }
}

}  // namespace baton::cuda
