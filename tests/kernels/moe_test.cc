// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/moe.h"

#include <algorithm>

#include "kernels/ops/activation.h"
#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

Tensor Chosen(Shape shape, const std::vector<int32_t>& experts) {
  Tensor tensor = Tensor::AllocateHost(DType::kI32, shape).value();
  std::ranges::copy(experts, tensor.view().Row<int32_t>(0));
  return tensor;
}

// Experts of one shape.
struct Experts {
  Experts(Machine& machine, DType dtype, int count, int64_t n, int64_t k) {
    for (int e = 0; e < count; ++e) {
      weights.emplace_back(machine, dtype, n, k, 10 + e);
      matrices.push_back(weights.back().matrix());
    }
  }
  std::vector<Weight> weights;
  std::vector<PackedMatrix> matrices;
};

class GroupedMatmulTest : public IsaTest {
 protected:
  Tensor Multiply(Machine& machine, ConstView x, ConstView chosen,
                  const Experts& experts) {
    return Multiply(machine, x, chosen, experts, x.dtype());
  }
  Tensor Multiply(Machine& machine, ConstView x, ConstView chosen,
                  const Experts& experts, DType out_dtype) {
    const PackedMatrix& one = experts.matrices[0];
    Tensor out = Poisoned(out_dtype, {chosen.dim(0) * chosen.dim(1), one.n});
    EXPECT_TRUE(machine
                    .Run<GroupedMatmul>(
                        one.dtype, {x, chosen, experts.matrices, out.view()})
                    .ok());
    return out;
  }
  // Each slot by a matmul of its own.
  void ExpectEachRow(ConstView x, ConstView chosen, const Experts& experts) {
    ExpectEachRow(x, chosen, experts, x.dtype());
    ExpectEachRow(x, chosen, experts, DType::kF32);
  }
  void ExpectEachRow(ConstView x, ConstView chosen, const Experts& experts,
                     DType out_dtype) {
    const Tensor out = Multiply(machine(), x, chosen, experts, out_dtype);
    const int64_t top = chosen.dim(1);
    for (int64_t slot = 0; slot < out.shape()[0]; ++slot) {
      const int64_t row = x.dim(0) == chosen.dim(0) ? slot / top : slot;
      const auto e =
          static_cast<size_t>(chosen.Row<int32_t>(slot / top)[slot % top]);
      const Tensor want = Poisoned(out_dtype, {1, experts.matrices[e].n});
      ASSERT_TRUE(machine()
                      .Run<Matmul>(x.dtype(), {.x = x.Rows(row, row + 1),
                                               .weight = experts.matrices[e],
                                               .out = want.view()})
                      .ok());
      ASSERT_TRUE(SameBits(out.view().Rows(slot, slot + 1), want.view()))
          << Name(x.dtype()) << " slot " << slot << " expert " << e;
    }
  }
};
BATON_FOR_EACH_ISA(GroupedMatmulTest);

// The shared matrix is of another size.
TEST_P(GroupedMatmulTest, HasTheSameBitsBesideAMatmulOfAllRows) {
  for (const DType dtype : kFloatTypes) {
    const Experts experts(machine(), dtype, 3, 70, 40);
    const Weight shared(machine(), dtype, 33, 50, 5);
    const Tensor x = Random(dtype, {4, 40}, 1);
    const Tensor all = Random(dtype, {4, 50}, 2);
    const Tensor chosen = Poisoned(DType::kI32, {4, 2});
    for (int32_t t = 0; t < 4; ++t) {
      chosen.view().Row<int32_t>(t)[0] = t % 3;
      chosen.view().Row<int32_t>(t)[1] = (t + 1) % 3;
    }
    const Tensor out = Poisoned(dtype, {8, 70});
    const Tensor shared_out = Poisoned(dtype, {4, 33});
    ASSERT_TRUE(machine()
                    .Run<GroupedAndSharedMatmul>(
                        dtype, {.grouped = {x.view(), chosen.view(),
                                            experts.matrices, out.view()},
                                .shared = {.x = all.view(),
                                           .weight = shared.matrix(),
                                           .out = shared_out.view()}})
                    .ok());
    const Tensor want = Poisoned(dtype, {4, 33});
    ASSERT_TRUE(machine()
                    .Run<Matmul>(dtype, {.x = all.view(),
                                         .weight = shared.matrix(),
                                         .out = want.view()})
                    .ok());
    EXPECT_TRUE(SameBits(shared_out.view(), want.view()));
    EXPECT_TRUE(
        SameBits(out.view(),
                 Multiply(machine(), x.view(), chosen.view(), experts).view()));
  }
}

// Odd sizes; experts 1 and 4 have no row, 5 has one, 0 several.
TEST_P(GroupedMatmulTest, HasTheBitsOfAMatmulOfEachRow) {
  const Tensor chosen = Chosen({5, 2}, {0, 3, 2, 0, 0, 5, 3, 0, 2, 3});
  for (const DType dtype : kFloatTypes) {
    const Experts experts(machine(), dtype, 6, 67, 45);
    const Tensor x = Random(dtype, {5, 45}, 2);
    ExpectEachRow(x.view(), chosen.view(), experts);
    const Tensor a_row_a_slot = Random(dtype, {10, 45}, 3);
    ExpectEachRow(a_row_a_slot.view(), chosen.view(), experts);
  }
}

TEST_P(GroupedMatmulTest, TakesAllRowsToOneExpert) {
  const Tensor chosen = Chosen({37, 1}, std::vector<int32_t>(37, 1));
  for (const DType dtype : kFloatTypes) {
    const Experts experts(machine(), dtype, 3, 130, 96);
    const Tensor x = Random(dtype, {37, 96}, 2);
    ExpectEachRow(x.view(), chosen.view(), experts);
  }
}

TEST_P(GroupedMatmulTest, TakesOneRow) {
  const Tensor chosen = Chosen({1, 3}, {2, 0, 1});
  for (const DType dtype : kFloatTypes) {
    const Experts experts(machine(), dtype, 3, 64, 32);
    const Tensor x = Random(dtype, {1, 32}, 2);
    ExpectEachRow(x.view(), chosen.view(), experts);
  }
}

// The contract: a row has the same bits beside any others.
TEST_P(GroupedMatmulTest, GivesARowTheSameBitsInAnyBatch) {
  constexpr int64_t kRows = 90;
  std::vector<int32_t> ids;
  for (int32_t t = 0; t < kRows; ++t) {
    ids.push_back(t * 7 % 5);
    ids.push_back((t * 7 + 1 + t % 4) % 5);
  }
  const Tensor chosen = Chosen({kRows, 2}, ids);
  for (const DType dtype : kFloatTypes) {
    const Experts experts(machine(), dtype, 5, 72, 128);
    const Tensor x = Random(dtype, {kRows, 128}, 2);
    const Tensor whole = Multiply(machine(), x.view(), chosen.view(), experts);
    for (const int64_t rows : {1, 2, 17, 40}) {
      for (const int64_t first : {int64_t{0}, (kRows - rows) / 2}) {
        const Tensor part =
            Multiply(machine(), x.view().Rows(first, first + rows),
                     chosen.view().Rows(first, first + rows), experts);
        EXPECT_TRUE(SameBits(part.view(),
                             whole.view().Rows(2 * first, 2 * (first + rows))));
      }
    }
  }
}

TEST_P(GroupedMatmulTest, GivesTheSameBitsOnAnyNumberOfThreads) {
  const Tensor chosen = Chosen({6, 2}, {0, 1, 1, 2, 0, 2, 2, 1, 0, 1, 1, 0});
  const Experts experts(machine(), DType::kBF16, 3, 200, 512);
  const Tensor x = Random(DType::kBF16, {6, 512}, 2);
  const Tensor want = Multiply(machine(), x.view(), chosen.view(), experts);
  for (const int threads : {2, 5}) {
    Machine several(GetParam(), threads);
    EXPECT_TRUE(
        SameBits(Multiply(several, x.view(), chosen.view(), experts).view(),
                 want.view()));
  }
}

TEST_P(GroupedMatmulTest, ReadsRowsThatLieApart) {
  const Tensor chosen = Chosen({3, 2}, {0, 1, 1, 0, 0, 1});
  const Experts experts(machine(), DType::kBF16, 2, 70, 64);
  const Tensor wide = Random(DType::kBF16, {3, 200}, 2);
  ExpectEachRow(wide.view().Columns(33, 97), chosen.view(), experts);
}

// As Matmul has it: the op of the activation behind the product.
TEST_P(GroupedMatmulTest, GatesItsProducts) {
  const Tensor chosen = Chosen({3, 2}, {0, 1, 1, 2, 0, 2});
  for (const DType dtype : kFloatTypes) {
    const Experts experts(machine(), dtype, 3, 70, 45);
    const Tensor x = Random(dtype, {3, 45}, 2);
    const Tensor product =
        Multiply(machine(), x.view(), chosen.view(), experts);
    const Tensor want = Poisoned(dtype, {6, 35});
    ASSERT_TRUE(machine()
                    .Run<SiluMul>(
                        dtype, {.gate_up = product.view(), .out = want.view()})
                    .ok());
    const Tensor room = Poisoned(dtype, {6, 70});
    const Tensor out = Poisoned(dtype, {6, 35});
    GroupedMatmul::Args args = {
        .x = x.view(),
        .experts = chosen.view(),
        .weights = experts.matrices,
        .out = out.view(),
        .activation = {.kind = MatmulActivation::Kind::kSiluMul},
        .product = room.view()};
    ASSERT_TRUE(machine().Run<GroupedMatmul>(dtype, args).ok());
    EXPECT_TRUE(SameBits(out.view(), want.view())) << Name(dtype);
    args.product = {};
    EXPECT_EQ(machine().Run<GroupedMatmul>(dtype, args).code(),
              StatusCode::kInvalidArgument);
    args.activation.kind = MatmulActivation::Kind::kRelu2;
    EXPECT_EQ(machine().Run<GroupedMatmul>(dtype, args).code(),
              StatusCode::kInvalidArgument);
  }
}

TEST_P(GroupedMatmulTest, TakesZeroRows) {
  const Experts experts(machine(), DType::kBF16, 2, 70, 64);
  const Tensor x = Poisoned(DType::kBF16, {0, 64});
  const Tensor none = Chosen({0, 2}, {});
  EXPECT_EQ(Multiply(machine(), x.view(), none.view(), experts).shape()[0], 0);
}

TEST_P(GroupedMatmulTest, RefusesWhatDoesNotFit) {
  const Experts experts(machine(), DType::kF32, 2, 70, 64);
  const Experts thin(machine(), DType::kF32, 2, 70, 32);
  const Tensor x = Poisoned(DType::kF32, {3, 64});
  const Tensor chosen = Chosen({3, 2}, {0, 1, 1, 0, 0, 1});
  const Tensor beyond = Chosen({3, 2}, {0, 1, 1, 2, 0, 1});
  const Tensor negative = Chosen({3, 2}, {0, 1, 1, -1, 0, 1});
  const Tensor out = Poisoned(DType::kF32, {6, 70});
  const View rows = x.view();
  const GroupedMatmul::Args wrong[] = {
      {rows.Rows(0, 2), chosen.view(), experts.matrices, out.view()},
      {rows, chosen.view(), experts.matrices, out.view().Rows(0, 3)},
      {rows, chosen.view(), experts.matrices, out.view().Columns(0, 69)},
      {rows, chosen.view(), thin.matrices, out.view()},
      {rows, beyond.view(), experts.matrices, out.view()},
      {rows, negative.view(), experts.matrices, out.view()},
      {rows, chosen.view(), {}, out.view()}};
  for (const GroupedMatmul::Args& args : wrong) {
    EXPECT_EQ(machine().Run<GroupedMatmul>(DType::kF32, args).code(),
              StatusCode::kInvalidArgument);
  }
}

class CombineExpertsTest : public IsaTest {};
BATON_FOR_EACH_ISA(CombineExpertsTest);

TEST_P(CombineExpertsTest, GivesTheHandComputedSum) {
  const Tensor weights = Filled(DType::kF32, {2, 2}, {0.75f, 0.25f, 1, 0.5f});
  for (const DType dtype : kFloatTypes) {
    const Tensor y = Filled(dtype, {4, 2}, {4, 8, -8, 4, 1, 2, 3, -4});
    const Tensor out = Poisoned(dtype, {2, 2});
    ASSERT_TRUE(
        machine()
            .Run<CombineExperts>(dtype, {y.view(), weights.view(), out.view()})
            .ok());
    const Tensor want = Filled(dtype, {2, 2}, {1, 7, 2.5f, 0});
    EXPECT_TRUE(SameBits(out.view(), want.view()));
  }
}

// With a rounding after each slot it would stay 1.
TEST_P(CombineExpertsTest, RoundsOnceAfterTheSum) {
  const Tensor weights = Filled(DType::kF32, {1, 3}, {1, 1, 1});
  const Tensor y = Filled(DType::kBF16, {3, 1}, {1, 0x1p-8f, 0x1p-9f});
  const Tensor out = Poisoned(DType::kBF16, {1, 1});
  ASSERT_TRUE(machine()
                  .Run<CombineExperts>(DType::kBF16,
                                       {y.view(), weights.view(), out.view()})
                  .ok());
  EXPECT_EQ(At(out.view(), 0, 0), 1 + 0x1p-7f);
}

TEST_P(CombineExpertsTest, AddsSlotsInOrderWhateverTheBatch) {
  for (const DType dtype : kFloatTypes) {
    const Tensor weights = Random(DType::kF32, {40, 3}, 1);
    const Tensor y = Random(dtype, {120, 300}, 2);
    const Tensor whole = Poisoned(dtype, {40, 300});
    ASSERT_TRUE(machine()
                    .Run<CombineExperts>(
                        dtype, {y.view(), weights.view(), whole.view()})
                    .ok());
    for (const int64_t row : {0, 17, 39}) {
      const Tensor want = Poisoned(dtype, {1, 300});
      for (int64_t i = 0; i < 300; ++i) {
        float sum = 0;
        for (int64_t s = 0; s < 3; ++s) {
          const float term =
              At(weights.view(), row, s) * At(y.view(), 3 * row + s, i);
          sum += term;
        }
        Put(want.view(), 0, i, sum);
      }
      EXPECT_TRUE(SameBits(whole.view().Rows(row, row + 1), want.view()));
    }
  }
}

// The sum is rounded before it: together they would make 1 + 2^-7.
TEST_P(CombineExpertsTest, AddsToTheRoundedSum) {
  const Tensor weights = Filled(DType::kF32, {1, 2}, {1, 1});
  const Tensor y = Filled(DType::kBF16, {2, 1}, {1, 0x1p-9f});
  const Tensor added = Filled(DType::kBF16, {1, 1}, {0x1p-8f});
  const Tensor out = Poisoned(DType::kBF16, {1, 1});
  CombineExperts::Args args = {
      .y = y.view(), .weights = weights.view(), .out = out.view()};
  args.added = added.view();
  ASSERT_TRUE(machine().Run<CombineExperts>(DType::kBF16, args).ok());
  EXPECT_EQ(At(out.view(), 0, 0), 1);
  args.added = y.view();
  EXPECT_EQ(machine().Run<CombineExperts>(DType::kBF16, args).code(),
            StatusCode::kInvalidArgument);
}

TEST_P(CombineExpertsTest, TakesZeroRows) {
  const Tensor weights = Poisoned(DType::kF32, {0, 2});
  const Tensor y = Poisoned(DType::kF32, {0, 8});
  EXPECT_TRUE(machine()
                  .Run<CombineExperts>(DType::kF32,
                                       {y.view(), weights.view(), y.view()})
                  .ok());
}

TEST_P(CombineExpertsTest, RefusesShapesThatDoNotFit) {
  const Tensor weights = Poisoned(DType::kF32, {2, 2});
  const Tensor y = Poisoned(DType::kF32, {4, 8});
  const Tensor out = Poisoned(DType::kF32, {2, 8});
  const CombineExperts::Args wrong[] = {
      {y.view().Rows(0, 3), weights.view(), out.view()},
      {y.view(), weights.view(), out.view().Rows(0, 1)},
      {y.view(), weights.view(), out.view().Columns(0, 7)},
      {y.view(), y.view().Rows(0, 2).Columns(0, 1), out.view()}};
  for (const CombineExperts::Args& args : wrong) {
    EXPECT_EQ(machine().Run<CombineExperts>(DType::kF32, args).code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton
