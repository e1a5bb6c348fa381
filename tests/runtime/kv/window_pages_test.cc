// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv/window_pages.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(WindowPagesTest, GivesAPageBackWhenNoLaterRowSeesItsLastPosition) {
  BlockPool pool(8);
  WindowPages pages;
  EXPECT_EQ(pages.Grow(40, pool), (std::vector<PageId>{0, 1, 2}));
  pages.Trim(34, 20, pool);  // row 34 sees position 15
  EXPECT_EQ(pool.used(), 3);
  pages.Trim(35, 20, pool);
  EXPECT_EQ(pool.used(), 2);
  EXPECT_TRUE(pages.Grow(48, pool).empty());
  EXPECT_EQ(pages.Grow(49, pool), (std::vector<PageId>{0}));
}

TEST(WindowPagesTest, ClearGivesBackWhatIsHeldAndStartsOver) {
  BlockPool pool(8);
  WindowPages pages;
  (void)pages.Grow(40, pool);
  pages.Trim(40, 8, pool);
  pages.Clear(pool);
  EXPECT_EQ(pool.used(), 0);
  EXPECT_EQ(pages.Grow(17, pool), (std::vector<PageId>{0, 1}));
}

}  // namespace
}  // namespace baton
