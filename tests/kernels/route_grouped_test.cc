// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/moe.h"
#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

struct Groups {
  int64_t groups = 1;
  int64_t top_groups = 1;
  float scale = 1;
};

class RouteGroupedTest : public IsaTest {
 protected:
  Routed Route(const Tensor& logits, const Tensor& bias, int64_t top,
               const Groups& g) {
    const int64_t rows = logits.shape()[0];
    const Tensor experts = Poisoned(DType::kI32, {rows, top});
    const Tensor weights = Poisoned(DType::kF32, {rows, top});
    EXPECT_TRUE(machine()
                    .Run<RouteGrouped>(
                        DType::kBF16,
                        {logits.view(), bias.view(), g.groups, g.top_groups,
                         g.scale, experts.view(), weights.view()})
                    .ok());
    const int32_t* e = experts.view().Row<int32_t>(0);
    const float* w = weights.view().Row<float>(0);
    return {{e, e + rows * top}, {w, w + rows * top}};
  }
};
BATON_FOR_EACH_ISA(RouteGroupedTest);

using Ids = std::vector<int32_t>;

TEST_P(RouteGroupedTest, ChoosesWithTheBiasAndWeighsWithoutIt) {
  const Tensor logits = Filled(DType::kF32, {1, 4}, {0.2f, -1, 1.5f, 0.9f});
  const Tensor bias = Filled(DType::kF32, {4}, {0.30f, 0.55f, -0.40f, 0});
  const Routed routed = Route(logits, bias, 2, {.scale = 2.446f});
  EXPECT_EQ(routed.experts, (Ids{0, 1}));
  EXPECT_NEAR(routed.weights[0], 1.6425675793, 1e-6);
  EXPECT_NEAR(routed.weights[1], 0.8034324207, 1e-6);
}

// Expert 0 is the best of all, but its group's two best are the worst pair.
TEST_P(RouteGroupedTest, TakesExpertsOfTheBestGroupsOnly) {
  const Tensor logits =
      Filled(DType::kF32, {1, 9}, {3, -6, -6, 1, 1.2f, -5, 0.9f, -5, 1.1f});
  const Tensor bias = Filled(DType::kF32, {9}, std::vector<float>(9, 0));
  EXPECT_EQ(Route(logits, bias, 3, {3, 2}).experts, (Ids{4, 8, 3}));
  EXPECT_EQ(Route(logits, bias, 3, {3, 1}).experts, (Ids{4, 3, 5}));
  EXPECT_EQ(Route(logits, bias, 3, {3, 3}).experts, (Ids{0, 4, 8}));
  EXPECT_EQ(Route(logits, bias, 3, {1, 1}).experts, (Ids{0, 4, 8}));
}

// A third expert of a group does not count.
TEST_P(RouteGroupedTest, RanksGroupsByTheirTwoBestWithTheBias) {
  const Tensor logits = Filled(DType::kF32, {1, 6}, {0, 0, 0, 0.1f, 0.1f, -9});
  const Tensor none = Filled(DType::kF32, {6}, std::vector<float>(6, 0));
  EXPECT_EQ(Route(logits, none, 2, {2, 1}).experts, (Ids{3, 4}));
  const Tensor bias = Filled(DType::kF32, {6}, {0, 0.2f, 0, 0, 0, 0});
  EXPECT_EQ(Route(logits, bias, 2, {2, 1}).experts, (Ids{1, 0}));
}

TEST_P(RouteGroupedTest, TakesTheLowerIndexOfEqualOnes) {
  const Tensor logits = Filled(DType::kF32, {1, 8}, std::vector<float>(8, 1));
  const Tensor bias = Filled(DType::kF32, {8}, std::vector<float>(8, 0));
  EXPECT_EQ(Route(logits, bias, 3, {4, 2}).experts, (Ids{0, 1, 2}));
}

// A negative bias may make every choice negative; others stay masked.
TEST_P(RouteGroupedTest, DoesNotPreferAMaskedExpertToANegativeOne) {
  const Tensor logits = Filled(DType::kF32, {1, 4}, {0, 0, -1, -1});
  const Tensor bias = Filled(DType::kF32, {4}, std::vector<float>(4, -5));
  EXPECT_EQ(Route(logits, bias, 2, {2, 1}).experts, (Ids{0, 1}));
}

TEST_P(RouteGroupedTest, WeighsScoresThatVanish) {
  const Tensor logits = Filled(DType::kF32, {1, 2}, {-200, -200});
  const Tensor bias = Filled(DType::kF32, {2}, {0, 0});
  const Routed routed = Route(logits, bias, 1, {.scale = 2});
  EXPECT_EQ(routed.weights[0], 0);
}

TEST_P(RouteGroupedTest, ARowOfNansSpoilsItselfAlone) {
  const Tensor logits = Filled(DType::kF32, {2, 4},
                               {NAN, NAN, NAN, NAN,  //
                                0, 1, 3, 2});
  const Tensor bias = Filled(DType::kF32, {4}, std::vector<float>(4, 0));
  const Routed routed = Route(logits, bias, 2, {2, 1});
  EXPECT_EQ(routed.experts, (Ids{0, 1, 2, 3}));
  EXPECT_TRUE(std::isnan(routed.weights[0]));
  EXPECT_FALSE(std::isnan(routed.weights[2]));
}

TEST_P(RouteGroupedTest, TakesZeroRows) {
  const Tensor logits = Poisoned(DType::kF32, {0, 4});
  const Tensor bias = Filled(DType::kF32, {4}, std::vector<float>(4, 0));
  EXPECT_TRUE(Route(logits, bias, 2, {2, 1}).experts.empty());
}

TEST_P(RouteGroupedTest, RefusesGroupsThatDoNotFit) {
  const Tensor logits = Poisoned(DType::kF32, {1, 6});
  const Tensor bias = Poisoned(DType::kF32, {6});
  const Tensor experts = Poisoned(DType::kI32, {1, 3});
  const Tensor weights = Poisoned(DType::kF32, {1, 3});
  const auto code = [&](int64_t groups, int64_t top_groups) {
    return machine()
        .Run<RouteGrouped>(DType::kF32,
                           {logits.view(), bias.view(), groups, top_groups, 1,
                            experts.view(), weights.view()})
        .code();
  };
  EXPECT_EQ(code(4, 2), StatusCode::kInvalidArgument);  // not equal
  EXPECT_EQ(code(6, 3), StatusCode::kInvalidArgument);  // of one expert each
  EXPECT_EQ(code(3, 1), StatusCode::kInvalidArgument);  // too few to choose
  EXPECT_EQ(code(3, 4), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(3, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, 0), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
