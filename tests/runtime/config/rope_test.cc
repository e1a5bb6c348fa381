// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>

#include "runtime/config/model_config.h"
#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using Kind = RopeConfig::Kind;

constexpr double kTolerance = 1e-6;

void ExpectClose(const RopeFrequencies& got,
                 const std::map<int, double>& expected) {
  for (const auto& pair : expected) {
    EXPECT_NEAR(got.inv_freq[pair.first] / pair.second, 1, kTolerance)
        << "pair " << pair.first;
  }
}

double Plain(double theta, int pair, int dim) {
  return std::pow(theta, -2.0 * pair / dim);
}

TEST(RopeTest, PlainFrequenciesFallGeometrically) {
  const auto got = ComputeRope({.theta = 1e4}, 4);
  ASSERT_EQ(got.inv_freq.size(), 2U);
  ExpectClose(got, {{0, 1}, {1, 0.01}});
  EXPECT_EQ(got.amplitude, 1);
}

TEST(RopeTest, Llama3ScalingOfApertus) {
  const auto got = ComputeRope({.kind = Kind::kLlama3,
                                .theta = 12e6,
                                .factor = 8,
                                .original_max_positions = 8192},
                               128);
  ASSERT_EQ(got.inv_freq.size(), 64U);
  ExpectClose(got, {{22, 3.685797292e-3},
                    {23, 2.627920959e-3},
                    {24, 1.496027890e-3},
                    {25, 8.345757113e-4},
                    {26, 4.515983521e-4},
                    {27, 2.326938773e-4},
                    {28, 1.098536628e-4},
                    {63, 1.343819609e-8}});
  for (int i = 0; i <= 22; ++i) ExpectClose(got, {{i, Plain(12e6, i, 128)}});
  for (int i = 29; i < 64; ++i) {
    ExpectClose(got, {{i, Plain(12e6, i, 128) / 8}});
  }
  EXPECT_EQ(got.amplitude, 1);
}

TEST(RopeTest, Llama3ScalingOfExaone) {
  const RopeConfig config{.kind = Kind::kLlama3,
                          .theta = 1e6,
                          .factor = 16,
                          .original_max_positions = 8192};
  ExpectClose(ComputeRope(config, 128), {{26, Plain(1e6, 26, 128)},
                                         {27, 2.792574273e-3},
                                         {28, 1.698341255e-3},
                                         {29, 1.010115003e-3},
                                         {30, 5.812029373e-4},
                                         {31, 3.171880715e-4},
                                         {32, 1.574366543e-4},
                                         {33, 6.312133240e-5},
                                         {34, Plain(1e6, 34, 128) / 16},
                                         {63, 7.755861005e-8}});
  ExpectClose(ComputeRope(config, 64), {{13, Plain(1e6, 13, 64)},
                                        {14, 1.698341255e-3},
                                        {15, 5.812029373e-4},
                                        {16, 1.574366543e-4},
                                        {17, Plain(1e6, 17, 64) / 16},
                                        {31, 9.624540788e-8}});
}

RopeConfig Afm() {
  return {.kind = Kind::kYarn,
          .theta = 1e4,
          .factor = 20,
          .original_max_positions = 4096,
          .mscale = 1};
}

TEST(RopeTest, YarnScalingOfArcee) {
  const auto got = ComputeRope(Afm(), 128);
  ExpectClose(got, {{0, 1},
                    {20, 5.623413252e-2},
                    {21, 4.691744810e-2},
                    {33, 4.546312698e-3},
                    {46, 6.667607161e-5},
                    {63, 5.773909923e-6}});
  EXPECT_NEAR(got.amplitude / 1.299573227, 1, kTolerance);
}

TEST(RopeTest, YarnAmplitudeFollowsItsThreeRules) {
  RopeConfig config = Afm();
  config.mscale_all_dim = 0.5;  // both set: (0.1 ln 20 + 1) / (0.05 ln 20 + 1)
  EXPECT_NEAR(ComputeRope(config, 128).amplitude, 1.1302734, 1e-6);
  config.attention_factor = 0.75;
  EXPECT_EQ(ComputeRope(config, 128).amplitude, 0.75F);
  config = Afm();
  config.factor = 0.5;  // nothing grows when nothing is stretched
  EXPECT_EQ(ComputeRope(config, 128).amplitude, 1);
}

TEST(RopeTest, YarnRampWithoutTruncation) {
  RopeConfig config = Afm();
  config.truncate = false;
  // dimAt(32) = 128 ln(4096 / (64 pi)) / (2 ln 1e4) = 20.9445,
  // dimAt(1) = 45.0269: pair 20 is kept, 46 divided, 33 mixed by 0.500595.
  const auto got = ComputeRope(config, 128);
  const double plain = Plain(1e4, 33, 128);
  ExpectClose(got, {{20, Plain(1e4, 20, 128)}, {46, Plain(1e4, 46, 128) / 20}});
  EXPECT_NEAR(got.inv_freq[33] / (plain * (1 - 0.500595 * 0.95)), 1, 1e-5);
}

TEST(RopeTest, SurvivesARampOfNoLength) {
  RopeConfig config = Afm();
  config.beta_fast = config.beta_slow = 1;
  config.truncate = false;
  for (const float f : ComputeRope(config, 128).inv_freq) {
    EXPECT_TRUE(std::isfinite(f));
  }
}

}  // namespace
}  // namespace baton
