// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "runtime/weights/weight_source.h"
#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using ::baton::testing::IsOk;
using ::baton::testing::StatusIs;

std::vector<uint16_t> Bits(const WeightSource& source, const TensorDecl& decl,
                           int64_t begin, int64_t end) {
  const auto rows = source.Rows(decl, begin, end);
  if (!rows.ok()) return {};
  std::vector<uint16_t> bits;
  const bf16* const data = rows->view.Row<bf16>(0);
  for (int64_t i = 0; i < rows->view.shape().NumElements(); ++i) {
    bits.push_back(data[i].bits);
  }
  return bits;
}

float ValueOf(uint16_t bits) {
  bf16 value;
  value.bits = bits;
  return static_cast<float>(value);
}

TEST(RandomWeightsTest, DependOnSeedAndNameAlone) {
  const TensorDecl decl{.name = "w", .shape = {64, 100}};
  const TensorDecl other{.name = "v", .shape = {64, 100}};
  const auto first = Bits(*NewRandomWeights(1), decl, 0, 64);
  EXPECT_EQ(first.size(), 6400U);
  EXPECT_EQ(first, Bits(*NewRandomWeights(1), decl, 0, 64));
  EXPECT_NE(first, Bits(*NewRandomWeights(2), decl, 0, 64));
  EXPECT_NE(first, Bits(*NewRandomWeights(1), other, 0, 64));
}

TEST(RandomWeightsTest, AreTheSameWhicheverRowsAreAskedFor) {
  // Odd sizes, and enough rows to pass several of the generator's runs.
  const TensorDecl decl{.name = "w", .shape = {701, 333}};
  const auto source = NewRandomWeights(7);
  const auto whole = Bits(*source, decl, 0, 701);
  const auto part = Bits(*source, decl, 195, 700);
  ASSERT_EQ(part.size(), 505U * 333);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 195 * 333));
  EXPECT_TRUE(Bits(*source, decl, 5, 5).empty());
}

TEST(RandomWeightsTest, ScaleLinearsByTheirInputs) {
  const TensorDecl decl{.name = "w", .shape = {512, 400}};
  double sum = 0;
  double squares = 0;
  const auto bits = Bits(*NewRandomWeights(3), decl, 0, 512);
  for (const uint16_t b : bits) {
    sum += ValueOf(b);
    squares += ValueOf(b) * ValueOf(b);
  }
  const auto n = static_cast<double>(bits.size());
  EXPECT_NEAR(sum / n, 0, 1e-3);
  EXPECT_NEAR(std::sqrt(squares / n), 0.05, 5e-4);  // 1 / sqrt(400)
}

TEST(RandomWeightsTest, KeepNormsNearOne) {
  const TensorDecl decl{.name = "norm.weight", .shape = {1000}};
  for (const uint16_t b : Bits(*NewRandomWeights(3), decl, 0, 1000)) {
    EXPECT_NEAR(ValueOf(b), 1, 0.11);
  }
}

TEST(RandomWeightsTest, GiveActivationScalarsTheirUsualValues) {
  const auto source = NewRandomWeights(3);
  const auto scalar = [&](const std::string& name) {
    const TensorDecl decl{.name = "model.layers.1.mlp.act_fn." + name,
                          .shape = {1},
                          .any_one_element = true};
    const auto bits = Bits(*source, decl, 0, 1);
    return bits.size() == 1 ? ValueOf(bits[0]) : 0;
  };
  EXPECT_NEAR(scalar("alpha_p"), 0.2, 1e-3);
  EXPECT_NEAR(scalar("alpha_n"), -1.05, 5e-3);
  EXPECT_EQ(scalar("beta"), 0.5);
  EXPECT_NEAR(scalar("eps"), -1e-6, 1e-8);
}

TEST(RandomWeightsTest, RefuseRowsOutsideTheTensor) {
  const TensorDecl decl{.name = "w", .shape = {4, 4}};
  const auto source = NewRandomWeights(3);
  EXPECT_TRUE(source->Has("w"));
  EXPECT_THAT(source->Check({&decl, 1}), IsOk());
  EXPECT_THAT(source->Rows(decl, 0, 5), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(source->Rows(decl, -1, 2),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(source->Rows(decl, 3, 2), StatusIs(StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace baton
