// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/ops/attention.h"
#include "kernels/ops/norm.h"
#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

constexpr int64_t kRows = 5, kHeads = 6, kKvHeads = 2, kHeadDim = 10;

class RotateAndStoreTest : public IsaTest {
 protected:
  RotateAndStoreTest()
      : positions_{3, 4, 5, 6, 7},
        span_{.rows = kRows, .first_position = 3, .pages = pages_},
        batch_{{&span_, 1}, positions_} {}

  // One matrix [rows, q | k | v], as projections leave it.
  struct Fused {
    Tensor qkv;
    Tensor pool;
    View q, k, v;
    KvPages pages;
  };
  static Fused Make(DType dtype) {
    Fused f;
    constexpr int64_t kColumns = (kHeads + 2 * kKvHeads) * kHeadDim;
    f.qkv = Random(dtype, {kRows, kColumns}, 3);
    const int64_t q = kHeads * kHeadDim;
    const int64_t kv = kKvHeads * kHeadDim;
    const View all = f.qkv.view();
    f.q = all.Columns(0, q).Heads(kHeads);
    f.k = all.Columns(q, q + kv).Heads(kKvHeads);
    f.v = all.Columns(q + kv, kColumns).Heads(kKvHeads);
    f.pages = {.dtype = dtype,
               .num_pages = 1,
               .kv_heads = kKvHeads,
               .head_dim = kHeadDim};
    f.pool = Poisoned(dtype, {1, f.pages.PageBytes() / SizeOf(dtype)});
    f.pages.data = f.pool.view().data();
    return f;
  }
  RotateAndStore::Args ArgsOf(const Fused& f) const {
    return {.q = f.q,
            .k = f.k,
            .v = f.v,
            .amplitude = 1.25f,
            .pages = f.pages,
            .batch = &batch_};
  }

  std::vector<PageId> pages_ = {0};
  std::vector<int32_t> positions_;
  SequenceSpan span_;
  AttentionBatch batch_;
};

TEST_P(RotateAndStoreTest, IsNormThenRopeThenKvWrite) {
  const Tensor inv_freq = Filled(DType::kF32, {3}, {1.0f, 0.3f, 0.02f});
  for (const DType dtype : kFloatTypes) {
    const Fused fused = Make(dtype);
    const Fused apart = Make(dtype);
    const Tensor q_norm = Random(dtype, {kHeadDim}, 5);
    const Tensor k_norm = Random(dtype, {kHeadDim}, 6);
    RotateAndStore::Args args = ArgsOf(fused);
    args.q_norm = q_norm.view();
    args.k_norm = k_norm.view();
    args.eps = 1e-5f;
    args.inv_freq = inv_freq.view();
    ASSERT_TRUE(machine().Run<RotateAndStore>(dtype, args).ok());

    const std::span<const float> freq(inv_freq.view().Row<float>(0), 3);
    for (const auto& [x, weight] : {std::pair(apart.q, q_norm.view()),
                                    std::pair(apart.k, k_norm.view())}) {
      ASSERT_TRUE(machine().Run<RmsNorm>(dtype, {x, weight, x, 1e-5f}).ok());
      ASSERT_TRUE(
          machine().Run<Rope>(dtype, {x, positions_, freq, 1.25f}).ok());
    }
    ASSERT_TRUE(
        machine()
            .Run<KvWrite>(dtype, {apart.k, apart.v, apart.pages, &batch_})
            .ok());
    EXPECT_TRUE(SameBits(fused.qkv.view(), apart.qkv.view()));
    EXPECT_TRUE(SameBits(fused.pool.view(), apart.pool.view()));
  }
}

TEST_P(RotateAndStoreTest, IsFollowedByAttentionInOneOp) {
  const Tensor inv_freq = Filled(DType::kF32, {3}, {1.0f, 0.3f, 0.02f});
  for (const DType dtype : kFloatTypes) {
    const Fused apart = Make(dtype);
    const Fused joined = Make(dtype);
    const Tensor want = Poisoned(dtype, {kRows, kHeads * kHeadDim});
    const Tensor out = Poisoned(dtype, {kRows, kHeads * kHeadDim});
    for (const Fused* f : {&apart, &joined}) {  // earlier tokens
      std::memset(f->pages.data, 0, static_cast<size_t>(f->pool.bytes()));
    }
    RotateAndStore::Args args = ArgsOf(apart);
    args.inv_freq = inv_freq.view();
    ASSERT_TRUE(machine().Run<RotateAndStore>(dtype, args).ok());
    ASSERT_TRUE(
        machine()
            .Run<PagedAttention>(dtype, {.q = apart.q,
                                         .pages = apart.pages,
                                         .batch = &batch_,
                                         .scale = 0.3f,
                                         .out = want.view().Heads(kHeads)})
            .ok());
    args = ArgsOf(joined);
    args.inv_freq = inv_freq.view();
    ASSERT_TRUE(
        machine()
            .Run<RotateAndAttend>(
                dtype,
                {.entry = args, .scale = 0.3f, .out = out.view().Heads(kHeads)})
            .ok());
    EXPECT_TRUE(SameBits(out.view(), want.view()));
    EXPECT_TRUE(SameBits(joined.pool.view(), apart.pool.view()));
  }
}

TEST_P(RotateAndStoreTest, WithoutWeightsAndFrequenciesOnlyStores) {
  for (const DType dtype : kFloatTypes) {
    const Fused fused = Make(dtype);
    const Fused apart = Make(dtype);
    ASSERT_TRUE(machine().Run<RotateAndStore>(dtype, ArgsOf(fused)).ok());
    ASSERT_TRUE(
        machine()
            .Run<KvWrite>(dtype, {apart.k, apart.v, apart.pages, &batch_})
            .ok());
    EXPECT_TRUE(SameBits(fused.qkv.view(), apart.qkv.view()));
    EXPECT_TRUE(SameBits(fused.pool.view(), apart.pool.view()));
  }
}

BATON_FOR_EACH_ISA(RotateAndStoreTest);

}  // namespace
}  // namespace baton
