// SPDX-License-Identifier: Apache-2.0
// A stage of several ranks has the bits of one, and refuses what cannot be
// shared.
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>

#include "models/layers/weights.h"
#include "models/ranked_slice.h"
#include "runtime/transport/inproc_collective.h"
#include "tests/models/cuts.h"
#include "tests/models/fake_weights.h"

namespace baton::testing {
namespace {

using ::testing::HasSubstr;

// A tiny checkpoint's config with sizes that ranks can share, and random
// weights.
struct Shared {
  explicit Shared(const std::string& name, const nlohmann::json& sizes = {}) {
    nlohmann::json json = nlohmann::json::parse(
        std::ifstream(TinyCheckpoint::Directory(name) + "/config.json"));
    json.update({{"hidden_size", 128},
                 {"num_attention_heads", 8},
                 {"num_key_value_heads", 2},
                 {"head_dim", 32},
                 {"intermediate_size", 512},
                 {"vocab_size", 320}});
    if (!sizes.is_null()) json.update(sizes);
    config.emplace(ModelConfig::Parse(json.dump(), name).value());
    decoder = FindDecoder(config->architecture()).value();
    info = decoder->describe(*config, DType::kF32).value();
    tensors = decoder->tensors(*config).value();
  }
  Pipeline Run(DType dtype, const Stages& stages, int ranks) const {
    return {*decoder, *config, *weights, dtype, stages, ranks};
  }

  std::optional<ModelConfig> config;
  const Decoder* decoder = nullptr;
  DecoderInfo info;
  std::vector<TensorDecl> tensors;
  std::unique_ptr<WeightSource> weights = NewRandomWeights(3);
};

std::vector<int32_t> Prompt() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 40; ++i) ids.push_back(i * 37 % 320);
  return ids;
}

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
                                         "exaone4-tied", "spark2_5"),
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
                {"intermediate_size", 96, 2, "sums over 96 inputs"},
                {"head_dim", 12, 2, "sums over 96 inputs"},
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

TEST(RanksOfGpusTest, TwoShareInputsInHalvesOfWholeGroups) {
  const Shared shared("arcee", {{"head_dim", 32}});
  const DeviceKind cuda = DeviceKind::kCuda;
  EXPECT_TRUE(CheckRanks(shared.tensors, 2, cuda).ok());
  const Status four = CheckRanks(shared.tensors, 4, cuda);
  EXPECT_EQ(four.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Message(four), HasSubstr("4 ranks on GPUs"));
  // 8 heads of 24: 192 inputs of the output projection.
  const Shared odd("arcee", {{"head_dim", 24}});
  EXPECT_TRUE(CheckRanks(odd.tensors, 2).ok());
  const Status halves = CheckRanks(odd.tensors, 2, cuda);
  EXPECT_EQ(halves.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(halves), HasSubstr("192 inputs are no multiple of 128"));
}

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

// A named trap: the fused tensor of 8 heads and 2 KV heads has 384 rows, but a
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

  const Stages whole = {{{0, shared.info.unrolled_layers()}}};
  const auto digests = [&](int ranks) {
    return shared.Run(DType::kF32, whole, ranks).Digests(Prompt(), 40, 2);
  };
  const std::vector<uint64_t> one = digests(1);
  EXPECT_EQ(digests(2), one);
  const std::unique_ptr<WeightSource> right = std::move(shared.weights);
  shared.weights = std::make_unique<EvenlyCut>(right.get());
  EXPECT_NE(digests(2), one);
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

TEST_F(RanksOfTest, AStageRefuseLayersThatRunOnOne) {
  const TinyCheckpoint kimi = TinyCheckpoint::Open("kimi-linear");
  options_.ranges = {{0, 1}};
  options_.ranks = 2;
  options_.weights = kimi.files.get();
  const Status status = kimi.decoder->build(kimi.config(), options_).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Message(status), HasSubstr("model.layers.0.self_attn"));
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
