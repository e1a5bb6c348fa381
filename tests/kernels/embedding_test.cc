// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/embedding.h"

#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

class EmbeddingTest : public IsaTest {};
BATON_FOR_EACH_ISA(EmbeddingTest);

TEST_P(EmbeddingTest, CopiesTheRowsOfItsIds) {
  for (const DType dtype : kFloatTypes) {
    const Tensor table = Random(dtype, {9, 13}, 1);
    const std::vector<int32_t> ids = {8, 0, 3, 3};
    const Tensor out = Poisoned(dtype, {4, 13});
    ASSERT_TRUE(
        machine().Run<Embedding>(dtype, {ids, table.view(), out.view()}).ok());
    for (int64_t row = 0; row < 4; ++row) {
      const int64_t id = ids[static_cast<size_t>(row)];
      EXPECT_TRUE(SameBits(out.view().Rows(row, row + 1),
                           table.view().Rows(id, id + 1)));
    }
  }
}

TEST_P(EmbeddingTest, WidensRowsForAWideStream) {
  const Tensor table = Random(DType::kBF16, {9, 13}, 1);
  const std::vector<int32_t> ids = {8, 0};
  const Tensor out = Poisoned(DType::kF32, {2, 13});
  ASSERT_TRUE(machine()
                  .Run<Embedding>(DType::kBF16, {ids, table.view(), out.view()})
                  .ok());
  for (int64_t i = 0; i < 13; ++i) {
    EXPECT_EQ(At(out.view(), 0, i), At(table.view(), 8, i));
    EXPECT_EQ(At(out.view(), 1, i), At(table.view(), 0, i));
  }
}

TEST_P(EmbeddingTest, TakesZeroRows) {
  const Tensor table = Random(DType::kF32, {9, 13}, 1);
  const Tensor out = Poisoned(DType::kF32, {0, 13});
  EXPECT_TRUE(machine()
                  .Run<Embedding>(DType::kF32, {{}, table.view(), out.view()})
                  .ok());
}

TEST_P(EmbeddingTest, RefusesShapesThatDoNotFit) {
  const Tensor table = Random(DType::kF32, {9, 13}, 1);
  const Tensor out = Poisoned(DType::kF32, {2, 13});
  const Tensor half = Poisoned(DType::kBF16, {1, 13});
  const std::vector<int32_t> ids = {1};
  for (const Tensor* to : {&out, &half}) {
    EXPECT_EQ(machine()
                  .Run<Embedding>(DType::kF32, {ids, table.view(), to->view()})
                  .code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton
