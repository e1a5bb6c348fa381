// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv/block_pool.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(BlockPoolTest, HandsOutTheLowestFreePages) {
  BlockPool pool(4);
  EXPECT_EQ(*pool.Take(3), (std::vector<PageId>{0, 1, 2}));
  pool.Give({1});
  EXPECT_EQ(*pool.Take(2), (std::vector<PageId>{1, 3}));
  EXPECT_EQ(pool.used(), 4);
}

TEST(BlockPoolTest, TakesNothingWhereTooFewAreFree) {
  BlockPool pool(2);
  EXPECT_EQ(pool.Take(3).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.available(), 2);
}

TEST(BlockPoolDeathTest, RefusesToFreeAPageTwice) {
  BlockPool pool(2);
  const std::vector<PageId> pages = *pool.Take(1);
  pool.Give(pages);
  EXPECT_DEATH(pool.Give(pages), "check failed");
}

}  // namespace
}  // namespace baton
