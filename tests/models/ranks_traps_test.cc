// SPDX-License-Identifier: Apache-2.0
// What ranks would get wrong: each known mistake is made on purpose and seen.
#include "models/layers/weights.h"
#include "tests/models/ranks.h"

namespace baton::testing {
namespace {

// Whoever asks for the rows that a rank of two has of Spark's fused queries,
// keys and values gets those that an even cut of the tensor would give it.
class EvenlyCut final : public WeightSource {
 public:
  explicit EvenlyCut(const WeightSource* source) : source_(source) {}
  bool Has(const std::string& name) const override {
    return source_->Has(name);
  }
  StatusOr<HostRows> Rows(const TensorDecl& decl, int64_t begin,
                          int64_t end) const override {
    if (decl.split.kind != TensorSplit::Kind::kQueryKeyValue) {
      return source_->Rows(decl, begin, end);
    }
    for (const int rank : {0, 1}) {
      int64_t even = rank * decl.shape[0] / 2;
      for (const auto& run : decl.split.Rows(decl.shape[0], rank, 2)) {
        if (run.begin <= begin && end <= run.end) {
          even += begin - run.begin;
          return source_->Rows(decl, even, even + end - begin);
        }
        even += run.size();
      }
    }
    return NotFound("rows [{},{}) of {}", begin, end, decl.name);
  }
  Status Check(std::span<const TensorDecl>) const override {
    return OkStatus();
  }

 private:
  const WeightSource* source_;
};

// The fused tensor of 8 heads and 2 KV heads has 384 rows, but a
// rank's are not 192 in one run.
TEST(RanksTrapTest, SparkCutsTheFusedRowsEvenly) {
  Shared shared("spark2_5");
  const TensorSplit split = split::QueryKeyValue(8, 2);
  std::vector<int64_t> rows;
  for (const TensorSplit::Run& run : split.Rows(384, 1, 2)) {
    rows.insert(rows.end(), {run.begin, run.end});
  }
  EXPECT_THAT(rows, ::testing::ElementsAre(128, 256, 288, 320, 352, 384));
  EXPECT_EQ(split.NumRows(384, 1, 2), 192);
  EXPECT_EQ(split.NumRows(384, 3, 4), 64 + 32 + 32) << "a KV head's copy";

  const auto digests = [&](int ranks) {
    return shared.Run(DType::kF32, shared.Whole(), ranks)
        .Digests(Prompt(), 40, 2);
  };
  const std::vector<uint64_t> one = digests(1);
  EXPECT_EQ(digests(2), one);
  const std::unique_ptr<WeightSource> right = std::move(shared.weights);
  shared.weights = std::make_unique<EvenlyCut>(right.get());
  EXPECT_NE(digests(2), one);
}

}  // namespace
}  // namespace baton::testing
