// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/sequence_rows.h"

namespace baton::cuda {

__device__ __forceinline__ SequenceRows LoadSequence(const SequenceRows* from) {
  const uint4 words = Load16(from);
  return {static_cast<int>(words.x), static_cast<int>(words.y),
          static_cast<int>(words.z), static_cast<int>(words.w)};
}

// The slot of a sequence; null: it has none.
template <typename T>
__device__ __forceinline__ T* SlotOf(const StateSlots& slots,
                                     const SequenceRows& sequence) {
  if (sequence.state_slot < 0) return nullptr;
  return reinterpret_cast<T*>(static_cast<char*>(slots.data) +
                              sequence.state_slot * slots.slot_bytes);
}

// Rows of a sequence from its row `first` on.
struct SequencePart {
  SequenceRows sequence;
  int first;
};

// Parts of a batch's sequences, each of up to part_rows rows of one of them.
[[nodiscard]] constexpr int64_t MostParts(int64_t rows, int64_t sequences,
                                          int64_t part_rows) {
  return sequences + rows / part_rows;
}

// A warp, every lane of it: part `number` of all, in order. Behind the last
// one: no rows.
__device__ __forceinline__ SequencePart FindPart(const Sequences& sequences,
                                                 int number, int part_rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t first = 0; first < sequences.count; first += kWarp) {
    SequenceRows mine = {0, 0, 0, -1};
    if (first + lane < sequences.count) {
      mine = LoadSequence(sequences.rows + first + lane);
    }
    const int parts = (mine.rows + part_rows - 1) / part_rows;
    int up_to = parts;
#pragma unroll
    for (int width = 1; width < kWarp; width *= 2) {
      const int other = __shfl_up_sync(kAllLanes, up_to, width);
      if (lane >= width) up_to += other;
    }
    const unsigned found = __ballot_sync(kAllLanes, number < up_to);
    if (found != 0) {
      const int from = __ffs(static_cast<int>(found)) - 1;
      const int before = __shfl_sync(kAllLanes, up_to - parts, from);
      return {{__shfl_sync(kAllLanes, mine.first_row, from),
               __shfl_sync(kAllLanes, mine.rows, from),
               __shfl_sync(kAllLanes, mine.first_position, from),
               __shfl_sync(kAllLanes, mine.state_slot, from)},
              (number - before) * part_rows};
    }
    number -= __shfl_sync(kAllLanes, up_to, kWarp - 1);
  }
  return {{0, 0, 0, -1}, 0};
}

}  // namespace baton::cuda
