// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/moe.h"
#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

std::vector<int32_t> Ids(ConstView view) {
  const int32_t* ids = view.Row<int32_t>(0);
  return {ids, ids + view.shape().NumElements()};
}

struct Routed {
  Tensor experts, weights;
};

class RouteTopKTest : public IsaTest {
 protected:
  Routed Route(ConstView logits, int64_t top) {
    Routed routed = {Poisoned(DType::kI32, {logits.dim(0), top}),
                     Poisoned(DType::kF32, {logits.dim(0), top})};
    EXPECT_TRUE(machine()
                    .Run<RouteTopK>(
                        DType::kBF16,
                        {logits, routed.experts.view(), routed.weights.view()})
                    .ok());
    return routed;
  }
};
BATON_FOR_EACH_ISA(RouteTopKTest);

TEST_P(RouteTopKTest, NormalizesTheChosenProbabilities) {
  const Tensor logits =
      Filled(DType::kF32, {1, 8}, {1, 2, 0.5f, -1, 1.8f, 0, -0.3f, 0.7f});
  const Routed routed = Route(logits.view(), 2);
  EXPECT_EQ(Ids(routed.experts.view()), (std::vector<int32_t>{1, 4}));
  const Tensor want =
      Filled(DType::kF32, {1, 2}, {0.5498339973f, 0.4501660027f});
  ExpectNear(routed.weights.view(), want.view(), 1e-6f, 0);
}

TEST_P(RouteTopKTest, TakesTheLowerIndexOfEqualOnes) {
  const Tensor logits =
      Filled(DType::kF32, {2, 5}, {1, 3, 3, 3, 0, 2, 2, 2, 2, 2});
  const Routed routed = Route(logits.view(), 3);
  EXPECT_EQ(Ids(routed.experts.view()),
            (std::vector<int32_t>{1, 2, 3, 0, 1, 2}));
  EXPECT_FLOAT_EQ(At(routed.weights.view(), 1, 2), 1.0f / 3);
}

// Rounded to bf16, both logits would be 3 and the order the other one.
TEST_P(RouteTopKTest, TellsLogitsApartThatBf16DoesNot) {
  const Tensor logits = Filled(DType::kF32, {1, 3}, {3.001f, 0, 3.002f});
  ASSERT_EQ(bf16(3.001f), bf16(3.002f));
  EXPECT_EQ(Ids(Route(logits.view(), 2).experts.view()),
            (std::vector<int32_t>{2, 0}));
}

TEST_P(RouteTopKTest, TakesAllExpertsAndOne) {
  const Tensor logits = Filled(DType::kF32, {1, 3}, {-200, 0, 200});
  const Routed all = Route(logits.view(), 3);
  EXPECT_EQ(Ids(all.experts.view()), (std::vector<int32_t>{2, 0, 1}));
  EXPECT_EQ(At(all.weights.view(), 0, 0), 1);
  EXPECT_EQ(At(all.weights.view(), 0, 1), 0);
  const Routed one = Route(logits.view(), 1);
  EXPECT_EQ(Ids(one.experts.view()), (std::vector<int32_t>{2}));
  EXPECT_EQ(At(one.weights.view(), 0, 0), 1);
}

TEST_P(RouteTopKTest, GivesARowTheSameBitsInAnyBatch) {
  const Tensor logits = Random(DType::kF32, {300, 7}, 3, 2);
  const Routed whole = Route(logits.view(), 3);
  for (const int64_t row : {0, 1, 150, 299}) {
    const Routed alone = Route(logits.view().Rows(row, row + 1), 3);
    EXPECT_TRUE(SameBits(alone.experts.view(),
                         whole.experts.view().Rows(row, row + 1)));
    EXPECT_TRUE(SameBits(alone.weights.view(),
                         whole.weights.view().Rows(row, row + 1)));
  }
}

TEST_P(RouteTopKTest, ARowOfNansSpoilsItselfAlone) {
  const Tensor logits = Filled(DType::kF32, {2, 3}, {0, NAN, 1, 1, 2, 3});
  const Routed routed = Route(logits.view(), 2);
  EXPECT_EQ(Ids(routed.experts.view()), (std::vector<int32_t>{0, 1, 2, 1}));
  EXPECT_TRUE(std::isnan(At(routed.weights.view(), 0, 0)));
  EXPECT_FALSE(std::isnan(At(routed.weights.view(), 1, 0)));
}

TEST_P(RouteTopKTest, RefusesShapesThatDoNotFit) {
  const Tensor logits = Poisoned(DType::kF32, {2, 3});
  const Tensor ids = Poisoned(DType::kI32, {2, 4});
  const Tensor weights = Poisoned(DType::kF32, {2, 4});
  const View i = ids.view(), w = weights.view();
  const RouteTopK::Args wrong[] = {
      {logits.view(), i, w},  // more than there are
      {logits.view(), i.Columns(0, 0), w.Columns(0, 0)},
      {logits.view(), i.Columns(0, 2), w.Columns(0, 1)},
      {logits.view(), i.Rows(0, 1).Columns(0, 2), w.Columns(0, 2)},
      {logits.view(), w.Columns(0, 2), w.Columns(0, 2)}};
  for (const RouteTopK::Args& args : wrong) {
    EXPECT_EQ(machine().Run<RouteTopK>(DType::kF32, args).code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton
