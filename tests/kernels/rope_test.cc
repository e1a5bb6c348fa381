// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "kernels/ops/attention.h"
#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

std::vector<float> Frequencies(double base, int64_t rotary) {
  std::vector<float> result;
  for (int64_t i = 0; i < rotary / 2; ++i) {
    result.push_back(static_cast<float>(std::pow(
        base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary))));
  }
  return result;
}

class RopeTest : public IsaTest {};
BATON_FOR_EACH_ISA(RopeTest);

TEST_P(RopeTest, GivesTheGoldenRotation) {
  const Tensor x = Filled(DType::kF32, {1, 4}, {1, 2, 3, 4});
  const std::vector<float> frequencies = Frequencies(1e4, 4);
  const int32_t position = 3;
  ASSERT_TRUE(
      machine()
          .Run<Rope>(DType::kF32,
                     {x.view().Heads(1), {&position, 1}, frequencies, 1})
          .ok());
  const Tensor want =
      Filled(DType::kF32, {1, 4},
             {-1.4133525208f, 1.8791180667f, -2.8288574817f, 4.0581911354f});
  ExpectNear(x.view(), want.view(), 1e-6f, 0);
}

TEST_P(RopeTest, LeavesDimsBehindTheRotaryPart) {
  const Tensor x = Filled(DType::kF32, {1, 8}, {1, 2, 3, 4, 5, 6, 7, 8});
  const std::vector<float> frequencies = Frequencies(5e6, 2);
  const int32_t position = 3;
  ASSERT_TRUE(
      machine()
          .Run<Rope>(DType::kF32,
                     {x.view().Heads(1), {&position, 1}, frequencies, 1})
          .ok());
  const Tensor want = Filled(
      DType::kF32, {1, 8}, {-1.2722325127f, -1.8388649851f, 3, 4, 5, 6, 7, 8});
  ExpectNear(x.view(), want.view(), 1e-6f, 0);
}

TEST_P(RopeTest, RoundsOnceAfterTheRotation) {
  // 1.109375 cos 1 * 1.3 = 0.77922, in bf16 0.77734375; a bf16 cosine would
  // give 0.78125. With sin: 1.21356, in bf16 1.2109375.
  const Tensor x = Filled(DType::kBF16, {1, 2}, {1.109375f, 0});
  const std::vector<float> frequencies = {1};
  const int32_t position = 1;
  ASSERT_TRUE(
      machine()
          .Run<Rope>(DType::kBF16,
                     {x.view().Heads(1), {&position, 1}, frequencies, 1.3f})
          .ok());
  EXPECT_EQ(At(x.view(), 0, 0), 0.77734375f);
  EXPECT_EQ(At(x.view(), 0, 1), 1.2109375f);
}

TEST_P(RopeTest, AgreesWithTheReferenceAtFarPositions) {
  Machine reference(CpuIsa::kReference);
  const std::vector<int32_t> positions = {0, 1, 77, 4095, 131071, 1048575};
  for (const DType dtype : kFloatTypes) {
    for (const int64_t rotary : {2, 30, 128}) {
      const std::vector<float> frequencies = Frequencies(1e6, rotary);
      const Tensor x = Random(dtype, {6, 3, 130}, 1);
      const Tensor want = Copy(x);
      ASSERT_TRUE(
          machine()
              .Run<Rope>(dtype, {x.view(), positions, frequencies, 1.25f})
              .ok());
      ASSERT_TRUE(
          reference
              .Run<Rope>(dtype, {want.view(), positions, frequencies, 1.25f})
              .ok());
      // A difference of two products may cancel.
      ExpectNear(x.view(), want.view(), Tolerance(dtype), 2e-6f);
    }
  }
}

TEST_P(RopeTest, TakesZeroRows) {
  const Tensor x = Poisoned(DType::kBF16, {0, 1, 4});
  const std::vector<float> frequencies = {1, 1};
  EXPECT_TRUE(
      machine().Run<Rope>(DType::kBF16, {x.view(), {}, frequencies, 1}).ok());
}

TEST_P(RopeTest, RefusesShapesThatDoNotFit) {
  const Tensor x = Poisoned(DType::kF32, {2, 1, 4});
  const std::vector<float> frequencies = {1, 1}, many = {1, 1, 1};
  const std::vector<int32_t> positions = {0, 1}, few = {0};
  EXPECT_EQ(
      machine().Run<Rope>(DType::kF32, {x.view(), few, frequencies, 1}).code(),
      StatusCode::kInvalidArgument);
  EXPECT_EQ(
      machine().Run<Rope>(DType::kF32, {x.view(), positions, many, 1}).code(),
      StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
