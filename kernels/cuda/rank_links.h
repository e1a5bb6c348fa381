// SPDX-License-Identifier: Apache-2.0
// What a kernel needs to meet the same kernel of the other rank, on the same
// GPU or on one that reaches its memory.
//
// A call has one meeting: every block puts what the other rank's block of the
// same number needs into that one's slot, raises its flag, and waits for its
// own. Blocks of one rank never wait for each other. Slots alternate between
// two, so there is no second meeting: a block that writes a slot again has
// since met a block that had read it. Quick calls, of a row a block, raise a
// flag with every 4 bytes instead, in slots of their own: twice the bytes, and
// nobody waits until the far memory has taken them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::cuda {

inline constexpr int kRankBlocks = 64;  // of a call, at most
inline constexpr int64_t kRankSlotBytes = int64_t{256} << 10;
inline constexpr int64_t kQuickElements = 8192;  // f32 of a block, at most
inline constexpr int64_t kQuickSlotBytes = 8 * kQuickElements;

// Host memory that GPUs read while they wait.
struct RankWords {
  uint32_t abort = 0;  // not 0: nobody waits any more, results mean nothing
};

struct RankLinks {
  std::byte* mine = nullptr;      // slots [kRankBlocks][2] for this rank
  std::byte* other = nullptr;     // and for the other one
  std::byte* my_quick = nullptr;  // quick slots, as the others
  std::byte* other_quick = nullptr;
  uint32_t* my_flags = nullptr;     // [kRankBlocks]: calls of the other rank
  uint32_t* other_flags = nullptr;  // and the other one's
  uint32_t* calls = nullptr;        // [kRankBlocks]: calls of this rank
  const RankWords* words = nullptr;
  uint64_t patience_ns = 0;  // then the GPU's context breaks
};

}  // namespace baton::cuda
