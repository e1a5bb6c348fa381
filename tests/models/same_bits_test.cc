// SPDX-License-Identifier: Apache-2.0
// Promise 1: the bits depend on the request and the checkpoint only.
#include <tuple>

#include "tests/models/cuts.h"

namespace baton::testing {
namespace {

constexpr int kPrompt = 70;
constexpr int kDecode = 5;

class SameBitsTest
    : public ::testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  TinyCheckpoint tiny_ = TinyCheckpoint::Open(std::get<0>(GetParam()));
  DType dtype_ = std::get<1>(GetParam());
  std::vector<int32_t> prompt_ = tiny_.Prompt(kPrompt);

  std::vector<uint64_t> Digests(const Stages& stages, int chunk = kPrompt,
                                int mates = 0) {
    return tiny_.Run(dtype_, stages).Digests(prompt_, chunk, kDecode, mates);
  }
};

TEST_P(SameBitsTest, AtEveryCutAndStageCount) {
  prompt_ = tiny_.Prompt(10);  // there are hundreds of placements
  const std::vector<uint64_t> whole = Digests(tiny_.Whole());
  ASSERT_EQ(whole.size(), 10 + kDecode);
  for (const Stages& stages : AllPlacements(tiny_.info)) {
    ASSERT_EQ(Digests(stages), whole) << ToString(stages);
  }
}

TEST_P(SameBitsTest, HoweverThePromptIsChunked) {
  const std::vector<uint64_t> whole = Digests(tiny_.Whole());
  for (int chunk : {1, 7, 64}) {
    EXPECT_EQ(Digests(tiny_.Whole(), chunk), whole) << "chunks of " << chunk;
  }
}

TEST_P(SameBitsTest, WhoeverSharesTheBatch) {
  const std::vector<uint64_t> alone = Digests(tiny_.Whole());
  for (int mates : {1, 2, 5}) {
    for (int chunk : {7, kPrompt}) {
      EXPECT_EQ(Digests(tiny_.Whole(), chunk, mates), alone)
          << mates << " mates, chunks of " << chunk;
    }
  }
}

TEST_P(SameBitsTest, WithCutsChunksAndMatesTogether) {
  const std::vector<uint64_t> whole = Digests(tiny_.Whole());
  const int layers = tiny_.info.num_layers;
  const Stages ring = Ring(tiny_.info, {0, 1, layers});
  const Stages unrolled =
      Unrolled({0, layers - 1, tiny_.info.unrolled_layers()});
  for (int chunk : {1, 7, 64}) {
    EXPECT_EQ(Digests(ring, chunk, 3), whole) << "ring, chunks of " << chunk;
    EXPECT_EQ(Digests(unrolled, chunk, 4), whole)
        << "unrolled, chunks of " << chunk;
  }
}

TEST_P(SameBitsTest, OfCapturesAtEveryCut) {
  std::vector<CapturePoint> points;
  for (int u = 0; u < tiny_.info.unrolled_layers(); ++u) {
    points.push_back({UnrolledLayer(u), Edge::kBefore});
    points.push_back({UnrolledLayer(u), Edge::kAfter});
  }
  const std::vector<Fed> fed = {{0, tiny_.Prompt(9)}};
  const auto bytes = [&](const Stages& stages, StepOutput& output) {
    output = tiny_.Run(dtype_, stages).Step(fed, points);
    std::vector<std::string> all;
    for (const Capture& c : output.captures) {
      all.emplace_back(reinterpret_cast<const char*>(c.stream.view().data()),
                       c.stream.bytes());
    }
    return all;
  };
  StepOutput whole_output;
  const std::vector<std::string> whole = bytes(tiny_.Whole(), whole_output);
  ASSERT_EQ(whole.size(), points.size());
  for (size_t i = 1; i + 1 < whole.size(); i += 2) {
    EXPECT_EQ(whole[i], whole[i + 1]) << "after one is before the next";
  }
  for (const Stages& stages : AllPlacements(tiny_.info)) {
    StepOutput output;
    ASSERT_EQ(bytes(stages, output), whole) << ToString(stages);
    for (size_t i = 0; i < points.size(); ++i) {
      ASSERT_EQ(output.captures[i].point, points[i]);
    }
    ASSERT_EQ(output.samples, whole_output.samples)
        << "captures change nothing";
  }
}

// The highest bit of the mantissa: rounding may absorb the lowest ones.
TEST_P(SameBitsTest, AndOneFlippedBitShows) {
  const Stages stages = Ring(tiny_.info, {0, 1, tiny_.info.num_layers});
  const std::vector<Fed> fed = {{0, prompt_}};
  const DType stream =
      tiny_.decoder->describe(tiny_.config(), dtype_)->stream_dtype;
  const int bit = stream == DType::kF32 ? 22 : 6;
  const StepOutput clean = tiny_.Run(dtype_, stages).Step(fed);
  const StepOutput damaged = tiny_.Run(dtype_, stages).Step(fed, {}, bit);
  EXPECT_NE(damaged.samples[0].digest, clean.samples[0].digest);
}

INSTANTIATE_TEST_SUITE_P(
    All, SameBitsTest,
    ::testing::Combine(::testing::Values("apertus", "apertus-4x-sharded",
                                         "arcee", "arcee-mscale",
                                         "exaone4-hybrid", "exaone4-tied",
                                         "kimi-linear", "kimi-linear-5x",
                                         "mixtral", "mixtral-stacked",
                                         "nanbeige", "nanbeige-skip-norm",
                                         "spark2_5"),
                       ::testing::Values(DType::kF32, DType::kBF16)),
    [](const auto& info) {
      std::string name = std::string(std::get<0>(info.param)) + "_" +
                         std::string(Name(std::get<1>(info.param)));
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace baton::testing
