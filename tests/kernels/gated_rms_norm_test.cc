// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/delta_attention.h"
#include "tests/kernels/state_testing.h"

namespace baton {
namespace {

class GatedRmsNormTest : public IsaTest {};
BATON_FOR_EACH_ISA(GatedRmsNormTest);

TEST_P(GatedRmsNormTest, NormsEachHeadAndGatesByASigmoid) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t dim : {1, 7, 32, 70}) {
      const Tensor x = Random(dtype, {3, 2, dim}, 1);
      const Tensor weight = Random(DType::kF32, {dim}, 2);
      const Tensor gate = Random(dtype, {3, 2 * dim}, 3, 3);
      const Tensor out = Poisoned(dtype, {3, 2, dim});
      ASSERT_TRUE(machine()
                      .Run<GatedRmsNorm>(
                          dtype, {x.view(), weight.view(), gate.view().Heads(2),
                                  out.view(), 0.02f})
                      .ok());
      for (int64_t row = 0; row < 3; ++row) {
        for (int64_t i = 0; i < 2 * dim; ++i) {
          double squares = 0;
          for (int64_t d = 0; d < dim; ++d) {
            squares += std::pow(D(x, row, i / dim * dim + d), 2);
          }
          const double scale =
              1 / std::sqrt(squares / static_cast<double>(dim) + 0.02);
          const double want = D(weight, i % dim, 0) * D(x, row, i) * scale *
                              SigmoidOf(D(gate, row, i));
          EXPECT_NEAR(At(out.view(), row, i), want,
                      std::abs(want) * Tolerance(dtype) + 1e-6);
        }
      }
    }
  }
}

TEST_P(GatedRmsNormTest, TakesZeroRowsAndRefusesOtherShapes) {
  const Tensor x = Poisoned(DType::kF32, {0, 2, 4});
  const Tensor weight = Random(DType::kF32, {4}, 2);
  EXPECT_TRUE(machine()
                  .Run<GatedRmsNorm>(DType::kF32, {x.view(), weight.view(),
                                                   x.view(), x.view(), 1})
                  .ok());
  const Tensor other = Poisoned(DType::kF32, {0, 4, 2});
  EXPECT_EQ(machine()
                .Run<GatedRmsNorm>(DType::kF32, {x.view(), weight.view(),
                                                 other.view(), x.view(), 1})
                .code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
