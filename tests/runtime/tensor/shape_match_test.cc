// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/shape_match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using ::testing::HasSubstr;

ConstView Shaped(Shape shape, DType dtype = DType::kF32) {
  return {nullptr, dtype, shape};
}

TEST(ShapeMatchTest, BindsASizeAtItsFirstUse) {
  ShapeMatch match("op");
  match.Match("x", Shaped({3, 8}), {"tokens", "hidden"});
  EXPECT_TRUE(match.status().ok());
  EXPECT_EQ(match["tokens"], 3);
  EXPECT_EQ(match["hidden"], 8);
}

TEST(ShapeMatchTest, RefusesASizeThatDiffersFromItsFirstUse) {
  const Status status = ShapeMatch("op")
                            .Match("x", Shaped({3, 8}), {"tokens", "hidden"})
                            .Match("weight", Shaped({7}), {"hidden"})
                            .status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("weight has shape [7]"));
  EXPECT_THAT(Message(status), HasSubstr("hidden=8"));
}

TEST(ShapeMatchTest, RefusesAnotherRank) {
  const Status status =
      ShapeMatch("op").Match("x", Shaped({3, 8}), {"tokens"}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("expected rank 1"));
}

TEST(ShapeMatchTest, ComparesNumbersLiterally) {
  EXPECT_TRUE(
      ShapeMatch("op").Match("x", Shaped({3, 16}), {"n", "16"}).status().ok());
  EXPECT_FALSE(
      ShapeMatch("op").Match("x", Shaped({3, 15}), {"n", "16"}).status().ok());
}

TEST(ShapeMatchTest, TakesZeroRows) {
  ShapeMatch match("op");
  match.Match("x", Shaped({0, 8}), {"tokens", "hidden"})
      .Match("out", Shaped({0, 8}), {"tokens", "hidden"});
  EXPECT_TRUE(match.status().ok());
  EXPECT_EQ(match["tokens"], 0);
}

TEST(ShapeMatchTest, RefusesAnotherDType) {
  const Status status = ShapeMatch("op")
                            .IsType("x", Shaped({1}, DType::kBF16), DType::kF32)
                            .status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("x is bf16, expected f32"));
}

TEST(ShapeMatchTest, KeepsTheFirstError) {
  const Status status = ShapeMatch("op")
                            .Require(false, "first")
                            .Require(false, "second")
                            .Match("x", Shaped({1, 2}), {"n"})
                            .status();
  EXPECT_THAT(Message(status), HasSubstr("op: first"));
}

}  // namespace
}  // namespace baton
