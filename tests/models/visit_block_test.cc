// SPDX-License-Identifier: Apache-2.0
#include "models/visit_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

namespace baton {
namespace {

// A visit of two sequences with a row each, in a block that has room for four.
TEST(VisitBlockTest, FillsWhatTheVisitDoesNotHave) {
  const std::vector<PageId> pages = {7, 8}, window = {3}, other = {5};
  const std::vector<SequenceSpan> sequences = {
      {.first_row = 0,
       .rows = 1,
       .first_position = 20,
       .pages = pages,
       .window_pages = window,
       .state_slot = 2},
      {.first_row = 1, .rows = 1, .first_position = 4, .pages = other}};
  const std::vector<int32_t> positions = {20, 4}, ids = {11, -1};
  std::vector<SamplingRow> sampling(2);
  sampling[1].temperature = 0.5f;
  sampling[1].slot = 9;
  const AttentionBatch batch{.sequences = sequences, .positions = positions};
  VisitArgs args;
  args.batch = &batch;
  args.ids = ids;
  args.sampling = sampling;

  const VisitBlock block({.rows = 4,
                          .sequences = 4,
                          .page_stride = 3,
                          .windows = true,
                          .logit_rows = 4});
  std::vector<std::byte> memory(static_cast<size_t>(block.bytes()),
                                std::byte{0xee});
  std::array<SampledRow, 2> results;
  block.Fill(args, {.page = 90, .window_page = 91},
             {.rows = results.data(), .count = 2}, memory.data());

  const DeviceBatch there = block.Batch(memory.data(), 32);
  const auto of = [](const int32_t* from, size_t count) {
    return std::vector<int32_t>(from, from + count);
  };
  using Words = std::vector<int32_t>;
  EXPECT_TRUE(
      std::ranges::equal(block.Ids(memory.data()), Words{11, -1, 0, 0}));
  EXPECT_EQ(of(there.positions, 4), (Words{20, 4, 0, 0}));
  EXPECT_EQ(of(there.row_sequence, 4), (Words{0, 1, 3, 3}));
  EXPECT_EQ(of(there.page_table, 12),
            (Words{7, 8, 90, 5, 90, 90, 90, 90, 90, 90, 90, 90}));
  EXPECT_EQ(of(there.window_table, 12),
            (Words{3, 91, 91, 91, 91, 91, 91, 91, 91, 91, 91, 91}));
  EXPECT_EQ(there.page_stride, 3);
  ASSERT_EQ(there.num_sequences, 4);
  for (int32_t s = 0; s < 4; ++s) {
    const SequenceRows& rows = there.sequences[s];
    EXPECT_EQ(rows.first_row, s);
    EXPECT_EQ(rows.rows, 1);
    EXPECT_EQ(rows.state_slot, s == 0 ? 2 : -1);
  }
  EXPECT_EQ(there.sequences[0].first_position, 20);
  const std::span<const SamplingRow> how = block.Sampling(memory.data());
  ASSERT_EQ(how.size(), 4);
  EXPECT_EQ(how[1].temperature, 0.5f);
  EXPECT_EQ(how[1].slot, 9);
  for (const size_t nobody : {2u, 3u}) {
    EXPECT_EQ(how[nobody].temperature, 0);
    EXPECT_EQ(how[nobody].slot, -1);
  }
  const SampledRows* to = block.Results(memory.data());
  EXPECT_EQ(to->rows, results.data());
  EXPECT_EQ(to->count, 2);
}

// What kernels load as whole vectors.
TEST(VisitBlockTest, AlignsItsArrays) {
  for (const int64_t rows : {1, 3, 64}) {
    const VisitBlock block({.rows = rows,
                            .sequences = rows,
                            .page_stride = 5,
                            .windows = rows == 3,
                            .logit_rows = rows});
    EXPECT_EQ(block.bytes() % 64, 0);
    alignas(64) static std::byte memory[1 << 16];
    ASSERT_LE(block.bytes(), std::ssize(memory));
    for (const void* at :
         {static_cast<const void*>(block.Sampling(memory).data()),
          static_cast<const void*>(block.Results(memory)),
          static_cast<const void*>(block.Batch(memory, 1).sequences)}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 64, 0);
    }
  }
}

}  // namespace
}  // namespace baton
