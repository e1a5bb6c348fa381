// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/attention.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

// One layer's cache, and sequences whose pages lie scattered in it.
class Cache {
 public:
  Cache(DType dtype, int64_t kv_heads, int64_t head_dim, int64_t num_pages,
        int64_t window = 0)
      : pages_{nullptr, dtype, num_pages, kv_heads, head_dim, window},
        memory_(
            Poisoned(dtype, {num_pages, pages_.PageBytes() / SizeOf(dtype)})),
        free_(static_cast<size_t>(num_pages)) {
    pages_.data = memory_.view().data();
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), std::mt19937(5));
  }

  std::vector<PageId> Take(int64_t tokens) {
    const auto count =
        static_cast<size_t>((tokens + kPageTokens - 1) / kPageTokens);
    std::vector<PageId> taken(free_.end() - static_cast<ptrdiff_t>(count),
                              free_.end());
    free_.resize(free_.size() - count);
    return taken;
  }
  [[nodiscard]] const KvPages& pages() const { return pages_; }

 private:
  KvPages pages_;
  Tensor memory_;
  std::vector<PageId> free_;
};

struct Heads {
  int64_t q, kv, dim;
};
constexpr Heads kHeads[] = {{1, 1, 2},  {4, 2, 16},  {5, 1, 24},
                            {8, 2, 64}, {28, 1, 34}, {6, 3, 80}};

class AttentionTest : public IsaTest {
 protected:
  static constexpr std::span<const PageId> kNone = {};

  // Writes k and v of the rows of `batch`, then attends.
  Tensor Attend(Machine& machine, const Tensor& q, const Tensor& k,
                const Tensor& v, const KvPages& pages,
                const AttentionBatch& batch) {
    const DType dtype = q.dtype();
    Tensor out = Poisoned(dtype, q.shape());
    EXPECT_TRUE(
        machine.Run<KvWrite>(dtype, {k.view(), v.view(), pages, &batch}).ok());
    EXPECT_TRUE(machine
                    .Run<PagedAttention>(
                        dtype, {q.view(), pages, &batch, 0.3f, out.view()})
                    .ok());
    return out;
  }

  // Rows [0, tokens) of one sequence in pieces of `chunk`. Where there is a
  // window, pages that no later row sees are taken away.
  Tensor InChunks(Machine& machine, const Tensor& q, const Tensor& k,
                  const Tensor& v, int64_t chunk, int64_t window = 0) {
    const int64_t tokens = q.shape()[0];
    Cache cache(q.dtype(), k.shape()[1], k.shape()[2], 64, window);
    std::vector<PageId> pages = cache.Take(tokens);
    const PageId poisoned = cache.Take(1).front();
    Tensor all = Poisoned(q.dtype(), q.shape());
    for (int64_t first = 0; first < tokens; first += chunk) {
      const int64_t rows = std::min(chunk, tokens - first);
      for (int64_t p = 0; (p + 1) * kPageTokens - 1 <= first - window; ++p) {
        if (window > 0) pages[static_cast<size_t>(p)] = poisoned;
      }
      const SequenceSpan span = {.rows = rows,
                                 .first_position = first,
                                 .pages = window > 0 ? kNone : pages,
                                 .window_pages = pages};
      const AttentionBatch batch = {{&span, 1}, {}};
      const auto part = [&](const Tensor& t) {
        return t.view().Rows(first, first + rows);
      };
      EXPECT_TRUE(machine
                      .Run<KvWrite>(q.dtype(),
                                    {part(k), part(v), cache.pages(), &batch})
                      .ok());
      EXPECT_TRUE(machine
                      .Run<PagedAttention>(q.dtype(), {part(q), cache.pages(),
                                                       &batch, 0.3f, part(all)})
                      .ok());
    }
    return all;
  }
};
BATON_FOR_EACH_ISA(AttentionTest);

// Softmax over all keys from `first` at once, in double.
float Direct(const Tensor& q, const Tensor& k, const Tensor& v, int64_t row,
             int64_t head, int64_t d, int64_t first = 0) {
  const int64_t dim = q.shape()[2];
  const int64_t kv = head / (q.shape()[1] / k.shape()[1]);
  double sum = 0, weighted = 0;
  for (int64_t t = first; t <= row; ++t) {
    double dot = 0;
    for (int64_t i = 0; i < dim; ++i) {
      dot += static_cast<double>(At(q.view(), row, head * dim + i)) *
             static_cast<double>(At(k.view(), t, kv * dim + i));
    }
    const double weight = std::exp(dot * 0.3);
    sum += weight;
    weighted += weight * static_cast<double>(At(v.view(), t, kv * dim + d));
  }
  return static_cast<float>(weighted / sum);
}

TEST_P(AttentionTest, IsASoftmaxOverTheKeysBehindARow) {
  for (const DType dtype : kFloatTypes) {
    const Tensor q = Random(dtype, {150, 4, 16}, 1);
    const Tensor k = Random(dtype, {150, 2, 16}, 2);
    const Tensor v = Random(dtype, {150, 2, 16}, 3);
    const Tensor out = InChunks(machine(), q, k, v, 150);
    for (const int64_t row : {0, 1, 15, 16, 63, 64, 65, 127, 149}) {
      for (int64_t i = 0; i < 64; i += 7) {
        const float want = Direct(q, k, v, row, i / 16, i % 16);
        EXPECT_NEAR(At(out.view(), row, i), want,
                    std::abs(want) * Tolerance(dtype) + 1e-5f);
      }
    }
  }
}

TEST_P(AttentionTest, AgreesWithTheReference) {
  Machine reference(CpuIsa::kReference);
  for (const DType dtype : kFloatTypes) {
    for (const Heads& heads : kHeads) {
      const Tensor q = Random(dtype, {83, heads.q, heads.dim}, 1);
      const Tensor k = Random(dtype, {83, heads.kv, heads.dim}, 2);
      const Tensor v = Random(dtype, {83, heads.kv, heads.dim}, 3);
      ExpectNear(InChunks(machine(), q, k, v, 83).view(),
                 InChunks(reference, q, k, v, 83).view(), Tolerance(dtype),
                 1e-5f);
    }
  }
}

// The contract: a prompt in one piece, in chunks, and token by token.
TEST_P(AttentionTest, GivesARowTheSameBitsInAnyChunk) {
  for (const DType dtype : kFloatTypes) {
    for (const Heads& heads : kHeads) {
      const Tensor q = Random(dtype, {139, heads.q, heads.dim}, 1);
      const Tensor k = Random(dtype, {139, heads.kv, heads.dim}, 2);
      const Tensor v = Random(dtype, {139, heads.kv, heads.dim}, 3);
      const Tensor whole = InChunks(machine(), q, k, v, 139);
      for (const int64_t chunk : {1, 7, 64}) {
        EXPECT_TRUE(
            SameBits(InChunks(machine(), q, k, v, chunk).view(), whole.view()))
            << Name(dtype) << " chunk " << chunk << " dim " << heads.dim;
      }
    }
  }
}

constexpr int64_t kWindows[] = {1, 5, 16, 33, 64, 100, 139, 1000};

TEST_P(AttentionTest, SeesTheWindowBehindARowItselfIncluded) {
  for (const DType dtype : kFloatTypes) {
    const Tensor q = Random(dtype, {150, 4, 16}, 1);
    const Tensor k = Random(dtype, {150, 2, 16}, 2);
    const Tensor v = Random(dtype, {150, 2, 16}, 3);
    for (const int64_t window : kWindows) {
      const Tensor out = InChunks(machine(), q, k, v, 150, window);
      for (const int64_t row : {0, 1, 15, 32, 63, 64, 65, 100, 127, 149}) {
        const int64_t first = std::max<int64_t>(0, row + 1 - window);
        for (int64_t i = 0; i < 64; i += 7) {
          const float want = Direct(q, k, v, row, i / 16, i % 16, first);
          EXPECT_NEAR(At(out.view(), row, i), want,
                      std::abs(want) * Tolerance(dtype) + 1e-5f)
              << "window " << window << " row " << row;
        }
      }
    }
  }
}

// As above, and pages behind the window are gone: their memory is NaN.
TEST_P(AttentionTest, GivesARowOfAWindowTheSameBitsInAnyChunk) {
  for (const DType dtype : kFloatTypes) {
    for (const Heads& heads : kHeads) {
      const Tensor q = Random(dtype, {139, heads.q, heads.dim}, 1);
      const Tensor k = Random(dtype, {139, heads.kv, heads.dim}, 2);
      const Tensor v = Random(dtype, {139, heads.kv, heads.dim}, 3);
      for (const int64_t window : kWindows) {
        const Tensor whole = InChunks(machine(), q, k, v, 139, window);
        for (const int64_t chunk : {1, 7, 64}) {
          EXPECT_TRUE(SameBits(
              InChunks(machine(), q, k, v, chunk, window).view(), whole.view()))
              << Name(dtype) << " chunk " << chunk << " window " << window;
        }
      }
    }
  }
}

// A window that holds all keys changes no bit.
TEST_P(AttentionTest, GivesTheBitsOfNoWindowWhereTheWindowHoldsAll) {
  for (const DType dtype : kFloatTypes) {
    const Tensor q = Random(dtype, {139, 8, 64}, 1);
    const Tensor k = Random(dtype, {139, 2, 64}, 2);
    const Tensor v = Random(dtype, {139, 2, 64}, 3);
    EXPECT_TRUE(SameBits(InChunks(machine(), q, k, v, 7, 139).view(),
                         InChunks(machine(), q, k, v, 7).view()));
  }
}

TEST_P(AttentionTest, GivesARowTheSameBitsBesideOtherSequences) {
  for (const DType dtype : kFloatTypes) {
    for (const int threads : {1, 3}) {
      Machine several(GetParam(), threads);
      const Tensor q = Random(dtype, {120, 8, 32}, 1);
      const Tensor k = Random(dtype, {120, 2, 32}, 2);
      const Tensor v = Random(dtype, {120, 2, 32}, 3);
      Cache cache(dtype, 2, 32, 32);
      const std::vector<PageId> a = cache.Take(30), b = cache.Take(1),
                                c = cache.Take(89);
      const SequenceSpan spans[] = {
          {0, 30, 0, a}, {30, 1, 0, b}, {31, 0, 0, {}}, {31, 89, 0, c}};
      const AttentionBatch batch = {spans, {}};
      const Tensor all = Attend(several, q, k, v, cache.pages(), batch);
      for (const SequenceSpan& span : spans) {
        const auto alone = [&](const Tensor& t) {
          const View rows =
              t.view().Rows(span.first_row, span.first_row + span.rows);
          Tensor copy = Poisoned(dtype, rows.shape());
          if (rows.bytes() > 0) {
            std::memcpy(copy.view().data(), rows.data(),
                        static_cast<size_t>(rows.bytes()));
          }
          return copy;
        };
        EXPECT_TRUE(SameBits(
            InChunks(machine(), alone(q), alone(k), alone(v), 89).view(),
            all.view().Rows(span.first_row, span.first_row + span.rows)));
      }
    }
  }
}

TEST_P(AttentionTest, TakesZeroRows) {
  Cache cache(DType::kF32, 1, 4, 1);
  const Tensor none = Poisoned(DType::kF32, {0, 1, 4});
  const AttentionBatch batch;
  Attend(machine(), none, none, none, cache.pages(), batch);
}

TEST_P(AttentionTest, RefusesABatchThatDoesNotFit) {
  Cache cache(DType::kF32, 1, 4, 2);
  const Tensor q = Random(DType::kF32, {17, 2, 4}, 1);
  const Tensor k = Random(DType::kF32, {17, 1, 4}, 1);
  const std::vector<PageId> both = {0, 1}, one = {0}, outside = {0, 2};
  const SequenceSpan wrong[] = {{0, 17, 0, one},      // too few pages
                                {0, 17, 0, outside},  // no such page
                                {0, 16, 0, both},     // a row is left over
                                {1, 17, 0, both}};    // begins late
  for (const SequenceSpan& span : wrong) {
    const AttentionBatch batch = {{&span, 1}, {}};
    EXPECT_EQ(machine()
                  .Run<KvWrite>(DType::kF32,
                                {k.view(), k.view(), cache.pages(), &batch})
                  .code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(machine()
                  .Run<PagedAttention>(DType::kF32, {q.view(), cache.pages(),
                                                     &batch, 1, q.view()})
                  .code(),
              StatusCode::kInvalidArgument);
  }
}

class KvWriteTest : public IsaTest {};
BATON_FOR_EACH_ISA(KvWriteTest);

TEST_P(KvWriteTest, PutsTokensInLanesOfTheirPage) {
  for (const DType dtype : kFloatTypes) {
    Cache cache(dtype, 3, 6, 4);
    const std::vector<PageId> pages = {2, 1};
    const SequenceSpan span = {0, 5, 14, pages};
    const AttentionBatch batch = {{&span, 1}, {}};
    const Tensor k = Random(dtype, {5, 3, 6}, 1);
    const Tensor v = Random(dtype, {5, 3, 6}, 2);
    ASSERT_TRUE(
        machine()
            .Run<KvWrite>(dtype, {k.view(), v.view(), cache.pages(), &batch})
            .ok());
    const int64_t page_elements = 2 * 3 * 6 * 16;
    const ConstView memory(cache.pages().data, dtype, {4, page_elements});
    const int64_t pair = dtype == DType::kBF16 ? 2 : 1;
    for (int64_t row = 0; row < 5; ++row) {
      const PageId page = pages[static_cast<size_t>((14 + row) / 16)];
      const int64_t slot = (14 + row) % 16;
      for (int64_t i = 0; i < 18; ++i) {
        const int64_t head = i / 6, d = i % 6;
        const int64_t key_at =
            head * 96 + (d / pair * 16 + slot) * pair + d % pair;
        const int64_t value_at = (3 + head) * 96 + slot * 6 + d;
        ASSERT_EQ(At(memory, page, key_at), At(k.view(), row, i));
        ASSERT_EQ(At(memory, page, value_at), At(v.view(), row, i));
      }
    }
  }
}

}  // namespace
}  // namespace baton
