// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/latent_attention.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

struct Sizes {
  int64_t heads, latent, shared, head_width;
};
// The last is wider than a tile has queries.
constexpr Sizes kSizes[] = {{1, 1, 1, 1},
                            {4, 16, 8, 20},
                            {5, 37, 3, 11},
                            {3, 64, 0, 8},
                            {19, 80, 16, 48}};

// One layer's pool, poisoned, and pages that lie scattered in it.
class Pool {
 public:
  Pool(DType dtype, const Sizes& sizes, int64_t num_pages)
      : pages_{nullptr, dtype, num_pages, sizes.latent, sizes.shared},
        memory_(Poisoned(dtype, {num_pages, kPageTokens, pages_.Width()})),
        order_(static_cast<size_t>(num_pages)) {
    pages_.data = memory_.view().data();
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(5));
  }
  std::vector<PageId> Take(int64_t tokens) {
    const auto end = order_.end();
    const auto count = (tokens + kPageTokens - 1) / kPageTokens;
    std::vector<PageId> taken(end - count, end);
    order_.erase(end - count, end);
    return taken;
  }
  [[nodiscard]] const LatentPages& pages() const { return pages_; }
  [[nodiscard]] ConstView memory() const { return memory_.view(); }

 private:
  LatentPages pages_;
  Tensor memory_;
  std::vector<PageId> order_;
};

struct Inputs {
  Inputs(DType dtype, const Sizes& s, int64_t tokens)
      : q_latent(Random(dtype, {tokens, s.heads, s.latent}, 1)),
        q(Random(dtype, {tokens, s.heads, s.head_width}, 2)),
        rows(Random(dtype, {tokens, s.latent + s.shared}, 3)) {}
  Tensor q_latent, q, rows;
};

class LatentAttentionTest : public IsaTest {
 protected:
  static constexpr float kScale = 0.21f;

  static void Attend(Machine& machine, const Inputs& in, int64_t begin,
                     int64_t end, const LatentPages& pages,
                     const AttentionBatch& batch, View out) {
    const DType dtype = in.q.dtype();
    EXPECT_TRUE(machine
                    .Run<LatentWrite>(
                        dtype, {in.rows.view().Rows(begin, end), pages, &batch})
                    .ok());
    EXPECT_TRUE(
        machine
            .Run<LatentAttention>(dtype, {in.q_latent.view().Rows(begin, end),
                                          in.q.view().Rows(begin, end), pages,
                                          &batch, kScale, out})
            .ok());
  }
  // One sequence in pieces of `chunk`.
  static Tensor InChunks(Machine& machine, const Inputs& in, const Sizes& sizes,
                         int64_t chunk) {
    const int64_t tokens = in.q.shape()[0];
    Pool pool(in.q.dtype(), sizes, 32);
    const std::vector<PageId> pages = pool.Take(tokens);
    Tensor out = Poisoned(in.q.dtype(), in.q_latent.shape());
    for (int64_t first = 0; first < tokens; first += chunk) {
      const int64_t end = std::min(first + chunk, tokens);
      const SequenceSpan span = {0, end - first, first, pages};
      const AttentionBatch batch = {{&span, 1}, {}, {}};
      Attend(machine, in, first, end, pool.pages(), batch,
             out.view().Rows(first, end));
    }
    return out;
  }
};
BATON_FOR_EACH_ISA(LatentAttentionTest);

// Softmax over all tokens at once, in double.
double Direct(const Inputs& in, const Sizes& s, int64_t row, int64_t head,
              int64_t d, double scale) {
  double sum = 0, weighted = 0;
  for (int64_t t = 0; t <= row; ++t) {
    double dot = 0;
    for (int64_t i = 0; i < s.latent + s.shared; ++i) {
      const float q =
          i < s.latent
              ? At(in.q_latent.view(), row, head * s.latent + i)
              : At(in.q.view(), row,
                   (head + 1) * s.head_width - s.shared + i - s.latent);
      dot += static_cast<double>(q) *
             static_cast<double>(At(in.rows.view(), t, i));
    }
    const double weight = std::exp(dot * scale);
    sum += weight;
    weighted += weight * static_cast<double>(At(in.rows.view(), t, d));
  }
  return weighted / sum;
}

TEST_P(LatentAttentionTest, IsASoftmaxOverTheTokensBehindARow) {
  for (const DType dtype : kFloatTypes) {
    for (const Sizes& s : kSizes) {
      const Inputs in(dtype, s, 140);
      const Tensor out = InChunks(machine(), in, s, 140);
      for (const int64_t row : {0, 1, 15, 16, 63, 64, 65, 127, 139}) {
        for (int64_t i = 0; i < s.heads * s.latent; i += 7) {
          const double want =
              Direct(in, s, row, i / s.latent, i % s.latent, kScale);
          EXPECT_NEAR(At(out.view(), row, i), want,
                      std::abs(want) * Tolerance(dtype) + 1e-5)
              << "row " << row << " latent " << s.latent;
        }
      }
    }
  }
}

TEST_P(LatentAttentionTest, GivesARowTheSameBitsInAnyChunk) {
  for (const DType dtype : kFloatTypes) {
    for (const Sizes& s : kSizes) {
      const Inputs in(dtype, s, 131);
      const Tensor whole = InChunks(machine(), in, s, 131);
      for (const int64_t chunk : {1, 7, 64}) {
        EXPECT_TRUE(
            SameBits(InChunks(machine(), in, s, chunk).view(), whole.view()))
            << Name(dtype) << " chunk " << chunk << " latent " << s.latent;
      }
    }
  }
}

TEST_P(LatentAttentionTest, GivesARowTheSameBitsBesideOtherSequences) {
  const Sizes s = kSizes[4];
  const Inputs in(DType::kBF16, s, 100);
  for (const int threads : {1, 3}) {
    Machine several(GetParam(), threads);
    Pool pool(DType::kBF16, s, 32);
    const std::vector<PageId> a = pool.Take(70), b = pool.Take(30);
    const SequenceSpan spans[] = {
        {0, 70, 0, a}, {70, 0, 0, {}}, {70, 30, 0, b}};
    const AttentionBatch batch = {spans, {}, {}};
    const Tensor all = Poisoned(DType::kBF16, in.q_latent.shape());
    Attend(several, in, 0, 100, pool.pages(), batch, all.view());
    for (const SequenceSpan& span : {spans[0], spans[2]}) {
      const int64_t begin = span.first_row, end = begin + span.rows;
      Pool own(DType::kBF16, s, 8);
      const std::vector<PageId> pages = own.Take(span.rows);
      const SequenceSpan one = {0, span.rows, 0, pages};
      const AttentionBatch alone = {{&one, 1}, {}, {}};
      const Tensor out = Poisoned(DType::kBF16, {span.rows, s.heads, s.latent});
      Attend(machine(), in, begin, end, own.pages(), alone, out.view());
      EXPECT_TRUE(SameBits(out.view(), all.view().Rows(begin, end)));
    }
  }
}

TEST_P(LatentAttentionTest, StoresARowAsItCame) {
  const Sizes s = kSizes[2];
  Pool pool(DType::kBF16, s, 4);
  const std::vector<PageId> pages = {2, 0};
  const SequenceSpan span = {0, 5, 14, pages};
  const AttentionBatch batch = {{&span, 1}, {}, {}};
  const Inputs in(DType::kBF16, s, 5);
  ASSERT_TRUE(machine()
                  .Run<LatentWrite>(DType::kBF16,
                                    {in.rows.view(), pool.pages(), &batch})
                  .ok());
  for (int64_t row = 0; row < 5; ++row) {
    const int64_t at = 14 + row;
    const ConstView page(
        pool.pages().data +
            pages[static_cast<size_t>(at / 16)] * pool.pages().PageBytes(),
        DType::kBF16, {kPageTokens, 40});
    EXPECT_TRUE(SameBits(page.Rows(at % 16, at % 16 + 1),
                         in.rows.view().Rows(row, row + 1)));
  }
}

TEST_P(LatentAttentionTest, TakesZeroRows) {
  const Sizes s = kSizes[1];
  const Inputs in(DType::kF32, s, 0);
  EXPECT_EQ(InChunks(machine(), in, s, 1).shape()[0], 0);
}

TEST_P(LatentAttentionTest, RefusesWhatDoesNotFit) {
  const Sizes s = kSizes[1];
  const Inputs in(DType::kF32, s, 17);
  Pool pool(DType::kF32, s, 2);
  const Tensor out = Poisoned(DType::kF32, in.q_latent.shape());
  const std::vector<PageId> both = {0, 1}, one = {0}, outside = {0, 2};
  const SequenceSpan wrong[] = {
      {0, 17, 0, one}, {0, 17, 0, outside}, {0, 16, 0, both}, {1, 17, 0, both}};
  const auto run = [&](const AttentionBatch& batch, ConstView rows,
                       const LatentPages& pages) {
    const StatusCode code =
        machine().Run<LatentWrite>(DType::kF32, {rows, pages, &batch}).code();
    EXPECT_EQ(
        machine()
            .Run<LatentAttention>(DType::kF32, {in.q_latent.view(), in.q.view(),
                                                pages, &batch, 1, out.view()})
            .code(),
        StatusCode::kInvalidArgument);
    return code;
  };
  for (const SequenceSpan& span : wrong) {
    EXPECT_EQ(run({{&span, 1}, {}, {}}, in.rows.view(), pool.pages()),
              StatusCode::kInvalidArgument);
  }
  const SequenceSpan good = {0, 17, 0, both};
  LatentPages wider = pool.pages();
  ++wider.latent;
  EXPECT_EQ(run({{&good, 1}, {}, {}}, in.rows.view(), wider),
            StatusCode::kInvalidArgument);
}

class HeadMatmulTest : public IsaTest {};
BATON_FOR_EACH_ISA(HeadMatmulTest);

// Heads' columns lie further apart than they are wide.
TEST_P(HeadMatmulTest, HasTheBitsOfAMatmulOfEachHead) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t rows : {0, 1, 5}) {
      const Tensor x = Random(dtype, {rows, 3 * 50}, 1);
      std::vector<Weight> weights;
      std::vector<PackedMatrix> matrices;
      for (int h = 0; h < 3; ++h) {
        weights.emplace_back(machine(), dtype, 67, 37, 10 + h);
        matrices.push_back(weights.back().matrix());
      }
      const Tensor out = Poisoned(dtype, {rows, 3 * 67});
      ASSERT_TRUE(machine()
                      .Run<HeadMatmul>(dtype, {x.view(), matrices, out.view()})
                      .ok());
      for (int64_t h = 0; h < 3; ++h) {
        const Tensor want = Poisoned(dtype, {rows, 67});
        ASSERT_TRUE(
            machine()
                .Run<Matmul>(dtype, {.x = x.view().Columns(h * 50, h * 50 + 37),
                                     .weight = matrices[static_cast<size_t>(h)],
                                     .out = want.view()})
                .ok());
        EXPECT_TRUE(
            SameBits(out.view().Columns(h * 67, (h + 1) * 67), want.view()));
      }
    }
  }
}

TEST_P(HeadMatmulTest, RefusesWhatDoesNotFit) {
  const Weight wide(machine(), DType::kF32, 5, 8, 1);
  const Weight thin(machine(), DType::kF32, 5, 4, 1);
  const Tensor x = Poisoned(DType::kF32, {2, 16});
  const Tensor out = Poisoned(DType::kF32, {2, 10});
  const std::vector<PackedMatrix> two = {wide.matrix(), wide.matrix()};
  const std::vector<PackedMatrix> mixed = {wide.matrix(), thin.matrix()};
  const View o = out.view();
  const HeadMatmul::Args wrong[] = {{x.view().Columns(0, 14), two, o},
                                    {x.view().Columns(0, 15), two, o},
                                    {x.view(), two, o.Columns(0, 9)},
                                    {x.view(), mixed, o},
                                    {x.view(), {}, o}};
  EXPECT_TRUE(machine().Run<HeadMatmul>(DType::kF32, {x.view(), two, o}).ok());
  for (const HeadMatmul::Args& args : wrong) {
    EXPECT_EQ(machine().Run<HeadMatmul>(DType::kF32, args).code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton
