// SPDX-License-Identifier: Apache-2.0
// The rows of each sequence and its slot, for kernels that go through them in
// order.
#pragma once

#include <cstdint>

namespace baton::cuda {

// Rows [first_row, first_row + rows) of the batch are one sequence's.
struct SequenceRows {
  int32_t first_row, rows, first_position;
  int32_t state_slot;  // -1: begins with zeros, and nothing is kept
};

struct Sequences {
  const SequenceRows* rows;  // [count], device, 16-byte aligned
  int64_t count;
};

// Slot s is at data + s * slot_bytes.
struct StateSlots {
  void* data;
  int64_t slot_bytes;
};

}  // namespace baton::cuda
