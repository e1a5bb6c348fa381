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

constexpr LayerState kLatent = {.dtype = DType::kBF16, .latent_width = 24};
constexpr LayerState kFixed = {.dtype = DType::kBF16, .slot_bytes = 128};

TEST(KvCacheTest, CountsLatentsByPageAndFixedStatesBySlot) {
  EXPECT_EQ(kLatent.PageBytes(), 16 * 24 * 2);
  EXPECT_EQ(kFixed.TokenBytes(), 0);
  const KvSizes sizes = {.pages = 7, .window_pages = 3, .state_slots = 5};
  EXPECT_EQ(kLatent.Bytes(sizes), 7 * 16 * 24 * 2);
  EXPECT_EQ(kFixed.Bytes(sizes), 5 * 128);
  EXPECT_EQ(kAll.Bytes(sizes), 7 * 16 * 64);
}

TEST(KvCacheTest, RanksShareHeadsAndSlotsAndCopyLatents) {
  EXPECT_EQ(kAll.OfRank(2).TokenBytes(), kAll.TokenBytes() / 2);
  EXPECT_EQ(kLatent.OfRank(4), kLatent);
  EXPECT_EQ(kFixed.OfRank(2).slot_bytes, 64);
  // An equal part, aligned again.
  const LayerState odd = {.slot_bytes = 5 * 64};
  EXPECT_EQ(odd.OfRank(2).slot_bytes, 3 * 64);
  EXPECT_EQ(odd.OfRank(1), odd);
}

// Two layers with slots around one without.
class StateCopiesTest : public ::testing::Test {
 protected:
  static constexpr KvSizes kSizes = {.pages = 2, .state_slots = 3};

  StateCopiesTest()
      : device_(NewCpuDevice(1)),
        stream_(device_->NewStream().value()),
        cache_(KvCache::Create(*device_, {kFixed, kLatent, kFixed}, kSizes)
                   .value()) {
    for (int layer = 0; layer < 3; ++layer) {
      const int64_t bytes = cache_.State(layer).Bytes(kSizes);
      for (int64_t i = 0; i < bytes; ++i) {
        cache_.Pool(layer)[i] =
            static_cast<std::byte>(layer * 50 + i / 128 + 1);
      }
    }
  }
  // Of a slot; all its bytes must be equal.
  int ValueOf(int layer, int slot) {
    const std::byte* at = cache_.Pool(layer) + slot * 128;
    for (int i = 1; i < 128; ++i) EXPECT_EQ(at[i], at[0]);
    return static_cast<int>(at[0]);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  KvCache cache_;
};

TEST_F(StateCopiesTest, ClearsOneSlotOfOneLayer) {
  ASSERT_TRUE(cache_.ClearState(2, 1, *device_, *stream_).ok());
  EXPECT_EQ(ValueOf(2, 0), 101);
  EXPECT_EQ(ValueOf(2, 1), 0);
  EXPECT_EQ(ValueOf(2, 2), 103);
  EXPECT_EQ(ValueOf(0, 1), 2);
  ASSERT_TRUE(cache_.ClearState(1, 1, *device_, *stream_).ok());
  EXPECT_EQ(ValueOf(1, 1), 52) << "a layer without slots has nothing to clear";
}

TEST_F(StateCopiesTest, TakesASnapshotOfAllLayersAndRestoresIt) {
  ASSERT_TRUE(cache_.CopyState(0, 2, *device_, *stream_).ok());
  EXPECT_EQ(ValueOf(0, 2), 1);
  EXPECT_EQ(ValueOf(2, 2), 101);
  EXPECT_EQ(ValueOf(1, 2), 53) << "pages are no part of it";
  ASSERT_TRUE(cache_.ClearState(0, 0, *device_, *stream_).ok());
  ASSERT_TRUE(cache_.ClearState(2, 0, *device_, *stream_).ok());
  ASSERT_TRUE(cache_.CopyState(2, 0, *device_, *stream_).ok());
  EXPECT_EQ(ValueOf(0, 0), 1);
  EXPECT_EQ(ValueOf(2, 0), 101);
  EXPECT_EQ(ValueOf(0, 1), 2);
}

TEST_F(StateCopiesTest, ChecksThatThereIsSuchASlot) {
  EXPECT_DEATH((void)cache_.ClearState(0, 3, *device_, *stream_), "state_slot");
  EXPECT_DEATH((void)cache_.CopyState(0, -1, *device_, *stream_), "state_slot");
}

}  // namespace
}  // namespace baton
