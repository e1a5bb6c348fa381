// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv/kv_cache.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

constexpr LayerState kAll = {
    .dtype = DType::kBF16, .kv_heads = 2, .head_dim = 8};
constexpr LayerState kWindowed = {
    .dtype = DType::kBF16, .kv_heads = 2, .head_dim = 8, .window = 20};

TEST(KvCacheTest, GivesLayersAPoolOfTheirKindOfPages) {
  EXPECT_EQ(kAll.TokenBytes(), 2 * 2 * 8 * 2);
  EXPECT_EQ(kAll.PageBytes(), 16 * 64);
  const KvSizes sizes = {.pages = 7, .window_pages = 3};
  const std::unique_ptr<Device> device = NewCpuDevice(1);
  const KvCache cache =
      KvCache::Create(*device, {kAll, kWindowed, kAll}, sizes).value();
  EXPECT_EQ(cache.State(1), kWindowed);
  EXPECT_EQ(cache.State(1).Pages(sizes), 3);
  EXPECT_EQ(cache.State(2).Pages(sizes), 7);
  EXPECT_EQ(cache.bytes(), (7 + 3 + 7) * 16 * 64);
  EXPECT_NE(cache.Pool(0), cache.Pool(2));
}

}  // namespace
}  // namespace baton
