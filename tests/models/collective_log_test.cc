// SPDX-License-Identifier: Apache-2.0
// The log of collectives: a line for each that a rank enters, which can be
// compared across ranks.
#include <map>
#include <sstream>

#include "runtime/base/log.h"
#include "tests/models/ranks.h"

namespace baton::testing {
namespace {

// Of each rank what its lines say but for the rank.
using Lines = std::map<int, std::vector<std::string>>;

class CollectiveLogTest : public ::testing::Test {
 protected:
  ~CollectiveLogTest() override { SetLogLevel(LogLevel::kInfo); }

  // Two visits of a decoder's first `layers` layers on `ranks` ranks: step 7
  // has 3 rows, step 8 one.
  static Lines Run(const Shared& shared, int ranks, int layers) {
    Machine& machine = Machine::Get();
    const std::unique_ptr<StageSlice> slice =
        shared.decoder
            ->build(*shared.config, {.stage = "a",
                                     .ranges = {{0, layers}},
                                     .dtype = DType::kF32,
                                     .kv = {.pages = 1, .state_slots = 1},
                                     .kernels = &machine.kernels,
                                     .device = machine.device.get(),
                                     .stream = machine.stream.get(),
                                     .weights = shared.weights.get(),
                                     .ranks = ranks})
            .value();
    ::testing::internal::CaptureStderr();
    Visit(*slice, StepId(7), layers, {0, 1, 2});
    Visit(*slice, StepId(8), layers, {3});
    return Parse(::testing::internal::GetCapturedStderr());
  }

 private:
  static void Visit(StageSlice& slice, StepId step, int layers,
                    const std::vector<int32_t>& positions) {
    const std::vector<PageId> pages = {0};
    const std::vector<SequenceSpan> spans = {{.rows = std::ssize(positions),
                                              .first_position = positions[0],
                                              .pages = pages,
                                              .state_slot = 0}};
    const AttentionBatch batch{spans, positions};
    const VisitArgs args = {
        .step = step, .range = {0, layers}, .batch = &batch, .ids = positions};
    EXPECT_TRUE(slice.Run(args).ok());
  }

  static Lines Parse(const std::string& log) {
    const std::string event = " collective ";
    const std::string key = " rank=";
    Lines lines;
    std::istringstream all(log);
    for (std::string text; std::getline(all, text);) {
      size_t begin = text.find(event);
      if (begin == std::string::npos) continue;
      begin += event.size();
      const size_t rank = text.find(key, begin);
      const size_t rest = text.find(' ', rank + key.size());
      lines[std::stoi(text.substr(rank + key.size()))].push_back(
          text.substr(begin, rank - begin) + text.substr(rest));
    }
    return lines;
  }
};

TEST_F(CollectiveLogTest, SaysWhatARankEnters) {
  SetLogLevel(LogLevel::kTrace);
  const Lines lines = Run(Shared("arcee"), 2, 1);
  EXPECT_THAT(lines.at(1),
              ::testing::ElementsAre(
                  "step=7 stage=a kind=all_gather ranks=2 rows=3",
                  "step=7 stage=a kind=all_reduce_add_rms_norm ranks=2 rows=3",
                  "step=7 stage=a kind=all_reduce ranks=2 rows=3",
                  "step=8 stage=a kind=all_gather ranks=2 rows=1",
                  "step=8 stage=a kind=all_reduce_add_rms_norm ranks=2 rows=1",
                  "step=8 stage=a kind=all_reduce ranks=2 rows=1"));
}

// Kimi-Linear's third layer has experts, 3 a row, and shared ones beside them.
TEST_F(CollectiveLogTest, IsEqualAmongRanks) {
  SetLogLevel(LogLevel::kTrace);
  const Lines lines = Run(Shared("kimi-linear"), 4, 3);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines.at(0).size(), 2u * (1 + 2 + 2 + 3));
  EXPECT_THAT(
      lines.at(0),
      ::testing::Contains("step=7 stage=a kind=all_reduce ranks=4 rows=9"));
  for (const auto& [rank, own] : lines) {
    EXPECT_EQ(own, lines.at(0)) << "rank " << rank;
  }
}

TEST_F(CollectiveLogTest, IsEmptyUnlessAsked) {
  EXPECT_TRUE(Run(Shared("arcee"), 2, 1).empty());
  SetLogLevel(LogLevel::kTrace);
  EXPECT_TRUE(Run(Shared("arcee"), 1, 1).empty()) << "one rank has none";
}

}  // namespace
}  // namespace baton::testing
