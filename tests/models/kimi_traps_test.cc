// SPDX-License-Identifier: Apache-2.0
// Kimi-Linear agrees with a second writing of it, and each known mistake, made
// there on purpose, is seen.
#include <fstream>

#include "tests/models/pipeline.h"
#include "tests/models/plain_kimi.h"

namespace baton::testing {
namespace {

constexpr int kTokens = 40;
constexpr double kSame = 1e-3;
constexpr double kSeen = 2e-2;

// The largest difference of a logit from the decoder's, token by token.
double Difference(const std::string& checkpoint, KimiTrap trap) {
  const TinyCheckpoint tiny = TinyCheckpoint::Open(checkpoint);
  std::ifstream file(TinyCheckpoint::Directory(checkpoint) + "/config.json");
  PlainKimi plain(nlohmann::json::parse(file), *tiny.files);
  plain.trap = trap;
  const std::vector<int32_t> prompt = tiny.Prompt(kTokens);
  const std::vector<PlainKimi::Vec> expected = plain.Logits(prompt);
  Pipeline pipeline = tiny.Run(DType::kF32, tiny.Whole());
  double largest = 0;
  for (size_t p = 0; p < kTokens; ++p) {
    const StepOutput output = pipeline.Step({{0, {prompt[p]}}});
    for (size_t i = 0; i < expected[p].size(); ++i) {
      largest =
          std::max(largest, std::fabs(output.logits[0][i] - expected[p][i]));
    }
  }
  return largest;
}

class PlainKimiTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, PlainKimiTest,
                         ::testing::Values("kimi-linear", "kimi-linear-5x"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(PlainKimiTest, AgreesWithTheDecoder) {
  EXPECT_LE(Difference(GetParam(), KimiTrap::kNone), kSame);
}

struct Row {
  const char* name;
  KimiTrap trap;
};
constexpr Row kRows[] = {
    {"LeavesOutTheDecayBias", KimiTrap::kNoDecayBias},
    {"TakesTheLogarithmForTheRate", KimiTrap::kDecayFromRawLog},
    {"NormsBeforeTheConvolution", KimiTrap::kNormBeforeConvolution},
    {"ReversesTheTaps", KimiTrap::kNewestTapFirst},
    {"ReadsTheStateBeforeItsUpdate", KimiTrap::kReadBeforeUpdate},
    {"PredictsFromTheStateBeforeItsDecay", KimiTrap::kPredictBeforeDecay},
    {"ReadsTheStateTransposed", KimiTrap::kTransposedRead},
    {"GatesTheOutputBySilu", KimiTrap::kSiluOutputGate},
    {"NormsTheOutputOverAllHeads", KimiTrap::kOutputNormOverAllHeads},
    {"TakesTheEpsOfNormsForTheL2Norm", KimiTrap::kL2NormWithNormEps},
    {"LetsPaddingDecayTheState", KimiTrap::kPaddingRuns},
    {"DropsTheSharedDimensions", KimiTrap::kNoSharedDims},
    {"RotatesTheSharedDimensions", KimiTrap::kRotatedSharedDims},
    {"ScalesByOwnDimensionsOnly", KimiTrap::kScaleOfOwnDims},
    {"NormsTheSharedDimensionsToo", KimiTrap::kLatentNormOverSharedDims},
    {"TakesTheConfigsEpsForLatents", KimiTrap::kLatentEpsOfConfig},
    {"TakesValuesForKeys", KimiTrap::kValuesBeforeKeys},
    {"WeighsExpertsWithTheBias", KimiTrap::kBiasedWeights},
    {"ChoosesExpertsWithoutTheBias", KimiTrap::kChoiceWithoutBias},
    {"ScalesBeforeItNormalizes", KimiTrap::kScaleBeforeNormalizing},
    {"IgnoresGroups", KimiTrap::kNoGroups},
    {"RanksGroupsByTheirBestExpert", KimiTrap::kGroupsByTheirBest},
    {"ScalesSharedExperts", KimiTrap::kScaledSharedExperts},
    {"ForgetsSharedExperts", KimiTrap::kNoSharedExperts},
};

class KimiTrapsTest : public ::testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(All, KimiTrapsTest, ::testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.name; });

TEST_P(KimiTrapsTest, WouldBeSeen) {
  EXPECT_GE(Difference("kimi-linear", GetParam().trap), kSeen);
}

}  // namespace
}  // namespace baton::testing
