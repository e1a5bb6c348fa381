// SPDX-License-Identifier: Apache-2.0
// Slots sorted by expert, on the device: which kernels of grouped_matmul.h may
// multiply together.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/grouped_matmul.h"

namespace baton::cuda {

// Sorted slots [first, first + count), all of one expert. The parts of an
// expert are cut into bands of up to kBandParts, of about one size: this one is
// in parts [band_first, band_first + band_parts).
struct GroupedPart {
  int32_t expert, first, count;
  int32_t band_first, band_parts;
};
inline constexpr int kBandParts = 16;

// What the sort gives, in device memory.
struct GroupedPlan {
  int32_t* part_count;
  GroupedPart* parts;  // [MaxParts()]
  int32_t* slots;      // [slots]: sorted; behind those of experts, zeros
};

[[nodiscard]] inline int64_t MaxParts(int64_t slots, int64_t experts,
                                      int64_t part_rows) {
  return std::min(slots, experts + slots / part_rows);
}

// Pieces of a scratch, each 128-byte aligned as its beginning is.
class GroupedScratch {
 public:
  explicit GroupedScratch(void* memory) : next_(static_cast<char*>(memory)) {}

  template <typename T>
  T* Take(int64_t count) {
    auto* piece = reinterpret_cast<T*>(next_);
    next_ += Bytes<T>(count);
    return piece;
  }
  GroupedPlan TakePlan(int64_t slots) {
    return {.part_count = Take<int32_t>(1),
            .parts = Take<GroupedPart>(slots),
            .slots = Take<int32_t>(slots)};
  }

  template <typename T>
  static int64_t Bytes(int64_t count) {
    constexpr int64_t kAlign = 128;
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    return (bytes + kAlign - 1) / kAlign * kAlign;
  }
  static int64_t PlanBytes(int64_t slots) {
    return Bytes<int32_t>(1) + Bytes<GroupedPart>(slots) +
           Bytes<int32_t>(slots);
  }

 private:
  char* next_;
};

// Fills the plan, unless args say that it is: parts have up to part_rows slots.
// The slots of an expert come in an order that is not the same from run to run.
// One block.
[[nodiscard]] cudaError_t SortSlots(const GroupedArgs& args, int64_t experts,
                                    int part_rows, const GroupedPlan& plan,
                                    cudaStream_t stream);

}  // namespace baton::cuda
