// SPDX-License-Identifier: Apache-2.0
// Layers with a sliding window, behind a controller: their pages come back
// while sequences run, and no bit depends on whose they become.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/manual_pipeline.h"

namespace baton {
namespace {

using testing::ManualPipeline;
using testing::ManualPipelineOptions;
using testing::Outcome;
using testing::Submit;

constexpr int kSeeds = 6;
constexpr int kRequests = 3;
// Of a window of 11 or 13 behind two chunks of 4.
constexpr int64_t kPagesEach = 3;

// The second has a stream of another type than its weights.
ManualPipelineOptions Hybrid(int seed) {
  ManualPipelineOptions options;
  options.checkpoint = seed % 2 == 0 ? "exaone4-hybrid" : "spark2_5";
  return options;
}

SubmitRequest RequestOf(int i, Outcome* outcome) {
  std::vector<int32_t> prompt;
  for (int t = 0; t < 20 + 9 * i; ++t) prompt.push_back((3 + i + 17 * t) % 250);
  return Submit(std::to_string(i), prompt, 150 + 10 * i, outcome);
}

Outcome RunAlone(int seed, int i) {
  ManualPipelineOptions options = Hybrid(seed);
  options.stages = 1;
  options.prefill_chunk = 0;
  ManualPipeline p(options);
  p.Settle();
  Outcome outcome;
  p.controller().Tell(RequestOf(i, &outcome));
  p.Settle();
  return outcome;
}

class WindowTest : public ::testing::TestWithParam<int> {};

TEST_P(WindowTest, PagesOfAFewPositionsServeLongGenerations) {
  ManualPipelineOptions options = Hybrid(GetParam());
  options.stages = 2 + GetParam() % 3;
  options.seed = static_cast<uint64_t>(GetParam());
  ManualPipeline p(options);
  p.Settle();
  std::vector<Outcome> together(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    p.controller().Tell(RequestOf(i, &together[static_cast<size_t>(i)]));
  }
  int64_t most = 0;
  const auto look = [&most](StatusOr<ControllerStatus> status) {
    if (status.ok()) most = std::max(most, status->window_pages_used);
  };
  while (!std::all_of(together.begin(), together.end(),
                      [](const Outcome& o) { return o.ended; })) {
    p.RunSome(100);
    p.controller().Tell(GetStatus{Reply<ControllerStatus>(look)});
  }
  p.Settle();
  EXPECT_GT(most, kRequests);
  EXPECT_LE(most, kRequests * kPagesEach);
  for (int i = 0; i < kRequests; ++i) {
    const Outcome alone = RunAlone(GetParam(), i);
    const Outcome& beside = together[static_cast<size_t>(i)];
    EXPECT_TRUE(beside.status.ok()) << beside.status;
    EXPECT_EQ(beside.tokens.size(), 150u + 10 * i);
    EXPECT_TRUE(beside.tokens == alone.tokens) << "request " << i;
    EXPECT_TRUE(beside.prompt == alone.prompt) << "request " << i;
  }
  EXPECT_EQ(p.Snapshot().pages_used, 0);
  EXPECT_EQ(p.Snapshot().window_pages_used, 0);
}

TEST_P(WindowTest, AnAbortedRequestLeavesNoPages) {
  ManualPipelineOptions options = Hybrid(GetParam());
  options.seed = static_cast<uint64_t>(GetParam());
  ManualPipeline p(options);
  p.Settle();
  Outcome aborted, other;
  p.controller().Tell(RequestOf(0, &aborted));
  p.controller().Tell(RequestOf(1, &other));
  p.RunSome(300 * GetParam());
  p.controller().Tell(AbortRequest{"0"});
  p.Settle();
  EXPECT_TRUE(aborted.ended);
  EXPECT_TRUE(other.tokens == RunAlone(GetParam(), 1).tokens);
  EXPECT_EQ(p.Snapshot().pages_used, 0);
  EXPECT_EQ(p.Snapshot().window_pages_used, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, WindowTest, ::testing::Range(0, kSeeds));

}  // namespace
}  // namespace baton
