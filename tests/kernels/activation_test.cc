// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/activation.h"

#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

constexpr int64_t kWidths[] = {1, 7, 16, 33, 1000};

// The constants whose softplus gives Ap = An = 0.8.
Xielu::Args XieluArgs(ConstView x, View out) {
  return {x, out, 0.2033823208f, -1.0502256128f, 0.5f, -1e-6f};
}

// Of an op that makes [rows, width] out of [rows, gates | ups].
template <typename Op>
void ExpectLikeTheReference(Machine& machine) {
  Machine reference(CpuIsa::kReference);
  for (const DType dtype : kFloatTypes) {
    for (const int64_t width : kWidths) {
      const Tensor x = Random(dtype, {3, 2 * width}, 1, 4);
      const Tensor out = Poisoned(dtype, {3, width});
      const Tensor want = Poisoned(dtype, {3, width});
      ASSERT_TRUE(machine.Run<Op>(dtype, {x.view(), out.view()}).ok());
      ASSERT_TRUE(reference.Run<Op>(dtype, {x.view(), want.view()}).ok());
      ExpectNear(out.view(), want.view(), 2 * Tolerance(dtype), 1e-6f);
    }
  }
}
template <typename Op>
void ExpectRefusesOddInput(Machine& machine) {
  const Tensor x = Poisoned(DType::kF32, {2, 9});
  const Tensor out = Poisoned(DType::kF32, {2, 4});
  EXPECT_EQ(machine.Run<Op>(DType::kF32, {x.view(), out.view()}).code(),
            StatusCode::kInvalidArgument);
}

class SiluMulTest : public IsaTest {};
BATON_FOR_EACH_ISA(SiluMulTest);

TEST_P(SiluMulTest, GivesTheHandComputedRow) {
  const Tensor x = Filled(DType::kF32, {1, 8}, {0, 1, -1, -200, 5, 2, 3, 1});
  const Tensor out = Poisoned(DType::kF32, {1, 4});
  ASSERT_TRUE(machine().Run<SiluMul>(DType::kF32, {x.view(), out.view()}).ok());
  const Tensor want = Filled(DType::kF32, {1, 4},
                             {0, 2 * 0.7310585786f, -3 * 0.2689414214f, 0});
  ExpectNear(out.view(), want.view(), 1e-6f, 1e-30f);
}

TEST_P(SiluMulTest, RoundsOnceAfterTheProduct) {
  // silu(1) * 1.109375 = 0.81102, in bf16 0.8125; a bf16 silu would give
  // 0.80859375.
  const Tensor x = Filled(DType::kBF16, {1, 2}, {1, 1.109375f});
  const Tensor out = Poisoned(DType::kBF16, {1, 1});
  ASSERT_TRUE(
      machine().Run<SiluMul>(DType::kBF16, {x.view(), out.view()}).ok());
  EXPECT_EQ(At(out.view(), 0, 0), 0.8125f);
}

TEST_P(SiluMulTest, AgreesWithTheReference) {
  ExpectLikeTheReference<SiluMul>(machine());
}

TEST_P(SiluMulTest, RefusesAnInputThatIsNotTwiceAsWide) {
  ExpectRefusesOddInput<SiluMul>(machine());
}

class GeluMulTest : public IsaTest {};
BATON_FOR_EACH_ISA(GeluMulTest);

// The exact one, by erf: the tanh form differs in the fourth digit.
TEST_P(GeluMulTest, GivesTheHandComputedRow) {
  const Tensor x = Filled(DType::kF32, {1, 14},
                          {-3, -1, 1, 3, 0, -20, 20, 1, 1, 1, 1, 1, 1, 2});
  const Tensor out = Poisoned(DType::kF32, {1, 7});
  ASSERT_TRUE(machine().Run<GeluMul>(DType::kF32, {x.view(), out.view()}).ok());
  const Tensor want = Filled(
      DType::kF32, {1, 7},
      {-0.00404969409f, -0.158655254f, 0.841344746f, 2.99595031f, 0, 0, 40});
  ExpectNear(out.view(), want.view(), 1e-6f, 1e-30f);
}

TEST_P(GeluMulTest, RoundsOnceAfterTheProduct) {
  // gelu(1) * 1.015625 = 0.85449, in bf16 0.85547; a bf16 gelu (0.83984)
  // would give 0.85156.
  const Tensor x = Filled(DType::kBF16, {1, 2}, {1, 1.015625f});
  const Tensor out = Poisoned(DType::kBF16, {1, 1});
  ASSERT_TRUE(
      machine().Run<GeluMul>(DType::kBF16, {x.view(), out.view()}).ok());
  EXPECT_EQ(At(out.view(), 0, 0), 0.85546875f);
}

TEST_P(GeluMulTest, AgreesWithTheReference) {
  ExpectLikeTheReference<GeluMul>(machine());
}

TEST_P(GeluMulTest, RefusesAnInputThatIsNotTwiceAsWide) {
  ExpectRefusesOddInput<GeluMul>(machine());
}

class GateHeadsTest : public IsaTest {};
BATON_FOR_EACH_ISA(GateHeadsTest);

TEST_P(GateHeadsTest, ScalesEachHeadByItsOwnSigmoid) {
  for (const DType dtype : kFloatTypes) {
    const Tensor x =
        Filled(dtype, {2, 6}, {1, 2, 3, 4, 5, 6, 1, 1, 1, 1, 1, 1});
    // Columns of a wider matrix, as a fused projection leaves them.
    const Tensor wide = Filled(dtype, {2, 4}, {9, 0, -200, 1, 9, 200, 0, -1});
    ASSERT_TRUE(machine()
                    .Run<GateHeads>(
                        dtype, {x.view().Heads(3), wide.view().Columns(1, 4)})
                    .ok());
    const float up = 0.7310585786f, down = 0.2689414214f;
    const Tensor want =
        Filled(DType::kF32, {2, 6},
               {0.5f, 1, 0, 0, 5 * up, 6 * up, 1, 1, 0.5f, 0.5f, down, down});
    ExpectNear(x.view(), want.view(), Tolerance(dtype), 1e-30f);
  }
}

TEST_P(GateHeadsTest, RefusesAGateForOtherHeads) {
  const Tensor x = Poisoned(DType::kF32, {2, 6});
  const Tensor gate = Poisoned(DType::kF32, {2, 2});
  EXPECT_EQ(machine()
                .Run<GateHeads>(DType::kF32, {x.view().Heads(3), gate.view()})
                .code(),
            StatusCode::kInvalidArgument);
}

class Relu2Test : public IsaTest {};
BATON_FOR_EACH_ISA(Relu2Test);

TEST_P(Relu2Test, SquaresWhatIsPositive) {
  const Tensor x = Filled(DType::kF32, {1, 5}, {-3, -0.0f, 0, 0.5f, 3});
  const Tensor out = Poisoned(DType::kF32, {1, 5});
  ASSERT_TRUE(machine().Run<Relu2>(DType::kF32, {x.view(), out.view()}).ok());
  const Tensor want = Filled(DType::kF32, {1, 5}, {0, 0, 0, 0.25f, 9});
  ExpectNear(out.view(), want.view(), 0, 0);
}

TEST_P(Relu2Test, HasTheBitsOfTheReferenceInPlace) {
  Machine reference(CpuIsa::kReference);
  for (const DType dtype : kFloatTypes) {
    for (const int64_t width : kWidths) {
      const Tensor x = Random(dtype, {3, width}, 1, 4);
      const Tensor want = Poisoned(dtype, {3, width});
      ASSERT_TRUE(reference.Run<Relu2>(dtype, {x.view(), want.view()}).ok());
      ASSERT_TRUE(machine().Run<Relu2>(dtype, {x.view(), x.view()}).ok());
      EXPECT_TRUE(SameBits(x.view(), want.view()));
    }
  }
}

TEST_P(Relu2Test, PassesNaNsOn) {
  const Tensor x = Filled(DType::kF32, {1, 1}, {NAN});
  ASSERT_TRUE(machine().Run<Relu2>(DType::kF32, {x.view(), x.view()}).ok());
  EXPECT_TRUE(std::isnan(At(x.view(), 0, 0)));
}

class XieluTest : public IsaTest {};
BATON_FOR_EACH_ISA(XieluTest);

TEST_P(XieluTest, GivesTheGoldenValues) {
  const Tensor x =
      Filled(DType::kF32, {1, 7}, {-4, -1, -0.1f, -1e-7f, 0, 0.5f, 2});
  const Tensor out = Poisoned(DType::kF32, {1, 7});
  ASSERT_TRUE(
      machine().Run<Xielu>(DType::kF32, XieluArgs(x.view(), out.view())).ok());
  const Tensor want = Filled(DType::kF32, {1, 7},
                             {0.4146525111f, -0.2056964471f, -0.0461300656f,
                              -7.699996e-7f, -7.999996e-7f, 0.45f, 4.2f});
  ExpectNear(out.view(), want.view(), 2e-6f, 1e-11f);
}

TEST_P(XieluTest, AgreesWithTheReference) {
  Machine reference(CpuIsa::kReference);
  for (const DType dtype : kFloatTypes) {
    for (const int64_t width : kWidths) {
      const Tensor x = Random(dtype, {3, width}, 1, 3);
      const Tensor want = Poisoned(dtype, {3, width});
      ASSERT_TRUE(
          reference.Run<Xielu>(dtype, XieluArgs(x.view(), want.view())).ok());
      ASSERT_TRUE(
          machine().Run<Xielu>(dtype, XieluArgs(x.view(), x.view())).ok());
      // Near its zero at -2.1 the two terms cancel.
      ExpectNear(x.view(), want.view(), Tolerance(dtype), 2e-6f);
    }
  }
}

TEST_P(XieluTest, RefusesShapesThatDoNotFit) {
  const Tensor x = Poisoned(DType::kF32, {2, 9});
  const Tensor out = Poisoned(DType::kF32, {2, 8});
  const Tensor other = Poisoned(DType::kBF16, {2, 9});
  for (const Tensor* to : {&out, &other}) {
    EXPECT_EQ(machine()
                  .Run<Xielu>(DType::kF32, XieluArgs(x.view(), to->view()))
                  .code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(machine().Run<Relu2>(DType::kF32, {x.view(), to->view()}).code(),
              StatusCode::kInvalidArgument);
  }
}

TEST_P(XieluTest, TakesZeroRows) {
  const Tensor x = Poisoned(DType::kF32, {0, 9});
  EXPECT_TRUE(
      machine().Run<Xielu>(DType::kF32, XieluArgs(x.view(), x.view())).ok());
  EXPECT_TRUE(machine().Run<Relu2>(DType::kF32, {x.view(), x.view()}).ok());
}

}  // namespace
}  // namespace baton
