// SPDX-License-Identifier: Apache-2.0
#include "actors/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "actors/local_pipeline.h"
#include "kernels/ops/matmul.h"
#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using ::baton::testing::IsOk;
using ::baton::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

DecoderInfo Info(int layers, int loops) {
  DecoderInfo info;
  info.num_layers = layers;
  info.num_loops = loops;
  info.states.assign(static_cast<size_t>(info.unrolled_layers()),
                     {.dtype = DType::kBF16, .kv_heads = 2, .head_dim = 8});
  return info;
}

DecoderBytes Bytes(std::vector<int64_t> layers, int64_t embedding,
                   int64_t final) {
  DecoderBytes bytes;
  bytes.layers = std::move(layers);
  bytes.embedding = embedding;
  bytes.final = final;
  return bytes;
}

std::vector<StageConfig> Stages(int count) {
  std::vector<StageConfig> stages(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    stages[static_cast<size_t>(i)].name = std::string(1, 'a' + i);
  }
  return stages;
}

int64_t Largest(const DecoderInfo& info, const DecoderBytes& bytes,
                const Placement& placement) {
  int64_t largest = 0;
  for (const StageBytes& held : PredictBytes(info, bytes, placement, {})) {
    largest = std::max(largest, held.weights);
  }
  return largest;
}

TEST(PlaceStagesTest, CountsTheEmbeddingAndTheHead) {
  // 10 layers of 1, an embedding of 4, a head of 2: 16 in all, 8 each.
  const DecoderInfo info = Info(10, 1);
  const DecoderBytes bytes = Bytes(std::vector<int64_t>(10, 1), 4, 2);
  StatusOr<Placement> placement =
      PlaceStages(info, bytes, RouteKind::kRing, Stages(2));
  ASSERT_THAT(placement, IsOk());
  EXPECT_THAT(placement->stages[0].ranges, ElementsAre(UnrolledRange{0, 4}));
  EXPECT_THAT(placement->stages[1].ranges, ElementsAre(UnrolledRange{4, 10}));
}

TEST(PlaceStagesTest, EvensOutWhatAHeavyEndLeaves) {
  // The head decides the largest stage; the others share the rest evenly.
  const DecoderInfo info = Info(7, 1);
  const DecoderBytes bytes = Bytes(std::vector<int64_t>(7, 1), 0, 100);
  StatusOr<Placement> placement =
      PlaceStages(info, bytes, RouteKind::kRing, Stages(3));
  ASSERT_THAT(placement, IsOk());
  EXPECT_THAT(placement->stages[0].ranges, ElementsAre(UnrolledRange{0, 3}));
  EXPECT_THAT(placement->stages[1].ranges, ElementsAre(UnrolledRange{3, 6}));
  EXPECT_THAT(placement->stages[2].ranges, ElementsAre(UnrolledRange{6, 7}));
}

TEST(PlaceStagesTest, GivesARingOnePassPerLoop) {
  const DecoderInfo info = Info(4, 3);
  const DecoderBytes bytes = Bytes({1, 1, 1, 1}, 0, 0);
  StatusOr<Placement> placement =
      PlaceStages(info, bytes, RouteKind::kRing, Stages(2));
  ASSERT_THAT(placement, IsOk());
  EXPECT_EQ(placement->passes, 3);
  EXPECT_THAT(placement->stages[0].ranges,
              ElementsAre(UnrolledRange{0, 2}, UnrolledRange{4, 6},
                          UnrolledRange{8, 10}));
  EXPECT_THAT(placement->stages[1].ranges,
              ElementsAre(UnrolledRange{2, 4}, UnrolledRange{6, 8},
                          UnrolledRange{10, 12}));
}

TEST(PlaceStagesTest, GivesOneStageOnePass) {
  StatusOr<Placement> placement = PlaceStages(
      Info(4, 3), Bytes({1, 1, 1, 1}, 0, 0), RouteKind::kRing, Stages(1));
  ASSERT_THAT(placement, IsOk());
  EXPECT_EQ(placement->passes, 1);
  EXPECT_THAT(placement->stages[0].ranges, ElementsAre(UnrolledRange{0, 12}));
}

TEST(PlaceStagesTest, UnrollsLoopsOverStages) {
  // Two loops of three layers over two stages: weights twice, one pass.
  const DecoderInfo info = Info(3, 2);
  const DecoderBytes bytes = Bytes({1, 1, 1}, 0, 0);
  StatusOr<Placement> placement =
      PlaceStages(info, bytes, RouteKind::kUnrolled, Stages(2));
  ASSERT_THAT(placement, IsOk());
  EXPECT_EQ(placement->passes, 1);
  EXPECT_EQ(placement->stages[0].ranges.front().begin, 0);
  EXPECT_EQ(placement->stages[1].ranges.front().end, 6);
  EXPECT_EQ(Largest(info, bytes, *placement), 3);
}

TEST(PlaceStagesTest, TakesGivenLayers) {
  std::vector<StageConfig> stages = Stages(2);
  stages[0].layers = UnrolledRange{0, 1};
  stages[1].layers = UnrolledRange{1, 4};
  StatusOr<Placement> placement = PlaceStages(
      Info(4, 1), Bytes({1, 1, 1, 1}, 0, 0), RouteKind::kRing, stages);
  ASSERT_THAT(placement, IsOk());
  EXPECT_THAT(placement->stages[1].ranges, ElementsAre(UnrolledRange{1, 4}));
}

TEST(PlaceStagesTest, RefusesGivenLayersThatDoNotFit) {
  const DecoderInfo info = Info(4, 1);
  const DecoderBytes bytes = Bytes({1, 1, 1, 1}, 0, 0);
  std::vector<StageConfig> stages = Stages(2);
  stages[0].layers = UnrolledRange{0, 2};
  EXPECT_THAT(PlaceStages(info, bytes, RouteKind::kRing, stages),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("some stages")));
  stages[1].layers = UnrolledRange{2, 3};
  EXPECT_THAT(PlaceStages(info, bytes, RouteKind::kRing, stages),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("layer 3")));
  stages[1].layers = UnrolledRange{1, 4};
  EXPECT_THAT(PlaceStages(info, bytes, RouteKind::kRing, stages),
              StatusIs(StatusCode::kInvalidArgument));
}

TEST(PlaceStagesTest, RefusesMoreStagesThanLayers) {
  EXPECT_THAT(
      PlaceStages(Info(2, 1), Bytes({1, 1}, 0, 0), RouteKind::kRing, Stages(3)),
      StatusIs(StatusCode::kInvalidArgument,
               HasSubstr("3 stages for 2 layers")));
  // Unrolled, the same three stages have six layers to share.
  EXPECT_THAT(PlaceStages(Info(2, 3), Bytes({1, 1}, 0, 0), RouteKind::kUnrolled,
                          Stages(3)),
              IsOk());
}

TEST(PlaceStagesTest, CoversAllAndIsNoWorseThanAnEvenSplit) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int layers = 1 + static_cast<int>(random() % 12);
    const int loops = 1 + static_cast<int>(random() % 3);
    const RouteKind route =
        random() % 2 == 0 ? RouteKind::kRing : RouteKind::kUnrolled;
    const DecoderInfo info = Info(layers, loops);
    DecoderBytes bytes = Bytes({}, random() % 50, random() % 50);
    for (int i = 0; i < layers; ++i) bytes.layers.push_back(1 + random() % 20);
    const int units = route == RouteKind::kRing ? layers : layers * loops;
    const int count = 1 + static_cast<int>(random() % units);

    std::vector<StageConfig> even = Stages(count);
    for (int s = 0; s < count; ++s) {
      even[static_cast<size_t>(s)].layers =
          UnrolledRange{units * s / count, units * (s + 1) / count};
    }
    StatusOr<Placement> best = PlaceStages(info, bytes, route, Stages(count));
    StatusOr<Placement> split = PlaceStages(info, bytes, route, even);
    ASSERT_THAT(best, IsOk());
    ASSERT_THAT(split, IsOk());
    EXPECT_LE(Largest(info, bytes, *best), Largest(info, bytes, *split));

    int next = 0;
    for (int pass = 0; pass < best->passes; ++pass) {
      for (const StagePlacement& stage : best->stages) {
        const UnrolledRange& range = stage.ranges[static_cast<size_t>(pass)];
        EXPECT_EQ(range.begin, next);
        EXPECT_GT(range.end, range.begin);
        next = range.end;
      }
    }
    EXPECT_EQ(next, info.unrolled_layers());
  }
}

TEST(PredictBytesTest, CountsKvOfEveryUnrolledLayer) {
  const DecoderInfo info = Info(4, 3);
  const DecoderBytes bytes = Bytes({1, 2, 3, 4}, 10, 20);
  StatusOr<Placement> placement =
      PlaceStages(info, bytes, RouteKind::kRing, Stages(1));
  ASSERT_THAT(placement, IsOk());
  const std::vector<StageBytes> held =
      PredictBytes(info, bytes, *placement, {.pages = 2});
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].weights, 40);
  EXPECT_EQ(held[0].kv, 12 * 64 * 32);
}

TEST(PredictBytesTest, CountsWindowPagesOfTheLayersThatHaveAWindow) {
  DecoderInfo info = Info(3, 1);
  info.states[1].window = 20;
  const DecoderBytes bytes = Bytes({1, 2, 3}, 10, 20);
  const std::vector<StageConfig> stages = Stages(2);
  StatusOr<Placement> placement =
      PlaceStages(info, bytes, RouteKind::kRing, stages);
  ASSERT_THAT(placement, IsOk());
  int64_t kv = 0;
  for (const StageBytes& held :
       PredictBytes(info, bytes, *placement, {.pages = 5, .window_pages = 3})) {
    kv += held.kv;
  }
  EXPECT_EQ(kv, (5 + 3 + 5) * 16 * 64);
}

TEST(CountBytesTest, KnowsWhatOnlyTheRowsThatChoseItRead) {
  struct Case {
    const char* config;
    int64_t layers, experts, per_row, ffn, hidden;
  };
  for (const Case& c : {Case{"mixtral-8x7b", 32, 8, 2, 14336, 4096},
                        Case{"kimi-linear-48b-a3b", 26, 256, 8, 1024, 2304}}) {
    const StatusOr<OpenedModel> model =
        OpenModel(std::string(BATON_SOURCE_DIR "/tests/configs/") + c.config,
                  DType::kBF16, WeightsCheck::kConfigOnly);
    ASSERT_THAT(model, IsOk());
    EXPECT_EQ(model->info.experts, c.experts);
    EXPECT_EQ(model->info.experts_per_row, c.per_row);
    EXPECT_EQ(CountBytes(model->info, model->tensors, DType::kBF16).routed,
              c.layers * c.experts * 3 * c.ffn * c.hidden * 2);
  }
}

TEST(CountBytesTest, PadsPackedWeights) {
  DecoderInfo info = Info(1, 1);
  const TensorOwner layer = {TensorOwner::Kind::kLayer, 0};
  const std::vector<TensorDecl> tensors = {
      {.name = "embed.weight",
       .shape = {10, 8},
       .owner = {TensorOwner::Kind::kEmbedding, 0}},
      {.name = "l.q_proj.weight",
       .shape = {40, 8},
       .owner = layer,
       .form = TensorForm::kPacked},
      {.name = "l.k_proj.weight",
       .shape = {20, 8},
       .owner = layer,
       .form = TensorForm::kPackedNext},
      {.name = "l.v_proj.weight",
       .shape = {20, 8},
       .owner = layer,
       .form = TensorForm::kPackedNext},
      {.name = "l.norm.weight", .shape = {8}, .owner = layer},
      {.name = "lm_head.weight",
       .shape = {10, 8},
       .owner = {TensorOwner::Kind::kFinal, 0},
       .form = TensorForm::kPacked}};
  const DecoderBytes bytes = CountBytes(info, tensors, DType::kBF16);
  EXPECT_EQ(bytes.parameters, 80 + 640 + 8 + 80);
  EXPECT_EQ(bytes.embedding, 160);
  EXPECT_EQ(bytes.layers[0], PackedBytes(80, 8, 1, DType::kBF16) + 16);
  EXPECT_EQ(bytes.final, PackedBytes(10, 8, 1, DType::kBF16));
}

TEST(CountBytesTest, CountsWhatIsKeptInAnotherForm) {
  const TensorOwner layer = {TensorOwner::Kind::kLayer, 0};
  const std::vector<TensorDecl> tensors = {{.name = "l.rate",
                                            .shape = {1, 1, 3, 1},
                                            .owner = layer,
                                            .form = TensorForm::kFloats},
                                           {.name = "l.key.weight",
                                            .shape = {70, 20},
                                            .owner = layer,
                                            .form = TensorForm::kTransposed}};
  const DecoderBytes bytes = CountBytes(Info(1, 1), tensors, DType::kBF16);
  EXPECT_EQ(bytes.layers[0], 3 * 4 + PackedBytes(20, 70, 1, DType::kBF16));
  EXPECT_NE(PackedBytes(20, 70, 1, DType::kBF16),
            PackedBytes(70, 20, 1, DType::kBF16));
}

TEST(CountBytesTest, CountsPublishedCheckpointsExactly) {
  const struct {
    const char* folder;
    int64_t parameters;
    int64_t kv_per_token;
  } cases[] = {{"apertus-8b", 8'053'338'240, 131'072},
               {"afm-4.5b", 4'619'184'640, 73'728},
               {"exaone-4.0-1.2b", 1'279'391'488, 61'440},
               {"exaone-4.0-32b", 32'003'216'384, 65'536},
               {"kimi-linear-48b-a3b", 49'122'681'728, 8'064},
               {"mixtral-8x7b", 46'702'792'704, 131'072},
               {"nanbeige4.2-3b", 4'169'800'704, 180'224},
               {"spark-x2.5-1.7b", 1'707'657'216, 14'336},
               {"spark-x2.5-4b", 4'112'079'360, 36'864}};
  for (const auto& [folder, parameters, kv] : cases) {
    StatusOr<OpenedModel> model =
        OpenModel(std::string(BATON_SOURCE_DIR "/tests/configs/") + folder,
                  DType::kBF16, WeightsCheck::kConfigOnly);
    ASSERT_THAT(model, IsOk());
    const DecoderBytes bytes =
        CountBytes(model->info, model->tensors, DType::kBF16);
    EXPECT_EQ(bytes.parameters, parameters) << folder;
    int64_t kept = 0;  // of a position by layers that keep all
    for (const LayerState& state : model->info.states) {
      if (state.window == 0) kept += state.TokenBytes();
    }
    EXPECT_EQ(kept, kv) << folder;
  }
}

}  // namespace
}  // namespace baton
