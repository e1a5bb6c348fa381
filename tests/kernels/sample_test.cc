// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/sample.h"

#include <algorithm>
#include <limits>
#include <set>

#include "kernels/cpu/philox.h"
#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

// The generator's published test vectors (Random123, kat_vectors).
TEST(PhiloxTest, GivesThePublishedWords) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(cpu::Philox({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(cpu::Philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

SampledRows PlaceOf(std::vector<SampledRow>& results) {
  return {results.data(), static_cast<int64_t>(results.size())};
}

class SampleTest : public IsaTest {
 protected:
  std::vector<SampleResult> Draw(Machine& machine, const Tensor& logits,
                                 const std::vector<SamplingRow>& rows) {
    std::vector<SampledRow> results(rows.size());
    const SampledRows to = PlaceOf(results);
    EXPECT_TRUE(
        machine.Run<Sample>(DType::kF32, {logits.view(), rows, &to}).ok());
    std::vector<SampleResult> wanted;
    for (const SampledRow& row : results) wanted.push_back(row.Result());
    return wanted;
  }
  SampleResult One(const std::vector<float>& logits, const SamplingRow& row) {
    const auto vocab = static_cast<int64_t>(logits.size());
    return Draw(machine(), Filled(DType::kF32, {1, vocab}, logits), {row})[0];
  }
  // All tokens that 400 positions give.
  std::set<int32_t> Support(const std::vector<float>& logits, SamplingRow row) {
    std::set<int32_t> seen;
    for (row.position = 0; row.position < 400; ++row.position) {
      seen.insert(One(logits, row).token);
    }
    return seen;
  }
};
BATON_FOR_EACH_ISA(SampleTest);

const std::vector<float> kLogits = {0, 3, 2.9f, -1, 2.5f, 3};
using Tokens = std::set<int32_t>;

TEST_P(SampleTest, TakesTheFirstOfTheBestWhenGreedy) {
  EXPECT_EQ(One(kLogits, {}).token, 1);
  const float low = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(One({low, low, -7, low}, {}).token, 2);
}

// Its inverse is not finite.
TEST_P(SampleTest, IsGreedyAtTheLeastTemperature) {
  const float least = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(Support(kLogits, {.temperature = least, .top_k = 4}), (Tokens{1}));
  EXPECT_EQ(Support(kLogits, {.temperature = least, .top_p = 0.9f}),
            (Tokens{1}));
  EXPECT_EQ(Support(kLogits, {.temperature = least}), (Tokens{1}));
}

TEST_P(SampleTest, KeepsTheTopK) {
  EXPECT_EQ(Support(kLogits, {.temperature = 5, .top_k = 3}),
            (Tokens{1, 2, 5}));
  // A tie at the border goes to the lower id.
  EXPECT_EQ(Support(kLogits, {.temperature = 5, .top_k = 1}), (Tokens{1}));
}

TEST_P(SampleTest, KeepsTheFewestThatReachTopP) {
  // Weights 1, 1, 0.905, 0.607, 0.050, 0.018 of 3.58: the first two are 0.559.
  EXPECT_EQ(Support(kLogits, {.temperature = 1, .top_p = 0.55f}),
            (Tokens{1, 5}));
  EXPECT_EQ(Support(kLogits, {.temperature = 1, .top_p = 0.57f}),
            (Tokens{1, 2, 5}));
  EXPECT_EQ(Support(kLogits, {.temperature = 1, .top_p = 1e-6f}), (Tokens{1}));
}

TEST_P(SampleTest, AppliesTopPToWhatTopKLeft) {
  // Of the top three, 2.905, the first two are 0.69.
  EXPECT_EQ(Support(kLogits, {.temperature = 1, .top_k = 3, .top_p = 0.68f}),
            (Tokens{1, 5}));
}

TEST_P(SampleTest, DropsWhatIsBelowMinP) {
  EXPECT_EQ(Support(kLogits, {.temperature = 1, .min_p = 0.7f}),
            (Tokens{1, 2, 5}));
  EXPECT_EQ(Support(kLogits, {.temperature = 1, .min_p = 1}), (Tokens{1, 5}));
}

TEST_P(SampleTest, FollowsTheDistribution) {
  // Probabilities 0.1, 0.2, 0.3, 0.4.
  std::vector<float> logits;
  for (const float p : {0.1f, 0.2f, 0.3f, 0.4f}) logits.push_back(std::log(p));
  int count[4] = {};
  SamplingRow row = {.temperature = 1, .seed = 42};
  for (row.position = 0; row.position < 4000; ++row.position) {
    ++count[One(logits, row).token];
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(count[i], 400 * (i + 1), 100) << i;
  }
}

TEST_P(SampleTest, DependsOnItsRequestAlone) {
  const Tensor logits = Random(DType::kF32, {12, 5000}, 1, 2);
  std::vector<SamplingRow> rows;
  for (int i = 0; i < 12; ++i) {
    rows.push_back({.temperature = 0.8f,
                    .top_k = i % 3 * 20,
                    .top_p = i % 2 == 0 ? 1.0f : 0.9f,
                    .min_p = i % 4 == 0 ? 0.02f : 0.0f,
                    .seed = static_cast<uint64_t>(i),
                    .position = i,
                    .top_logprobs = 3,
                    .digest = true});
  }
  Machine several(GetParam(), 3);
  const std::vector<SampleResult> all = Draw(several, logits, rows);
  for (size_t i = 0; i < 12; ++i) {
    const auto row = static_cast<int64_t>(i);
    std::vector<SampledRow> one(1);
    const SampledRows to = PlaceOf(one);
    ASSERT_TRUE(
        machine()
            .Run<Sample>(DType::kF32,
                         {logits.view().Rows(row, row + 1), {&rows[i], 1}, &to})
            .ok());
    EXPECT_EQ(one[0].Result(), all[i]);
  }
}

TEST_P(SampleTest, FindsAWideNucleusInALargeVocabulary) {
  // Nearly flat: top-p must look far beyond the first few hundred.
  const Tensor logits = Random(DType::kF32, {1, 20000}, 1, 0.01f);
  SamplingRow row = {.temperature = 1, .top_p = 0.5f};
  std::vector<int32_t> order(20000);
  for (int32_t i = 0; i < 20000; ++i) order[static_cast<size_t>(i)] = i;
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return At(logits.view(), 0, a) > At(logits.view(), 0, b);
  });
  const Tokens best(order.begin(), order.begin() + 10000);
  for (row.position = 0; row.position < 50; ++row.position) {
    EXPECT_TRUE(best.contains(Draw(machine(), logits, {row})[0].token));
  }
}

TEST_P(SampleTest, ReportsLogprobsBeforeTemperatureAndFilters) {
  const SampleResult result =
      One(kLogits, {.temperature = 9, .top_k = 1, .top_logprobs = 3});
  double sum = 0;
  for (const float logit : kLogits) sum += std::exp(logit);
  EXPECT_NEAR(result.logprob, 3 - std::log(sum), 1e-6);
  ASSERT_EQ(result.top.size(), 3u);
  EXPECT_EQ(result.top[0].token, 1);
  EXPECT_EQ(result.top[1].token, 5);
  EXPECT_EQ(result.top[2].token, 2);
  EXPECT_NEAR(result.top[2].logprob, 2.9 - std::log(sum), 1e-6);
}

TEST_P(SampleTest, ReportsTheForcedToken) {
  const SampleResult result = One(kLogits, {.forced = 3});
  EXPECT_EQ(result.token, 3);
  EXPECT_NEAR(result.logprob, One(kLogits, {.forced = 0}).logprob - 1, 1e-6);
}

TEST_P(SampleTest, GivesNoMoreLogprobsThanTokens) {
  EXPECT_EQ(One(kLogits, {.top_logprobs = kMaxTopLogprobs}).top.size(),
            kLogits.size());
}

TEST_P(SampleTest, DigestsEveryBitOfARow) {
  const SamplingRow row = {.digest = true};
  const uint64_t digest = One({1, 2}, row).digest;
  EXPECT_NE(digest, 0u);
  EXPECT_EQ(digest, One({1, 2}, row).digest);
  EXPECT_NE(digest, One({2, 1}, row).digest);
  EXPECT_NE(digest, One({1, std::nextafter(2.0f, 3.0f)}, row).digest);
  EXPECT_EQ(One({1, 2}, {}).digest, 0u);
}

TEST_P(SampleTest, TakesZeroRows) {
  EXPECT_TRUE(Draw(machine(), Poisoned(DType::kF32, {0, 5}), {}).empty());
}

TEST_P(SampleTest, WritesTheTokenToItsSlot) {
  const Tensor logits = Filled(DType::kF32, {2, 3}, {0, 1, 0, 0, 0, 1});
  std::vector<SamplingRow> rows(2);
  rows[1].slot = 1;
  std::vector<SampledRow> results(2);
  const SampledRows to = PlaceOf(results);
  std::vector<int32_t> drawn = {-7, -7};
  ASSERT_TRUE(machine()
                  .Run<Sample>(DType::kF32, {logits.view(), rows, &to, drawn})
                  .ok());
  EXPECT_EQ(drawn, (std::vector<int32_t>{-7, 2}));
}

TEST_P(SampleTest, RefusesWhatDoesNotFit) {
  const Tensor logits = Random(DType::kF32, {2, 5}, 1);
  std::vector<SampledRow> results(2);
  const SampledRows to = PlaceOf(results);
  const std::vector<SamplingRow> one(1);
  const std::vector<SamplingRow> two(2);
  std::vector<SamplingRow> outside(2);
  outside[1].forced = 5;
  std::vector<SamplingRow> no_slot(2);
  no_slot[1].slot = 0;
  for (const std::vector<SamplingRow>& rows : {one, outside, no_slot}) {
    EXPECT_EQ(
        machine().Run<Sample>(DType::kF32, {logits.view(), rows, &to}).code(),
        StatusCode::kInvalidArgument);
  }
  const SampledRows too_few = {results.data(), 1};
  EXPECT_EQ(
      machine().Run<Sample>(DType::kF32, {logits.view(), two, &too_few}).code(),
      StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
