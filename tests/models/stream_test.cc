// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "models/layers/norm.h"
#include "models/layers/weights.h"
#include "models/residual/boundary.h"
#include "models/step.h"
#include "tests/models/fake_weights.h"
#include "tests/models/pipeline.h"

namespace baton::testing {
namespace {

// A group that counts its sums and doubles what it sums.
class TwoEqualRanks : public Collective {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  Status AllReduce(ConstView x, View sum, Stream&) override {
    ++sums;
    for (int64_t r = 0; r < x.dim(0); ++r) {
      for (int64_t i = 0; i < x.dim(1); ++i) {
        sum.Row<float>(r)[i] = 2 * x.Row<float>(r)[i];
      }
    }
    return OkStatus();
  }
  Status AllGather(ConstView, View, Stream&) override { return OkStatus(); }
  int sums = 0;
};

// Two rows of four; a norm whose weight is 0.5 everywhere.
class StreamTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 2;
  static constexpr int64_t kHidden = 4;

  Hidden Rows(float value) {
    Tensor rows = step_.NewTensor(DType::kF32, {kRows, kHidden});
    Fill(rows.view(), value);
    return {std::move(rows), step_};
  }
  template <Sum S>
  Output<S> Made(float value) {
    Scratch rows = step_.NewScratch(kRows, kHidden);
    Fill(rows.view(), value);
    return {std::move(rows), step_};
  }
  static void Fill(View view, float value) {
    for (int64_t r = 0; r < view.dim(0); ++r) {
      std::fill_n(view.Row<float>(r), view.dim(1), value);
    }
  }
  static std::vector<float> Values(ConstView view) {
    std::vector<float> all;
    for (int64_t r = 0; r < view.dim(0); ++r) {
      all.insert(all.end(), view.Row<float>(r),
                 view.Row<float>(r) + view.dim(1));
    }
    return all;
  }

  Machine& machine_ = Machine::Get();
  ConstantWeights weights_{0.5f};
  SliceOptions options_ = {.dtype = DType::kF32,
                           .kernels = &machine_.kernels,
                           .device = machine_.device.get(),
                           .stream = machine_.stream.get(),
                           .weights = &weights_};
  WeightLoader loader_{options_, kHidden};
  Norm norm_{WeightScope(loader_, {}, ""), "norm", kHidden, 1e-6f};
  ScratchPool scratch_{machine_.device.get()};
  TwoEqualRanks ranks_;
  Step step_{
      {.device = machine_.device.get(),
       .stream = machine_.stream.get(),
       .scratch = &scratch_,
       .tp = &ranks_,
       .add = machine_.kernels.Find<Add>(DeviceKind::kCpu, DType::kF32).value(),
       .dtype = DType::kF32}};
  ::testing::Matcher<std::vector<float>> All(float value) {
    return ::testing::Each(::testing::FloatNear(value, 1e-5f));
  }
};

TEST_F(StreamTest, PrepareNormsAWrittenStreamAndKeepsIt) {
  auto [x, open] = boundary::Prepare(boundary::Start(Rows(3)), norm_);
  EXPECT_THAT(Values(x.view()), All(0.5f));
  Pending<Sum::kComplete> s = std::move(open).Leave(Made<Sum::kComplete>(0));
  EXPECT_THAT(Values(boundary::ToWire(std::move(s)).view()), All(3));
}

TEST_F(StreamTest, PrepareAddsACompleteOutputWithoutASum) {
  auto [x, open] = boundary::Read(boundary::Start(Rows(3)));
  Pending<Sum::kComplete> s = std::move(open).Leave(Made<Sum::kComplete>(2));
  auto [y, open2] = boundary::Prepare(std::move(s), norm_);
  EXPECT_THAT(Values(y.view()), All(0.5f));
  auto [copy, rest] = boundary::Snapshot(
      std::move(open2).AddPostNorm(Made<Sum::kComplete>(7), norm_));
  EXPECT_THAT(Values(copy.view()), All(5.5f));
  EXPECT_THAT(Values(boundary::ToWire(std::move(rest)).view()), All(5.5f));
  EXPECT_EQ(ranks_.sums, 0);
}

TEST_F(StreamTest, PrepareSumsAPartialOutputOnce) {
  auto [x, open] = boundary::Read(boundary::Start(Rows(1)));
  auto [y, open2] =
      boundary::Prepare(std::move(open).Leave(Made<Sum::kPartial>(2)), norm_);
  EXPECT_EQ(ranks_.sums, 1);
  Hidden folded =
      boundary::Fold(std::move(open2).Leave(Made<Sum::kComplete>(0)));
  EXPECT_THAT(
      Values(boundary::ToWire(boundary::Start(std::move(folded))).view()),
      All(5));
  EXPECT_EQ(ranks_.sums, 1);
}

TEST_F(StreamTest, AllReduceSumsAndMoveRowsDoesNot) {
  Output<Sum::kComplete> summed = AllReduce(Made<Sum::kPartial>(3), step_.tp());
  EXPECT_THAT(Values(summed.view()), All(6));
  Output<Sum::kComplete> moved = MoveRows(std::move(summed), step_.tp());
  EXPECT_THAT(Values(moved.view()), All(6));
  EXPECT_EQ(ranks_.sums, 1);
}

TEST_F(StreamTest, APlainReadSeesTheStreamItself) {
  auto [x, open] = boundary::Read(boundary::Start(Rows(4)));
  EXPECT_THAT(Values(x.view()), All(4));
  Written s = std::move(open).AddPostNorm(Made<Sum::kComplete>(9), norm_);
  EXPECT_THAT(Values(boundary::ToWire(std::move(s)).view()), All(4.5f));
}

TEST_F(StreamTest, SnapshotOfAPendingStreamAddsOnce) {
  auto [x, open] = boundary::Read(boundary::Start(Rows(1)));
  auto [copy, s] =
      boundary::Snapshot(std::move(open).Leave(Made<Sum::kComplete>(0.25f)));
  EXPECT_THAT(Values(copy.view()), All(1.25f));
  EXPECT_THAT(Values(boundary::ToWire(std::move(s)).view()), All(1.25f));
}

TEST_F(StreamTest, LoopNormMakesTheNormedRowsTheNextStream) {
  auto [x, open] = boundary::Read(boundary::Start(Rows(1)));
  Hidden folded =
      boundary::Fold(std::move(open).Leave(Made<Sum::kComplete>(2)));
  Written s = boundary::Start(boundary::LoopNorm(std::move(folded), norm_));
  EXPECT_THAT(Values(boundary::ToWire(std::move(s)).view()), All(0.5f));
}

TEST_F(StreamTest, ConsumedOutputsGiveTheirMemoryBack) {
  Written s = boundary::Start(Rows(1));
  for (int layer = 0; layer < 10; ++layer) {
    auto [x, open] = boundary::Prepare(std::move(s), norm_);
    { Input used = std::move(x); }
    auto [copy, next] =
        boundary::Snapshot(std::move(open).Leave(Made<Sum::kComplete>(1)));
    s = std::move(next);
  }
  EXPECT_EQ(scratch_.allocations(), 1);
  EXPECT_THAT(Values(boundary::ToWire(std::move(s)).view()), All(11));
}

TEST_F(StreamTest, FromWireTakesWhatTheStepExpects) {
  Tensor rows = step_.NewTensor(DType::kF32, {kRows, kHidden});
  Fill(rows.view(), 8);
  const boundary::WireStream wire{rows.view(), UnrolledLayer(3)};
  StatusOr<Written> s = boundary::FromWire(
      wire, {kRows, kHidden, DType::kF32, UnrolledLayer(3)}, step_);
  ASSERT_TRUE(s.ok()) << s.status();
  EXPECT_THAT(Values(boundary::ToWire(*std::move(s)).view()), All(8));
}

TEST_F(StreamTest, FromWireRefusesWhatTheStepDoesNotExpect) {
  Tensor rows = step_.NewTensor(DType::kF32, {kRows, kHidden});
  const boundary::WireStream wire{rows.view(), UnrolledLayer(3)};
  const boundary::WireSpec wrong[] = {
      {kRows + 1, kHidden, DType::kF32, UnrolledLayer(3)},
      {kRows, kHidden - 1, DType::kF32, UnrolledLayer(3)},
      {kRows, kHidden, DType::kBF16, UnrolledLayer(3)},
      {kRows, kHidden, DType::kF32, UnrolledLayer(4)}};
  for (const boundary::WireSpec& spec : wrong) {
    EXPECT_EQ(boundary::FromWire(wire, spec, step_).status().code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(step_.status().ok());
}

TEST_F(StreamTest, AFailureIsKeptAndLaterWorkIsSkipped) {
  step_.EnterLayer(UnrolledLayer(7), {});
  step_.Run<Add>([](const Add::Args&, Stream&) { return Internal("no power"); },
                 {});
  Written s = boundary::Start(Rows(3));
  auto [x, open] = boundary::Prepare(std::move(s), norm_);
  EXPECT_EQ(Message(step_.status()), "unrolled layer 7: no power");
  EXPECT_EQ(step_.status().code(), StatusCode::kInternal);
}

TEST(ScratchPoolTest, ReusesAndGrowsBlocks) {
  ScratchPool pool(Machine::Get().device.get());
  { Scratch small = pool.Take(DType::kF32, {1, 16}).value(); }
  { Scratch large = pool.Take(DType::kF32, {4, 16}).value(); }
  { Scratch small = pool.Take(DType::kBF16, {1, 16}).value(); }
  EXPECT_EQ(pool.allocations(), 2);
  EXPECT_EQ(pool.bytes(), 4 * 16 * 4);
}

}  // namespace
}  // namespace baton::testing
