// SPDX-License-Identifier: Apache-2.0
// What a slice loads, what it refuses, what it allocates.
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/ops/matmul.h"
#include "runtime/weights/check.h"
#include "tests/models/cuts.h"
#include "tests/models/fake_weights.h"

namespace baton::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Delegates, and counts.
class CountingDevice : public Device {
 public:
  DeviceKind kind() const override { return real_.kind(); }
  StatusOr<Buffer> Allocate(int64_t bytes) override {
    ++allocations;
    return real_.Allocate(bytes);
  }
  StatusOr<Buffer> AllocateHost(int64_t bytes) override {
    return real_.AllocateHost(bytes);
  }
  StatusOr<std::unique_ptr<Stream>> NewStream() override {
    return real_.NewStream();
  }
  Status Copy(std::byte* to, const std::byte* from, int64_t bytes,
              Stream& stream) override {
    return real_.Copy(to, from, bytes, stream);
  }
  Status Clear(std::byte* data, int64_t bytes, Stream& stream) override {
    return real_.Clear(data, bytes, stream);
  }
  int allocations = 0;

 private:
  Device& real_ = *Machine::Get().device;
};

class SliceTest : public ::testing::Test {
 protected:
  StatusOr<std::unique_ptr<StageSlice>> Build(
      std::vector<UnrolledRange> ranges) {
    options_.ranges = std::move(ranges);
    return tiny_.decoder->build(tiny_.config(), options_);
  }
  // One sequence of three rows at position 0 through layers [1, 3).
  VisitArgs Middle() {
    return {.range = {1, 3}, .batch = &batch_, .stream = stream_.view()};
  }
  StatusCode CodeOf(const VisitArgs& args) {
    return slice_->Run(args).status().code();
  }
  void BuildMiddle() { slice_ = *Build({{1, 3}, {4, 6}}); }

  TinyCheckpoint tiny_ = TinyCheckpoint::Open("nanbeige");
  EditedWeights weights_{tiny_.files.get()};
  CountingDevice device_;
  SliceOptions options_ = {.dtype = DType::kF32,
                           .kv = {.pages = 4},
                           .kernels = &Machine::Get().kernels,
                           .device = &device_,
                           .stream = Machine::Get().stream.get(),
                           .weights = &weights_};
  std::vector<PageId> pages_ = {2, 0};
  std::vector<int32_t> positions_ = {0, 1, 2};
  std::vector<SequenceSpan> spans_ = {
      {.rows = 3, .first_position = 0, .pages = pages_}};
  AttentionBatch batch_{spans_, positions_};
  Tensor stream_ =
      Tensor::AllocateHost(DType::kF32, {3, tiny_.info.hidden}).value();
  std::unique_ptr<StageSlice> slice_;
};

TEST_F(SliceTest, LoadsOnlyWhatItsRangesNeed) {
  ASSERT_TRUE(Build({{1, 2}}).ok());
  EXPECT_THAT(weights_.asked, Not(Contains("model.embed_tokens.weight")));
  EXPECT_THAT(weights_.asked, Not(Contains("model.norm.weight")));
  EXPECT_THAT(weights_.asked, Not(Contains("lm_head.weight")));
  for (const std::string& name : weights_.asked) {
    EXPECT_THAT(name, HasSubstr("model.layers.1."));
  }
  EXPECT_EQ(weights_.asked.size(), 9);
  EXPECT_EQ(weights_.dropped, weights_.asked);
}

TEST_F(SliceTest, LoadsTheFinalNormWhereALoopEndsAndTheHeadWhereAllEnds) {
  ASSERT_TRUE(Build({{2, 3}}).ok());
  EXPECT_THAT(weights_.asked, Contains("model.norm.weight"));
  EXPECT_THAT(weights_.asked, Not(Contains("lm_head.weight")));
  ASSERT_TRUE(Build({{8, 9}}).ok());
  EXPECT_THAT(weights_.asked, Contains("lm_head.weight"));
}

// models: EXAONE 4.0, trap 5.
TEST(TiedHeadTest, IsLoadedByBothEndsAndByNoStageBetween) {
  const TinyCheckpoint tiny = TinyCheckpoint::Open("exaone4-tied");
  const auto asked = [&tiny](UnrolledRange range) {
    const EditedWeights weights(tiny.files.get());
    EXPECT_TRUE(
        tiny.decoder
            ->build(tiny.config(), {.ranges = {range},
                                    .dtype = DType::kF32,
                                    .kv = {.pages = 1},
                                    .kernels = &Machine::Get().kernels,
                                    .device = Machine::Get().device.get(),
                                    .stream = Machine::Get().stream.get(),
                                    .weights = &weights})
            .ok());
    return weights.asked;
  };
  const std::string embedding = "model.embed_tokens.weight";
  EXPECT_THAT(asked({0, 1}), Contains(embedding));
  EXPECT_THAT(asked({1, 3}), Not(Contains(embedding)));
  EXPECT_THAT(asked({3, 4}), Contains(embedding));
  EXPECT_THAT(asked({0, 4}), Not(Contains("lm_head.weight")));
}

TEST(TiedHeadTest, MayBeInTheFileOnceMore) {
  const TinyCheckpoint tiny = TinyCheckpoint::Open("exaone4-tied");
  const std::vector<TensorDecl> declared =
      tiny.decoder->tensors(tiny.config()).value();
  std::vector<TensorEntry> tensors(tiny.files->tensors().begin(),
                                   tiny.files->tensors().end());
  TensorEntry head = *FindTensor(tensors, "model.embed_tokens.weight");
  head.name = "lm_head.weight";
  tensors.insert(tensors.begin(), head);
  EXPECT_TRUE(CheckTensors(tensors, declared).ok());
  tensors.front().name = "head.weight";
  EXPECT_THAT(Message(CheckTensors(tensors, declared)),
              HasSubstr("unexpected: head.weight"));
}

TEST_F(SliceTest, HoldsALoopedLayersWeightsOnceAndItsPagesPerLoop) {
  std::unique_ptr<StageSlice> once = *Build({{1, 2}});
  std::unique_ptr<StageSlice> looped = *Build({{1, 2}, {4, 5}, {7, 8}});
  EXPECT_EQ(looped->WeightBytes(), once->WeightBytes());
  EXPECT_EQ(looped->KvBytes(), 3 * once->KvBytes());
}

TEST_F(SliceTest, ReportsProgressToTheEnd) {
  std::vector<int64_t> done;
  int64_t total = 0;
  options_.progress = [&](int64_t d, int64_t t) {
    done.push_back(d);
    total = t;
  };
  ASSERT_TRUE(Build({{0, 9}}).ok());
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), total);
}

TEST_F(SliceTest, RefusesToBuildWithoutATensor) {
  weights_.hidden = {"model.layers.1.mlp.up_proj.weight"};
  const Status status = Build({{1, 2}}).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(Message(status), HasSubstr("model.layers.1.mlp.up_proj"));
}

TEST_F(SliceTest, RefusesToBuildWithoutAKernel) {
  const KernelRegistry none;
  options_.kernels = &none;
  EXPECT_EQ(Build({{1, 2}}).status().code(), StatusCode::kUnimplemented);
}

TEST_F(SliceTest, RefusesRangesThatAreNotTheDecoders) {
  for (const std::vector<UnrolledRange>& ranges :
       std::vector<std::vector<UnrolledRange>>{
           {}, {{2, 2}}, {{-1, 2}}, {{8, 10}}, {{3, 5}, {4, 6}}}) {
    EXPECT_EQ(Build(ranges).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(SliceTest, TakesAVisitThatFits) {
  BuildMiddle();
  EXPECT_TRUE(slice_->Run(Middle()).ok());
}

TEST_F(SliceTest, TakesABatchWithoutRows) {
  BuildMiddle();
  const AttentionBatch none;
  Tensor stream =
      Tensor::AllocateHost(DType::kF32, {0, tiny_.info.hidden}).value();
  VisitArgs args = Middle();
  args.batch = &none;
  args.stream = stream.view();
  StatusOr<VisitResult> result = slice_->Run(args);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->stream.shape()[0], 0);
}

TEST_F(SliceTest, RefusesAStreamOfAnotherShapeOrType) {
  BuildMiddle();
  VisitArgs args = Middle();
  args.stream = stream_.view().Rows(0, 2);
  EXPECT_EQ(CodeOf(args), StatusCode::kInvalidArgument);
  args.stream = stream_.view().Columns(0, 8);
  EXPECT_EQ(CodeOf(args), StatusCode::kInvalidArgument);
  args.stream = ConstView(stream_.view().data(), DType::kBF16, stream_.shape());
  EXPECT_EQ(CodeOf(args), StatusCode::kInvalidArgument);
  args.stream = {};
  EXPECT_EQ(CodeOf(args), StatusCode::kInvalidArgument);
}

TEST_F(SliceTest, RefusesARangeOfAnotherStage) {
  BuildMiddle();
  VisitArgs args = Middle();
  args.range = {1, 2};
  EXPECT_EQ(CodeOf(args), StatusCode::kInvalidArgument);
  args.range = {4, 7};
  EXPECT_EQ(CodeOf(args), StatusCode::kInvalidArgument);
}

TEST_F(SliceTest, RefusesRowsPositionsAndPagesThatDoNotFit) {
  BuildMiddle();
  const std::vector<SequenceSpan> good = spans_;
  const auto code_with = [&](const SequenceSpan& span) {
    spans_ = {span};
    return CodeOf(Middle());
  };
  SequenceSpan bad = good[0];
  bad.rows = 2;
  EXPECT_EQ(code_with(bad), StatusCode::kInvalidArgument);
  bad.rows = 4;
  EXPECT_EQ(code_with(bad), StatusCode::kInvalidArgument);
  bad = good[0];
  bad.first_position = 1;
  EXPECT_EQ(code_with(bad), StatusCode::kInvalidArgument);
  bad.first_position = tiny_.info.max_positions;
  EXPECT_EQ(code_with(bad), StatusCode::kInvalidArgument);
  bad = good[0];
  bad.pages = {};
  EXPECT_EQ(code_with(bad), StatusCode::kInvalidArgument);
  pages_ = {4, 0};
  EXPECT_EQ(code_with(good[0]), StatusCode::kInvalidArgument);
  pages_ = {-1, 0};
  EXPECT_EQ(code_with(good[0]), StatusCode::kInvalidArgument);
}

TEST_F(SliceTest, RefusesTokenIdsOutsideTheVocabulary) {
  slice_ = *Build({{0, 1}});
  VisitArgs args = Middle();
  args.range = {0, 1};
  for (const std::vector<int32_t>& ids : std::vector<std::vector<int32_t>>{
           {1, 2}, {1, 2, -1}, {1, 2, static_cast<int>(tiny_.info.vocab)}}) {
    args.ids = ids;
    EXPECT_EQ(CodeOf(args), StatusCode::kInvalidArgument);
  }
}

TEST_F(SliceTest, RefusesLogitRowsThatDoNotFit) {
  slice_ = *Build({{8, 9}});
  VisitArgs args = Middle();
  args.range = {8, 9};
  const std::vector<SamplingRow> sampling(2);
  args.sampling = sampling;
  for (const std::vector<int32_t>& rows : std::vector<std::vector<int32_t>>{
           {1}, {1, 1}, {2, 0}, {-1, 0}, {1, 3}}) {
    args.logit_rows = rows;
    EXPECT_EQ(CodeOf(args), StatusCode::kInvalidArgument);
  }
}

TEST_F(SliceTest, GivesLogitsOfTheRowsAskedForOnly) {
  Pipeline pipeline = tiny_.Run(DType::kF32, tiny_.Whole());
  const StepOutput all = pipeline.Step({{0, {5, 6, 7}}});
  slice_ = *Build({{0, 9}});
  VisitArgs args = Middle();
  args.range = {0, 9};
  const std::vector<int32_t> ids = {5, 6, 7};
  const std::vector<int32_t> rows = {0, 2};
  const std::vector<SamplingRow> sampling(2, {.digest = true});
  args.ids = ids;
  args.logit_rows = rows;
  args.sampling = sampling;
  const VisitResult result = *slice_->Run(args);
  ASSERT_EQ(result.Samples().size(), 2);
  EXPECT_EQ(result.Samples()[0].digest, all.samples[0].digest);
  EXPECT_EQ(result.Samples()[1].digest, all.samples[2].digest);
  EXPECT_TRUE(result.stream.empty());
}

TEST_F(SliceTest, DecodeAllocatesOnlyWhatLeavesWithTheResult) {
  BuildMiddle();
  ASSERT_TRUE(slice_->Run(Middle()).ok());
  device_.allocations = 0;
  ASSERT_TRUE(slice_->Run(Middle()).ok());
  EXPECT_EQ(device_.allocations, 1);
}

// A GPU hands out whole units of 2 MiB, which matrices one by one would waste.
TEST(ExpertsTest, OfALayerTakeAsManyAllocationsHoweverManyThereAre) {
  const TinyCheckpoint tiny = TinyCheckpoint::Open("mixtral");
  const std::unique_ptr<WeightSource> weights = NewRandomWeights(1);
  const auto allocations = [&](int experts) {
    std::ifstream file(TinyCheckpoint::Directory("mixtral") + "/config.json");
    nlohmann::json json = nlohmann::json::parse(file);
    json["num_local_experts"] = experts;
    CountingDevice device;
    EXPECT_TRUE(
        tiny.decoder
            ->build(ModelConfig::Parse(json.dump(), "config.json").value(),
                    {.ranges = {{1, 2}},
                     .dtype = DType::kBF16,
                     .kv = {.pages = 1},
                     .kernels = &Machine::Get().kernels,
                     .device = &device,
                     .stream = Machine::Get().stream.get(),
                     .weights = weights.get()})
            .ok());
    return device.allocations;
  };
  EXPECT_EQ(allocations(5), allocations(40));
}

// All logits are equal; with one of the two signs they are below zero, which
// is what a padded row would have.
TEST_F(SliceTest, PaddedVocabularyRowsNeverWin) {
  ASSERT_NE(tiny_.info.vocab % kPackRows, 0);
  for (float sign : {1.0f, -1.0f}) {
    const EditedWeights edited(tiny_.files.get(),
                               [&](const std::string& name, auto& values) {
                                 if (name != "lm_head.weight") return;
                                 std::fill(values.begin(), values.end(), sign);
                               });
    Pipeline pipeline(*tiny_.decoder, tiny_.config(), edited, DType::kBF16,
                      tiny_.Whole());
    const StepOutput output = pipeline.Step({{0, {9}}});
    EXPECT_EQ(output.logits[0].size(), tiny_.info.vocab);
    EXPECT_EQ(output.samples[0].token, 0);
  }
}

}  // namespace
}  // namespace baton::testing
