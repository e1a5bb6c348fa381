// SPDX-License-Identifier: Apache-2.0
// A decoder whose sequences have slots, served by a controller and stages on
// manual executors.
#include <gtest/gtest.h>

#include "tests/testing/manual_pipeline.h"

namespace baton {
namespace {

using testing::ManualPipeline;
using testing::ManualPipelineOptions;
using testing::Outcome;
using testing::Submit;

constexpr int kRequests = 4;
constexpr int kSeeds = 8;

std::vector<int32_t> Prompt(int length, int first) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((first + 17 * i) % 250);
  return prompt;
}

ManualPipelineOptions Kimi(int seed) {
  ManualPipelineOptions options;
  options.checkpoint = "kimi-linear";
  options.stages = 1 + seed % 4;
  options.prefill_chunk = 1 + 3 * (seed % 3);
  options.seed = static_cast<uint64_t>(seed);
  return options;
}

// Each request alone, one after the other: in a slot that was used before.
std::vector<Outcome> OneByOne(const std::vector<int>& lengths) {
  ManualPipeline p(Kimi(0));
  p.Settle();
  std::vector<Outcome> out(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    p.controller().Tell(Submit(std::to_string(i), Prompt(lengths[i], 3),
                               6 + static_cast<int64_t>(i), &out[i]));
    p.Settle();
    EXPECT_EQ(p.Snapshot().state_slots_used, 0);
  }
  return out;
}

class StateSlotsTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, StateSlotsTest, ::testing::Range(0, kSeeds));

TEST_P(StateSlotsTest, KeepSequencesApartHoweverTheyAreServed) {
  const std::vector<int> lengths = {3, 8, 13, 18};
  const std::vector<Outcome> alone = OneByOne(lengths);
  ManualPipeline p(Kimi(GetParam()));
  p.Settle();
  std::vector<Outcome> out(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    p.controller().Tell(Submit(std::to_string(i), Prompt(lengths[i], 3),
                               6 + static_cast<int64_t>(i), &out[i]));
  }
  p.Settle();
  for (size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_TRUE(out[i].status.ok()) << out[i].status;
    EXPECT_EQ(out[i].tokens.size(), 6 + i);
    EXPECT_TRUE(out[i].tokens == alone[i].tokens) << "request " << i;
    EXPECT_TRUE(out[i].prompt == alone[i].prompt) << "request " << i;
  }
  EXPECT_EQ(p.Snapshot().state_slots_used, 0);
}

// A sequence that is preempted starts over from zeros, in any slot.
TEST_P(StateSlotsTest, ChangeNoTokenOfAPreemptedSequence) {
  const std::vector<int> lengths = {3, 8, 13, 18};
  const std::vector<Outcome> alone = OneByOne(lengths);
  ManualPipelineOptions few = Kimi(GetParam());
  few.kv_pages = 3;
  few.prefill_chunk = 4;
  ManualPipeline p(few);
  p.Settle();
  std::vector<Outcome> out(lengths.size());
  for (const size_t i : {2, 0, 1, 3}) {
    p.controller().Tell(Submit(std::to_string(i), Prompt(lengths[i], 3),
                               6 + static_cast<int64_t>(i), &out[i]));
  }
  p.Settle();
  EXPECT_GT(p.Snapshot().preemptions, 0);
  EXPECT_EQ(p.Snapshot().state_slots_used, 0);
  for (size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_TRUE(out[i].tokens == alone[i].tokens) << "request " << i;
    EXPECT_TRUE(out[i].prompt == alone[i].prompt) << "request " << i;
  }
}

// At whatever point of its life a request is aborted.
TEST_P(StateSlotsTest, ComeBackWhenRequestsAreAborted) {
  ManualPipeline p(Kimi(GetParam()));
  p.Settle();
  EXPECT_EQ(p.Snapshot().state_slots_total, SchedulerOptions().max_sequences);
  std::vector<Outcome> out(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    p.controller().Tell(Submit(std::to_string(i), Prompt(11, i), 9,
                               &out[static_cast<size_t>(i)]));
  }
  p.RunSome(40 * GetParam());
  for (const char* id : {"0", "2"}) p.controller().Tell(AbortRequest{id});
  p.Settle();
  EXPECT_EQ(out[1].tokens.size(), 9u);
  EXPECT_EQ(out[3].tokens.size(), 9u);
  EXPECT_EQ(p.Snapshot().state_slots_used, 0);
  for (int s = 0; s < 1 + GetParam() % 4; ++s) {
    EXPECT_EQ(p.stage(s).sequences(), 0);
  }
}

TEST(StateSlotsTest, AreNotHandedOutWhereNoLayerNeedsOne) {
  ManualPipeline p(ManualPipelineOptions{});
  p.Settle();
  EXPECT_EQ(p.Snapshot().state_slots_total, 0);
}

}  // namespace
}  // namespace baton
