// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/matmul.h"

#include "kernels/ops/activation.h"
#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

class MatmulTest : public IsaTest {
 protected:
  Tensor Multiply(Machine& machine, ConstView x, const Weight& weight,
                  DType out_dtype) {
    Tensor out = Poisoned(out_dtype, {x.dim(0), weight.plain.shape()[0]});
    EXPECT_TRUE(
        machine.Run<Matmul>(x.dtype(), {x, weight.matrix(), out.view()}).ok());
    return out;
  }
};
BATON_FOR_EACH_ISA(MatmulTest);

TEST_P(MatmulTest, GivesTheHandComputedProduct) {
  for (const DType dtype : kFloatTypes) {
    Weight weight(machine(), dtype, 2, 3, 0);
    weight.plain = Filled(dtype, {2, 3}, {1, 2, 3, -1, 0.5f, 4});
    std::memset(weight.packed.view().data(), 0,
                static_cast<size_t>(weight.packed.bytes()));
    ASSERT_TRUE(
        machine()
            .Run<PackMatrix>(dtype, {weight.plain.view(), 0,
                                     weight.packed.view().data(), dtype, 2, 3})
            .ok());
    const Tensor x = Filled(dtype, {2, 3}, {1, 1, 1, 2, -4, 0.25f});
    const Tensor want = Filled(dtype, {2, 2}, {6, 3.5f, -5.25f, -3});
    EXPECT_TRUE(SameBits(Multiply(machine(), x.view(), weight, dtype).view(),
                         want.view()));
  }
}

TEST_P(MatmulTest, AgreesWithTheReference) {
  Machine reference(CpuIsa::kReference);
  const Shape shapes[] = {{1, 1, 1},     {3, 65, 31},  {2, 64, 64},
                          {17, 130, 96}, {33, 7, 512}, {5, 100, 250}};
  for (const DType dtype : kFloatTypes) {
    for (const Shape& shape : shapes) {
      const Weight weight(machine(), dtype, shape[1], shape[2], 1);
      const Tensor x = Random(dtype, {shape[0], shape[2]}, 2);
      const Tensor want = Multiply(reference, x.view(), weight, DType::kF32);
      ExpectNear(Multiply(machine(), x.view(), weight, DType::kF32).view(),
                 want.view(), 1e-5f, 1e-5f);
      ExpectNear(Multiply(machine(), x.view(), weight, dtype).view(),
                 want.view(), Tolerance(dtype), 1e-5f);
    }
  }
}

// The contract: a row has the same bits beside any others.
TEST_P(MatmulTest, ActivatesWithTheBitsOfTheOpOfTheName) {
  constexpr float kP = 0.3f, kN = -0.4f, kBeta = 0.5f, kEps = -1e-6f;
  for (const DType dtype : kFloatTypes) {
    const Weight weight(machine(), dtype, 130, 70, 1);
    const Tensor x = Random(dtype, {5, 70}, 2, 3);
    for (const auto kind :
         {MatmulActivation::Kind::kRelu2, MatmulActivation::Kind::kXielu}) {
      const Tensor fused = Poisoned(dtype, {5, 130});
      ASSERT_TRUE(machine()
                      .Run<Matmul>(dtype, {.x = x.view(),
                                           .weight = weight.matrix(),
                                           .out = fused.view(),
                                           .activation = {.kind = kind,
                                                          .alpha_p = kP,
                                                          .alpha_n = kN,
                                                          .beta = kBeta,
                                                          .eps = kEps}})
                      .ok());
      const Tensor apart = Multiply(machine(), x.view(), weight, dtype);
      const View y = apart.view();
      ASSERT_TRUE(
          (kind == MatmulActivation::Kind::kRelu2
               ? machine().Run<Relu2>(dtype, {y, y})
               : machine().Run<Xielu>(dtype, {y, y, kP, kN, kBeta, kEps}))
              .ok());
      EXPECT_TRUE(SameBits(fused.view(), apart.view()));
    }
  }
}

TEST_P(MatmulTest, GivesGatesTheBitsOfTheOpBehindIt) {
  for (const DType dtype : kFloatTypes) {
    const Weight weight(machine(), dtype, 2 * 65, 70, 1);
    const Tensor x = Random(dtype, {5, 70}, 2, 3);
    const Tensor gate_up = Multiply(machine(), x.view(), weight, dtype);
    for (const auto kind :
         {MatmulActivation::Kind::kSiluMul, MatmulActivation::Kind::kGeluMul}) {
      const Tensor product = Poisoned(dtype, {5, 2 * 65});
      const Tensor fused = Poisoned(dtype, {5, 65});
      ASSERT_TRUE(machine()
                      .Run<Matmul>(dtype, {.x = x.view(),
                                           .weight = weight.matrix(),
                                           .out = fused.view(),
                                           .activation = {.kind = kind},
                                           .product = product.view()})
                      .ok());
      const Tensor want = Poisoned(dtype, {5, 65});
      ASSERT_TRUE(
          (kind == MatmulActivation::Kind::kSiluMul
               ? machine().Run<SiluMul>(dtype, {gate_up.view(), want.view()})
               : machine().Run<GeluMul>(dtype, {gate_up.view(), want.view()}))
              .ok());
      EXPECT_TRUE(SameBits(fused.view(), want.view()));
    }
  }
}

TEST_P(MatmulTest, RefusesGatesThatDoNotFit) {
  const Weight weight(machine(), DType::kF32, 8, 32, 1);
  const Tensor x = Random(DType::kF32, {2, 32}, 2);
  const Tensor half = Poisoned(DType::kF32, {2, 4});
  const Tensor whole = Poisoned(DType::kF32, {2, 8});
  const std::pair<View, View> wrong[] = {// out, product
                                         {whole.view(), whole.view()},
                                         {half.view(), half.view()},
                                         {half.view(), View()}};
  for (const auto& [out, product] : wrong) {
    EXPECT_EQ(machine()
                  .Run<Matmul>(
                      DType::kF32,
                      {.x = x.view(),
                       .weight = weight.matrix(),
                       .out = out,
                       .activation = {.kind = MatmulActivation::Kind::kSiluMul},
                       .product = product})
                  .code(),
              StatusCode::kInvalidArgument);
  }
}

TEST_P(MatmulTest, GivesARowTheSameBitsInAnyBatch) {
  const bool plain = GetParam() == CpuIsa::kReference;
  const int64_t all = plain ? 64 : 512;
  for (const DType dtype : kFloatTypes) {
    const Weight weight(machine(), dtype, 72, 256, 1);
    const Tensor x = Random(dtype, {all, 256}, 2);
    const Tensor whole = Multiply(machine(), x.view(), weight, DType::kF32);
    for (const int64_t rows : {1, 2, 7, 16, 17, 31, 33, 64}) {
      for (const int64_t first : {int64_t{0}, (all - rows) / 2, all - rows}) {
        const Tensor part = Multiply(
            machine(), x.view().Rows(first, first + rows), weight, DType::kF32);
        EXPECT_TRUE(
            SameBits(part.view(), whole.view().Rows(first, first + rows)))
            << Name(dtype) << " rows " << rows << " from " << first;
      }
    }
  }
}

TEST_P(MatmulTest, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const DType dtype : kFloatTypes) {
    const Weight weight(machine(), dtype, 200, 512, 1);
    const Tensor x = Random(dtype, {37, 512}, 2);
    const Tensor want = Multiply(machine(), x.view(), weight, dtype);
    for (const int threads : {2, 5}) {
      Machine several(GetParam(), threads);
      EXPECT_TRUE(SameBits(Multiply(several, x.view(), weight, dtype).view(),
                           want.view()));
    }
  }
}

// What tensor parallelism rests on: quarters of K, added as a balanced tree,
// are the whole.
TEST_P(MatmulTest, AddsRunsOfLeavesAsABalancedTree) {
  for (const DType dtype : kFloatTypes) {
    const Weight weight(machine(), dtype, 70, 1024, 1);
    const Tensor x = Random(dtype, {3, 1024}, 2);
    const Tensor whole = Multiply(machine(), x.view(), weight, DType::kF32);
    Tensor quarters[4];
    for (int64_t q = 0; q < 4; ++q) {
      const Tensor part = Copy(x);
      for (int64_t i = 0; i < 3 * 1024; ++i) {
        const int64_t column = i % 1024;
        if (column / 256 != q) Put(part.view(), i / 1024, column, 0);
      }
      quarters[q] = Multiply(machine(), part.view(), weight, DType::kF32);
    }
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t i = 0; i < 70; ++i) {
        const auto at = [&](int q) { return At(quarters[q].view(), row, i); };
        EXPECT_EQ((at(0) + at(1)) + (at(2) + at(3)), At(whole.view(), row, i));
      }
    }
  }
}

// Ranks' sums, first to first + count, as a tree.
float SumOfRanks(const std::vector<Tensor>& sums, size_t first, size_t count,
                 int64_t row, int64_t column) {
  if (count == 1) return At(sums[first].view(), row, column);
  const size_t half = count / 2;
  return SumOfRanks(sums, first, half, row, column) +
         SumOfRanks(sums, first + half, half, row, column);
}

// A rank's columns have leaves of their own: fewer than a matrix of that size.
// Leaves of 128, 96, 88, 24 and 24 columns, of which the last ones are padded.
TEST_P(MatmulTest, GivesRanksSubtreesThatAddUpToTheWhole) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t k : {1024, 768, 704, 192, 96}) {
      const Weight weight(machine(), dtype, 70, k, 1);
      ASSERT_EQ(weight.leaves, k == 96 ? 4 : 8);
      const Tensor x = Random(dtype, {37, k}, 2);
      const Tensor whole = Multiply(machine(), x.view(), weight, DType::kF32);
      for (int ranks = 2; ranks <= weight.leaves; ranks *= 2) {
        std::vector<Tensor> sums;
        for (int rank = 0; rank < ranks; ++rank) {
          const Weight part(machine(), weight, rank, ranks);
          ASSERT_EQ(part.leaves, weight.leaves / ranks);
          const int64_t held = k / ranks;
          sums.push_back(Multiply(
              machine(), x.view().Columns(rank * held, (rank + 1) * held), part,
              DType::kF32));
        }
        for (int64_t at = 0; at < 37 * 70; ++at) {
          const int64_t row = at / 70, i = at % 70;
          ASSERT_EQ(SumOfRanks(sums, 0, sums.size(), row, i),
                    At(whole.view(), row, i))
              << k << " columns, " << ranks << " ranks, row " << row
              << " column " << i;
        }
      }
    }
  }
}

TEST_P(MatmulTest, RefusesLeavesThatDoNotCutK) {
  const Tensor out = Poisoned(DType::kF32, {2, 70});
  for (const int64_t k : {96, 97}) {
    Weight weight(machine(), DType::kF32, 70, k, 1);
    const Tensor x = Random(DType::kF32, {2, k}, 2);
    for (const int leaves : {0, 3, 16, k == 97 ? 2 : 5}) {
      weight.leaves = leaves;
      EXPECT_EQ(
          machine()
              .Run<Matmul>(DType::kF32, {x.view(), weight.matrix(), out.view()})
              .code(),
          StatusCode::kInvalidArgument)
          << k << " columns, " << leaves << " leaves";
    }
  }
}

TEST_P(MatmulTest, ReadsRowsThatLieApart) {
  for (const DType dtype : kFloatTypes) {
    const Weight weight(machine(), dtype, 70, 64, 1);
    const Tensor wide = Random(dtype, {20, 200}, 2);
    const ConstView part = wide.view().Columns(33, 97);
    Tensor close = Poisoned(dtype, {20, 64});
    for (int64_t row = 0; row < 20; ++row) {
      for (int64_t i = 0; i < 64; ++i) {
        Put(close.view(), row, i, At(part, row, i));
      }
    }
    EXPECT_TRUE(
        SameBits(Multiply(machine(), part, weight, dtype).view(),
                 Multiply(machine(), close.view(), weight, dtype).view()));
  }
}

TEST_P(MatmulTest, TakesZeroRows) {
  const Weight weight(machine(), DType::kBF16, 70, 64, 1);
  const Tensor x = Poisoned(DType::kBF16, {0, 64});
  EXPECT_EQ(Multiply(machine(), x.view(), weight, DType::kBF16).shape()[0], 0);
}

TEST_P(MatmulTest, RefusesShapesThatDoNotFit) {
  const Weight weight(machine(), DType::kF32, 70, 64, 1);
  const Tensor x = Poisoned(DType::kF32, {2, 64});
  const Tensor thin = Poisoned(DType::kF32, {2, 63});
  const Tensor out = Poisoned(DType::kF32, {2, 70});
  const Tensor few = Poisoned(DType::kF32, {1, 70});
  const Tensor half = Poisoned(DType::kBF16, {2, 70});
  const Matmul::Args wrong[] = {
      {thin.view(), weight.matrix(), out.view()},
      {x.view(), weight.matrix(), few.view()},
      {x.view(), weight.matrix(), half.view()},
      {half.view().Columns(0, 64), weight.matrix(), out.view()}};
  for (const Matmul::Args& args : wrong) {
    EXPECT_EQ(machine().Run<Matmul>(DType::kF32, args).code(),
              StatusCode::kInvalidArgument);
  }
}

class PackMatrixTest : public IsaTest {};
BATON_FOR_EACH_ISA(PackMatrixTest);

TEST_P(PackMatrixTest, PutsEachElementInItsPlace) {
  const int64_t n = 130, k = 37;
  for (const DType dtype : kFloatTypes) {
    const Weight weight(machine(), dtype, n, k, 1);
    const View packed = weight.packed.view();
    const int64_t pair = dtype == DType::kBF16 ? 2 : 1;
    for (int64_t i = 0; i < PadTo(n, 64) * 64; ++i) {
      const int64_t row = i / 64, column = i % 64;
      const int64_t at = row / 64 * 64 * 64 +
                         (column / pair * 64 + row % 64) * pair + column % pair;
      const bool inside = row < n && column < k;
      const float want = inside ? At(weight.plain.view(), row, column) : 0;
      ASSERT_EQ(At(packed, at, 0), want) << row << "," << column;
    }
  }
}

TEST_P(PackMatrixTest, PacksInParts) {
  const Weight weight(machine(), DType::kBF16, 150, 40, 1);
  const Tensor parts =
      Tensor::AllocateHost(DType::kBF16, weight.packed.shape()).value();
  std::memset(parts.view().data(), 0, static_cast<size_t>(parts.bytes()));
  int64_t first = 0;
  for (const int64_t end : {1, 63, 65, 70, 150}) {
    ASSERT_TRUE(
        machine()
            .Run<PackMatrix>(DType::kBF16,
                             {weight.plain.view().Rows(first, end), first,
                              parts.view().data(), DType::kBF16, 150, 40})
            .ok());
    first = end;
  }
  EXPECT_TRUE(SameBits(parts.view(), weight.packed.view()));
}

TEST_P(PackMatrixTest, WidensBF16ToF32) {
  const Tensor plain = Random(DType::kBF16, {3, 5}, 1);
  const Tensor packed = Tensor::AllocateHost(DType::kF32, {64 * 32}).value();
  ASSERT_TRUE(
      machine()
          .Run<PackMatrix>(DType::kF32, {plain.view(), 0, packed.view().data(),
                                         DType::kF32, 3, 5})
          .ok());
  EXPECT_EQ(At(packed.view(), 4 * 64 + 2, 0), At(plain.view(), 2, 4));
}

TEST_P(PackMatrixTest, RefusesRowsOutsideTheMatrix) {
  const Tensor plain = Poisoned(DType::kF32, {3, 5});
  const Tensor packed = Poisoned(DType::kF32, {64 * 32});
  const auto run = [&](int64_t first, int64_t n, int64_t k, DType dtype) {
    return machine()
        .Run<PackMatrix>(
            dtype, {plain.view(), first, packed.view().data(), dtype, n, k})
        .code();
  };
  EXPECT_EQ(run(1, 3, 5, DType::kF32), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(-1, 3, 5, DType::kF32), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(0, 3, 4, DType::kF32), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(0, 3, 5, DType::kBF16), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
