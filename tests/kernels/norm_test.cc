// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/norm.h"

#include <utility>

#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

constexpr int64_t kWidths[] = {1, 7, 16, 33, 256, 1000};

class RmsNormTest : public IsaTest {};
BATON_FOR_EACH_ISA(RmsNormTest);

TEST_P(RmsNormTest, GivesTheHandComputedRow) {
  const Tensor x = Filled(DType::kF32, {1, 4}, {1, -2, 3, -4});
  const Tensor weight = Filled(DType::kF32, {4}, {1, 2, 0.5f, -1});
  const Tensor out = Poisoned(DType::kF32, {1, 4});
  ASSERT_TRUE(machine()
                  .Run<RmsNorm>(DType::kF32,
                                {x.view(), weight.view(), out.view(), 0.5f})
                  .ok());
  // mean 7.5, with eps 8: each divided by sqrt(8).
  const Tensor want =
      Filled(DType::kF32, {1, 4},
             {0.35355339f, -1.41421356f, 0.53033009f, 1.41421356f});
  ExpectNear(out.view(), want.view(), 1e-6f, 0);
}

TEST_P(RmsNormTest, RoundsOnceAfterTheWeight) {
  // 1 / sqrt(1 + 0.0625) = 0.970142...; times 1.171875 = 1.136885, in bf16
  // 1.140625; a rounding before the weight would give 1.1328125.
  const Tensor x = Filled(DType::kBF16, {1, 2}, {1, 1});
  const Tensor weight = Filled(DType::kBF16, {2}, {1.171875f, 1});
  const Tensor out = Poisoned(DType::kBF16, {1, 2});
  ASSERT_TRUE(machine()
                  .Run<RmsNorm>(DType::kBF16,
                                {x.view(), weight.view(), out.view(), 0.0625f})
                  .ok());
  EXPECT_EQ(At(out.view(), 0, 0), 1.140625f);
  EXPECT_EQ(At(out.view(), 0, 1), 0.96875f);
}

TEST_P(RmsNormTest, AgreesWithTheReference) {
  Machine reference(CpuIsa::kReference);
  for (const DType dtype : kFloatTypes) {
    for (const int64_t width : kWidths) {
      const Tensor x = Random(dtype, {3, width}, 1, 2);
      const Tensor weight = Random(dtype, {width}, 2);
      const Tensor out = Poisoned(dtype, {3, width});
      const Tensor want = Poisoned(dtype, {3, width});
      const RmsNorm::Args args = {x.view(), weight.view(), out.view(), 1e-5f};
      RmsNorm::Args wanted = args;
      wanted.out = want.view();
      ASSERT_TRUE(machine().Run<RmsNorm>(dtype, args).ok());
      ASSERT_TRUE(reference.Run<RmsNorm>(dtype, wanted).ok());
      ExpectNear(out.view(), want.view(), 2 * Tolerance(dtype), 1e-6f);
    }
  }
}

TEST_P(RmsNormTest, MayWriteOverItsInput) {
  for (const DType dtype : kFloatTypes) {
    const Tensor x = Random(dtype, {5, 77}, 1);
    const Tensor weight = Random(dtype, {77}, 2);
    const Tensor out = Poisoned(dtype, {5, 77});
    ASSERT_TRUE(
        machine()
            .Run<RmsNorm>(dtype, {x.view(), weight.view(), out.view(), 1e-5f})
            .ok());
    ASSERT_TRUE(
        machine()
            .Run<RmsNorm>(dtype, {x.view(), weight.view(), x.view(), 1e-5f})
            .ok());
    EXPECT_TRUE(SameBits(x.view(), out.view()));
  }
}

TEST_P(RmsNormTest, NormsEachHeadOfARow) {
  const Tensor x = Random(DType::kBF16, {3, 24}, 1);
  const Tensor weight = Random(DType::kBF16, {8}, 2);
  const Tensor heads = Poisoned(DType::kBF16, {3, 24});
  ASSERT_TRUE(machine()
                  .Run<RmsNorm>(DType::kBF16,
                                {ConstView(x.view()).Heads(3), weight.view(),
                                 heads.view().Heads(3), 1e-5f})
                  .ok());
  for (int64_t head = 0; head < 3; ++head) {
    const Tensor one = Poisoned(DType::kBF16, {3, 8});
    ASSERT_TRUE(machine()
                    .Run<RmsNorm>(DType::kBF16,
                                  {x.view().Columns(8 * head, 8 * head + 8),
                                   weight.view(), one.view(), 1e-5f})
                    .ok());
    EXPECT_TRUE(
        SameBits(heads.view().Columns(8 * head, 8 * head + 8), one.view()));
  }
}

TEST_P(RmsNormTest, TakesZeroRows) {
  const Tensor x = Poisoned(DType::kBF16, {0, 8});
  const Tensor weight = Random(DType::kBF16, {8}, 2);
  EXPECT_TRUE(machine()
                  .Run<RmsNorm>(DType::kBF16,
                                {x.view(), weight.view(), x.view(), 1e-5f})
                  .ok());
}

TEST_P(RmsNormTest, RefusesShapesThatDoNotFit) {
  const Tensor x = Poisoned(DType::kF32, {2, 8});
  const Tensor narrow = Poisoned(DType::kF32, {7});
  const Tensor other = Poisoned(DType::kBF16, {8});
  for (const Tensor* weight : {&narrow, &other}) {
    EXPECT_EQ(machine()
                  .Run<RmsNorm>(DType::kF32,
                                {x.view(), weight->view(), x.view(), 1e-5f})
                  .code(),
              StatusCode::kInvalidArgument);
  }
}

class AddRmsNormTest : public IsaTest {};
BATON_FOR_EACH_ISA(AddRmsNormTest);

TEST_P(AddRmsNormTest, HasTheBitsOfAddThenNorm) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t width : kWidths) {
      const Tensor stream = Random(dtype, {3, width}, 1);
      const Tensor apart = Copy(stream);
      const Tensor update = Random(dtype, {3, width}, 2);
      const Tensor weight = Random(dtype, {width}, 3);
      const Tensor want = Poisoned(dtype, {3, width});
      ASSERT_TRUE(
          machine().Run<Add>(dtype, {apart.view(), update.view()}).ok());
      ASSERT_TRUE(machine()
                      .Run<RmsNorm>(dtype, {apart.view(), weight.view(),
                                            want.view(), 1e-5f})
                      .ok());
      // The output may lie over the update.
      ASSERT_TRUE(
          machine()
              .Run<AddRmsNorm>(dtype, {stream.view(), update.view(),
                                       weight.view(), update.view(), 1e-5f})
              .ok());
      EXPECT_TRUE(SameBits(stream.view(), apart.view()));
      EXPECT_TRUE(SameBits(update.view(), want.view()));
    }
  }
}

TEST_P(AddRmsNormTest, RefusesShapesThatDoNotFit) {
  const Tensor stream = Poisoned(DType::kF32, {2, 8});
  const Tensor update = Poisoned(DType::kF32, {3, 8});
  const Tensor weight = Poisoned(DType::kF32, {8});
  EXPECT_EQ(
      machine()
          .Run<AddRmsNorm>(DType::kF32, {stream.view(), update.view(),
                                         weight.view(), stream.view(), 1e-5f})
          .code(),
      StatusCode::kInvalidArgument);
}

class RmsNormAddTest : public IsaTest {};
BATON_FOR_EACH_ISA(RmsNormAddTest);

TEST_P(RmsNormAddTest, HasTheBitsOfNormThenAdd) {
  const std::pair<DType, DType> types[] = {{DType::kF32, DType::kF32},
                                           {DType::kBF16, DType::kBF16},
                                           {DType::kBF16, DType::kF32}};
  for (const auto& [dtype, stream_dtype] : types) {
    for (const int64_t width : kWidths) {
      const Tensor stream = Random(stream_dtype, {3, width}, 1);
      const Tensor apart = Copy(stream);
      const Tensor update = Random(dtype, {3, width}, 2);
      const Tensor given = Copy(update);
      const Tensor weight = Random(dtype, {width}, 3);
      const Tensor normed = Poisoned(dtype, {3, width});
      ASSERT_TRUE(machine()
                      .Run<RmsNorm>(dtype, {update.view(), weight.view(),
                                            normed.view(), 1e-5f})
                      .ok());
      ASSERT_TRUE(
          machine().Run<Add>(dtype, {apart.view(), normed.view()}).ok());
      ASSERT_TRUE(machine()
                      .Run<RmsNormAdd>(dtype, {update.view(), weight.view(),
                                               stream.view(), 1e-5f})
                      .ok());
      EXPECT_TRUE(SameBits(stream.view(), apart.view())) << width;
      EXPECT_TRUE(SameBits(update.view(), given.view())) << width;
    }
  }
}

TEST_P(RmsNormAddTest, RoundsTheNormBeforeTheSum) {
  // The norm of (1, 1) is 1 / sqrt(1.0625) = 0.970142, in bf16 0.96875. An f32
  // stream shows which of the two is added.
  const Tensor update = Filled(DType::kBF16, {1, 2}, {1, 1});
  const Tensor weight = Filled(DType::kBF16, {2}, {1, 1});
  const Tensor stream = Filled(DType::kF32, {1, 2}, {1, -1});
  ASSERT_TRUE(machine()
                  .Run<RmsNormAdd>(DType::kBF16, {update.view(), weight.view(),
                                                  stream.view(), 0.0625f})
                  .ok());
  EXPECT_EQ(At(stream.view(), 0, 0), 1.96875f);
  EXPECT_EQ(At(stream.view(), 0, 1), -0.03125f);
}

TEST_P(RmsNormAddTest, RefusesShapesThatDoNotFit) {
  const Tensor stream = Poisoned(DType::kF32, {2, 8});
  const Tensor update = Poisoned(DType::kF32, {3, 8});
  const Tensor weight = Poisoned(DType::kF32, {8});
  EXPECT_EQ(machine()
                .Run<RmsNormAdd>(DType::kF32, {update.view(), weight.view(),
                                               stream.view(), 1e-5f})
                .code(),
            StatusCode::kInvalidArgument);
}

// A stream of f32 where weights and updates are bf16: the sum is not rounded,
// and the norm reads what was not rounded.
class WideStreamTest : public IsaTest {};
BATON_FOR_EACH_ISA(WideStreamTest);

TEST_P(WideStreamTest, KeepsTheSumAndRoundsTheNormOnce) {
  for (const int64_t width : kWidths) {
    const Tensor stream = Random(DType::kF32, {3, width}, 1);
    const Tensor update = Random(DType::kBF16, {3, width}, 2);
    const Tensor weight = Random(DType::kBF16, {width}, 3);
    const Tensor sum = Poisoned(DType::kF32, {3, width});
    const Tensor wide_weight = Poisoned(DType::kF32, {1, width});
    for (int64_t i = 0; i < width; ++i) {
      Put(wide_weight.view(), 0, i, At(weight.view(), 0, i));
      for (int64_t row = 0; row < 3; ++row) {
        Put(sum.view(), row, i,
            At(stream.view(), row, i) + At(update.view(), row, i));
      }
    }
    const Tensor want = Poisoned(DType::kF32, {3, width});
    const ConstView flat(wide_weight.view().data(), DType::kF32, {width});
    ASSERT_TRUE(
        machine()
            .Run<RmsNorm>(DType::kF32, {sum.view(), flat, want.view(), 1e-5f})
            .ok());
    const Tensor apart = Copy(stream);
    const Tensor out = Poisoned(DType::kBF16, {3, width});
    ASSERT_TRUE(
        machine()
            .Run<AddRmsNorm>(DType::kBF16, {stream.view(), update.view(),
                                            weight.view(), out.view(), 1e-5f})
            .ok());
    EXPECT_TRUE(SameBits(stream.view(), sum.view()));
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        const auto rounded = static_cast<float>(bf16(At(want.view(), row, i)));
        ASSERT_EQ(At(out.view(), row, i), rounded) << "width " << width;
      }
    }
    const Tensor again = Poisoned(DType::kBF16, {3, width});
    ASSERT_TRUE(
        machine().Run<Add>(DType::kBF16, {apart.view(), update.view()}).ok());
    ASSERT_TRUE(machine()
                    .Run<RmsNorm>(DType::kBF16, {apart.view(), weight.view(),
                                                 again.view(), 1e-5f})
                    .ok());
    EXPECT_TRUE(SameBits(apart.view(), sum.view()));
    EXPECT_TRUE(SameBits(again.view(), out.view()));
  }
}

TEST_P(WideStreamTest, IsTheOnlyThingThatMayBeWide) {
  const Tensor wide = Random(DType::kF32, {2, 8}, 1);
  const Tensor narrow = Random(DType::kBF16, {2, 8}, 2);
  const Tensor weight = Random(DType::kBF16, {8}, 3);
  EXPECT_EQ(machine()
                .Run<RmsNorm>(DType::kBF16,
                              {wide.view(), weight.view(), wide.view(), 1e-5f})
                .code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      machine().Run<Add>(DType::kBF16, {narrow.view(), wide.view()}).code(),
      StatusCode::kInvalidArgument);
  EXPECT_EQ(
      machine().Run<Add>(DType::kF32, {narrow.view(), wide.view()}).code(),
      StatusCode::kInvalidArgument);
}

class AddTest : public IsaTest {};
BATON_FOR_EACH_ISA(AddTest);

TEST_P(AddTest, RoundsTheSumOnce) {
  // 1 + 2^-8 lies half way between two bf16: to even.
  const Tensor stream = Filled(DType::kBF16, {1, 3}, {1, 1.0078125f, 2});
  const Tensor update =
      Filled(DType::kBF16, {1, 3}, {0.00390625f, 0.00390625f, -2});
  ASSERT_TRUE(
      machine().Run<Add>(DType::kBF16, {stream.view(), update.view()}).ok());
  EXPECT_EQ(At(stream.view(), 0, 0), 1.0f);
  EXPECT_EQ(At(stream.view(), 0, 1), 1.015625f);
  EXPECT_EQ(At(stream.view(), 0, 2), 0.0f);
}

TEST_P(AddTest, HasTheBitsOfTheReference) {
  Machine reference(CpuIsa::kReference);
  for (const DType dtype : kFloatTypes) {
    const Tensor stream = Random(dtype, {3, 1001}, 1);
    const Tensor want = Copy(stream);
    const Tensor update = Random(dtype, {3, 1001}, 2);
    ASSERT_TRUE(machine().Run<Add>(dtype, {stream.view(), update.view()}).ok());
    ASSERT_TRUE(reference.Run<Add>(dtype, {want.view(), update.view()}).ok());
    EXPECT_TRUE(SameBits(stream.view(), want.view()));
  }
}

TEST_P(AddTest, RefusesShapesThatDoNotFit) {
  const Tensor stream = Poisoned(DType::kF32, {2, 8});
  const Tensor update = Poisoned(DType::kF32, {2, 9});
  EXPECT_EQ(
      machine().Run<Add>(DType::kF32, {stream.view(), update.view()}).code(),
      StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
