// SPDX-License-Identifier: Apache-2.0
// A stage of several ranks has the bits of one, and refuses what cannot be
// shared.
#include "tests/models/ranks.h"

#include <thread>
#include <tuple>

#include "models/layers/weights.h"
#include "models/ranked_slice.h"
#include "runtime/transport/inproc_collective.h"
#include "tests/models/fake_weights.h"

namespace baton::testing {
namespace {

using ::testing::HasSubstr;

class RanksTest
    : public ::testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  static constexpr int kDecode = 4;
  DType dtype_ = std::get<1>(GetParam());
  Shared shared_{std::get<0>(GetParam())};
  Stages whole_ = {{{0, shared_.info.unrolled_layers()}}};
};

TEST_P(RanksTest, HaveTheBitsOfOne) {
  const std::vector<uint64_t> one =
      shared_.Run(dtype_, whole_, 1).Digests(Prompt(), 40, kDecode);
  for (int ranks : {2, 4, 8}) {
    EXPECT_EQ(shared_.Run(dtype_, whole_, ranks).Digests(Prompt(), 40, kDecode),
              one)
        << ranks << " ranks";
  }
}

TEST_P(RanksTest, HaveTheBitsOfOneAtACutInChunksAndBesideOthers) {
  const std::vector<uint64_t> one =
      shared_.Run(dtype_, whole_, 1).Digests(Prompt(), 40, kDecode);
  const Stages two = Ring(shared_.info, {0, 1, shared_.info.num_layers});
  for (int ranks : {2, 4}) {
    for (int chunk : {1, 7}) {
      EXPECT_EQ(
          shared_.Run(dtype_, two, ranks).Digests(Prompt(), chunk, kDecode, 3),
          one)
          << ranks << " ranks, chunks of " << chunk;
    }
  }
}

TEST_P(RanksTest, CaptureWhatOneCaptures) {
  const std::vector<CapturePoint> points = {{UnrolledLayer(0), Edge::kBefore},
                                            {UnrolledLayer(1), Edge::kAfter}};
  const auto captured = [&](int ranks) {
    std::vector<std::string> all;
    const StepOutput output =
        shared_.Run(dtype_, whole_, ranks).Step({{0, Prompt()}}, points);
    for (const Capture& c : output.captures) {
      all.emplace_back(reinterpret_cast<const char*>(c.stream.view().data()),
                       c.stream.bytes());
    }
    return all;
  };
  const std::vector<std::string> one = captured(1);
  ASSERT_EQ(one.size(), points.size());
  EXPECT_EQ(captured(2), one);
}

INSTANTIATE_TEST_SUITE_P(
    All, RanksTest,
    ::testing::Combine(::testing::Values("apertus", "arcee", "nanbeige",
                                         "mixtral", "exaone4-hybrid",
                                         "exaone4-tied", "spark2_5",
                                         "kimi-linear"),
                       ::testing::Values(DType::kF32, DType::kBF16)),
    [](const auto& info) {
      std::string name = std::get<0>(info.param);
      std::replace(name.begin(), name.end(), '-', '_');
      return name + "_" + std::string(Name(std::get<1>(info.param)));
    });

class RanksOfTest : public ::testing::Test {
 protected:
  StatusOr<std::unique_ptr<StageSlice>> Build(const Shared& shared, int ranks) {
    options_.ranges = {{0, shared.info.unrolled_layers()}};
    options_.ranks = ranks;
    options_.weights = &weights_;
    return shared.decoder->build(*shared.config, options_);
  }

  std::unique_ptr<WeightSource> random_ = NewRandomWeights(3);
  EditedWeights weights_{random_.get()};
  SliceOptions options_ = {.dtype = DType::kF32,
                           .kv = {.pages = 4},
                           .kernels = &Machine::Get().kernels,
                           .device = Machine::Get().device.get(),
                           .stream = Machine::Get().stream.get()};
};

TEST_F(RanksOfTest, AStageShareWeightsAndKvHeads) {
  const Shared shared("arcee", {{"vocab_size", 512}});
  const std::unique_ptr<StageSlice> one = Build(shared, 1).value();
  const std::unique_ptr<StageSlice> two = Build(shared, 2).value();
  const std::unique_ptr<StageSlice> four = Build(shared, 4).value();
  // Two KV heads: two ranks have one each, of four ranks two have the same.
  EXPECT_EQ(two->KvBytes(), one->KvBytes());
  EXPECT_EQ(four->KvBytes(), 2 * one->KvBytes());
  // Only norms are there twice; shares are multiples of 64 rows.
  const int64_t norms =
      (2 * shared.info.num_layers + 1) * 128 * SizeOf(DType::kF32);
  EXPECT_EQ(two->WeightBytes(), one->WeightBytes() + norms);
}

TEST_F(RanksOfTest, AStageRefuseWhatDoesNotDivide) {
  const struct {
    const char* key;
    int64_t size;
    int ranks;
    const char* what;
  } kCases[] = {{"num_attention_heads", 6, 4, "6 equal parts"},
                {"num_key_value_heads", 4, 8, ""},
                {"vocab_size", 321, 2, "321 equal parts"},
                {"hidden_size", 126, 4, "126 equal parts"},
                {"intermediate_size", 96, 4, ""},
                {"intermediate_size", 72, 2, "sums over 72 inputs"},
                {"head_dim", 10, 4, "sums over 80 inputs"},
                {"head_dim", 32, 3, "3 ranks"},
                {"head_dim", 32, 16, "16 ranks"},
                {"head_dim", 32, 0, "0 ranks"}};
  for (const auto& c : kCases) {
    const Shared shared("arcee", {{c.key, c.size}});
    const StatusOr<std::unique_ptr<StageSlice>> built = Build(shared, c.ranks);
    if (*c.what == '\0') {
      EXPECT_TRUE(built.ok()) << built.status();
      continue;
    }
    EXPECT_EQ(built.status().code(), StatusCode::kInvalidArgument) << c.key;
    EXPECT_THAT(Message(built.status()), HasSubstr(c.what));
    EXPECT_EQ(CheckRanks(shared.tensors, c.ranks), built.status());
  }
}

TEST(RanksOfGpusTest, TwoShareInputsInHalvesOfWholePieces) {
  const Shared shared("arcee", {{"head_dim", 32}});
  const DeviceKind cuda = DeviceKind::kCuda;
  EXPECT_TRUE(CheckRanks(shared.tensors, 2, cuda).ok());
  const Status four = CheckRanks(shared.tensors, 4, cuda);
  EXPECT_EQ(four.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Message(four), HasSubstr("4 ranks on GPUs"));
  // 4 heads of 44 and of 42: 176 and 168 inputs of the output projection.
  const auto heads_of = [&](int64_t size) {
    const Shared shared("arcee",
                        {{"num_attention_heads", 4}, {"head_dim", size}});
    return CheckRanks(shared.tensors, 2, cuda);
  };
  EXPECT_TRUE(heads_of(44).ok());
  const Status halves = heads_of(42);
  EXPECT_EQ(halves.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(halves), HasSubstr("168 inputs are no multiple of 16"));
}

TEST(RanksOfGpusTest, TwoShareExpertsOf96Inputs) {
  const Shared shared("kimi-linear", {{"moe_intermediate_size", 96}});
  EXPECT_TRUE(CheckRanks(shared.tensors, 2, DeviceKind::kCuda).ok());
}

TEST_F(RanksOfTest, AStageNameSparksFusedTensor) {
  const auto refused = [&](const char* key, int64_t size, int ranks) {
    return Message(Build(Shared("spark2_5", {{key, size}}), ranks).status());
  };
  const std::string heads = refused("num_attention_heads", 6, 4);
  EXPECT_THAT(heads, HasSubstr("self_attn.q_k_v_proj.weight"));
  EXPECT_THAT(heads, HasSubstr("6 equal parts do not divide among 4 ranks"));
  // 6 KV heads are neither shared by four ranks nor cut among them.
  EXPECT_THAT(Message(Build(Shared("spark2_5", {{"num_attention_heads", 12},
                                                {"num_key_value_heads", 6}}),
                            4)
                          .status()),
              HasSubstr("6 equal parts do not divide among 4 ranks"));
  weights_.hidden = {"model.layers.1.self_attn.q_k_v_proj.weight"};
  const Status missing = Build(Shared("spark2_5"), 2).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(Message(missing), HasSubstr("layers.1.self_attn.q_k_v_proj"));
}

// Slots are shared and latents copied: of 5 layers 3 are linear.
TEST_F(RanksOfTest, AStageShareSlotsAndCopyLatents) {
  options_.kv = {.pages = 4, .state_slots = 3};
  const Shared shared("kimi-linear");
  const std::unique_ptr<StageSlice> one = Build(shared, 1).value();
  const std::unique_ptr<StageSlice> four = Build(shared, 4).value();
  const int64_t latents = 2 * 4 * 16 * (36 + 12) * SizeOf(DType::kF32);
  const int64_t slots =
      3 * 3 * (8 * 32 * 32 + 3 * 3 * 8 * 32) * SizeOf(DType::kF32);
  EXPECT_EQ(one->KvBytes(), slots + latents);
  EXPECT_EQ(four->KvBytes(), slots + 4 * latents);
}

TEST_F(RanksOfTest, AStageRefuseKimisPartsThatDoNotDivide) {
  const struct {
    nlohmann::json sizes;
    const char* what;
  } kCases[] = {{{{"linear_attn_config", {{"num_heads", 6}}}},
                 "layers.0.self_attn.q_proj.weight [192,128]: 6 equal parts"},
                {{{"num_attention_heads", 6}, {"num_key_value_heads", 6}},
                 "layers.2.self_attn.q_proj.weight [192,128]: 6 equal parts"},
                {{{"v_head_dim", 18}}, "sums over 144 inputs have 2 parts"},
                {{{"moe_intermediate_size", 80}},
                 "experts.0.w2.weight [128,80]: sums over 80 inputs"}};
  for (const auto& c : kCases) {
    const Shared shared("kimi-linear", c.sizes);
    const Status status = Build(shared, 4).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.what;
    EXPECT_THAT(Message(status), HasSubstr(c.what));
    EXPECT_EQ(CheckRanks(shared.tensors, 4), status);
  }
}

TEST_F(RanksOfTest, AStageFailTogetherToLoad) {
  const Shared shared("arcee");
  weights_.hidden = {"model.layers.1.mlp.up_proj.weight"};
  EXPECT_EQ(Build(shared, 4).status().code(), StatusCode::kNotFound);
}

TEST_F(RanksOfTest, AStageReportTheirProgressOnItsThread) {
  std::vector<int64_t> done;
  int64_t total = 0;
  options_.progress = [&, stage = std::this_thread::get_id()](int64_t d,
                                                              int64_t t) {
    EXPECT_EQ(std::this_thread::get_id(), stage);
    done.push_back(d);
    total = t;
  };
  ASSERT_TRUE(Build(Shared("arcee"), 2).ok());
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), total);
}

// The second of its two visits: the group is whole again.
TEST_F(RanksOfTest, AStageRefuseAVisitAndRunTheNext) {
  const Shared shared("arcee");
  const std::unique_ptr<StageSlice> slice = Build(shared, 2).value();
  const std::vector<PageId> pages = {0};
  const std::vector<int32_t> positions = {0, 1};
  const std::vector<SequenceSpan> spans = {
      {.rows = 2, .first_position = 0, .pages = pages}};
  const AttentionBatch batch{spans, positions};
  const std::vector<int32_t> wrong = {1, 320}, right = {1, 319};
  VisitArgs args = {.range = {0, shared.info.unrolled_layers()},
                    .batch = &batch,
                    .ids = wrong};
  EXPECT_EQ(slice->Run(args).status().code(), StatusCode::kInvalidArgument);
  args.ids = right;
  EXPECT_TRUE(slice->Run(args).ok());
}

TEST(RankThreadsTest, RunEveryRankAtTheSameTime) {
  RankThreads threads(4);
  InprocRanks group(4, absl::Seconds(30));
  for (int round = 0; round < 50; ++round) {
    std::vector<int> ran(4, 0);
    threads.Run([&](int index) {
      // Returns only when all four are inside.
      const std::unique_ptr<Stream> stream =
          Machine::Get().device->NewStream().value();
      const ConstView none(nullptr, DType::kF32, {0, 1});
      EXPECT_TRUE(group.rank(index).AllGather(none, {}, *stream).ok());
      ++ran[static_cast<size_t>(index)];
    });
    EXPECT_THAT(ran, ::testing::Each(1));
  }
}

}  // namespace
}  // namespace baton::testing
