// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <cstdlib>

#include "runtime/weights/weight_source.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_checkpoint.h"

namespace baton {
namespace {

using ::baton::testing::Bf16Bytes;
using ::baton::testing::IsOk;
using ::baton::testing::kTinyConfig;
using ::baton::testing::SafetensorsBuilder;
using ::baton::testing::SafetensorsBytes;
using ::baton::testing::StatusIs;
using ::baton::testing::TempFolder;
using ::baton::testing::TinyCheckpoint;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kIndex = "model.safetensors.index.json";

std::vector<float> Values(ConstView view) {
  std::vector<float> out;
  const auto* data = view.Row<bf16>(0);
  for (int64_t i = 0; i < view.shape().NumElements(); ++i) {
    out.push_back(static_cast<float>(data[i]));
  }
  return out;
}

SafetensorsBuilder OneToSix() {
  SafetensorsBuilder weights;
  weights.Add("w", "BF16", "[3,2]",
              Bf16Bytes(std::vector<float>{1, 2, 3, 4, 5, 6}));
  return weights;
}

TEST(CheckpointTest, HandsOutRowsOfTheMapping) {
  const TempFolder folder = TinyCheckpoint(OneToSix());
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_EQ((*checkpoint)->config().architecture(), "TinyForCausalLM");
  EXPECT_TRUE((*checkpoint)->Has("w"));
  EXPECT_FALSE((*checkpoint)->Has("v"));
  const auto rows = (*checkpoint)->Rows({"w", {3, 2}}, 1, 3);
  ASSERT_THAT(rows, IsOk());
  EXPECT_EQ(rows->view.shape(), (Shape{2, 2}));
  EXPECT_TRUE(rows->owned.empty());
  EXPECT_THAT(Values(rows->view), ElementsAre(3, 4, 5, 6));
  (*checkpoint)->Drop({"w", {3, 2}});
  (*checkpoint)->Drop({"no such tensor", {3, 2}});
  EXPECT_THAT(Values(rows->view), ElementsAre(3, 4, 5, 6));
}

TEST(CheckpointTest, CopiesTensorsThatTheFileMisaligns) {
  TempFolder folder;
  folder.Write("config.json", kTinyConfig);
  std::string header =
      R"({"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})";
  header.append(header.size() % 2 == 0 ? " " : "");  // data at an odd place
  folder.Write("model.safetensors",
               SafetensorsBytes(header, Bf16Bytes(std::vector<float>{7, 8})));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  const auto rows = (*checkpoint)->Rows({"w", {2}}, 0, 2);
  ASSERT_THAT(rows, IsOk());
  EXPECT_FALSE(rows->owned.empty());
  EXPECT_THAT(Values(rows->view), ElementsAre(7, 8));
}

TEST(CheckpointTest, TakesAScalarAsOneRow) {
  SafetensorsBuilder weights;
  weights.Add("s", "BF16", "[]", Bf16Bytes(std::vector<float>{0.5F}));
  const TempFolder folder = TinyCheckpoint(weights);
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  const TensorDecl decl{.name = "s", .shape = {1}, .any_one_element = true};
  EXPECT_THAT((*checkpoint)->Check({&decl, 1}), IsOk());
  const auto rows = (*checkpoint)->Rows(decl, 0, 1);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(Values(rows->view), ElementsAre(0.5F));
}

TEST(CheckpointTest, RefusesRowsThatAreNotThere) {
  const TempFolder folder = TinyCheckpoint(OneToSix());
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  const Checkpoint& c = **checkpoint;
  EXPECT_THAT(c.Rows({"v", {3, 2}}, 0, 1), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(c.Rows({"w", {3, 3}}, 0, 1),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(c.Rows({"w", {3, 2}}, 0, 4),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(c.Rows({"w", {3, 2}}, 2, 1),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(c.Rows({"w", {3, 2}}, -1, 1),
              StatusIs(StatusCode::kInvalidArgument));
}

uint64_t FingerprintOf(const TempFolder& folder) {
  const auto checkpoint = Checkpoint::Open(folder.path());
  EXPECT_THAT(checkpoint, IsOk());
  return checkpoint.ok() ? (*checkpoint)->Fingerprint() : 0;
}

TEST(CheckpointTest, AFingerprintIsOfNamesShapesAndValues) {
  const auto one = [](const char* name, const char* shape,
                      const std::vector<float>& values) {
    SafetensorsBuilder weights;
    weights.Add(name, "BF16", shape, Bf16Bytes(values));
    return FingerprintOf(TinyCheckpoint(weights));
  };
  const std::vector<float> values = {1, 2, 3, 4};
  const uint64_t first = one("w", "[2,2]", values);
  EXPECT_NE(first, 0u);
  EXPECT_EQ(first, one("w", "[2,2]", values));
  EXPECT_NE(first, one("v", "[2,2]", values));
  EXPECT_NE(first, one("w", "[4,1]", values));
  EXPECT_NE(first, one("w", "[2,2]", {1, 2, 3, 5}));
}

TEST(CheckpointTest, AFingerprintDoesNotDependOnFilesOrTheirOrder) {
  const std::string a = Bf16Bytes(std::vector<float>{1, 2});
  const std::string b = Bf16Bytes(std::vector<float>{3, 4, 5});
  SafetensorsBuilder together;
  together.Add("b", "BF16", "[3]", b).Add("a", "BF16", "[2]", a);
  TempFolder shards;
  shards.Write("config.json", kTinyConfig);
  shards.Write("x.safetensors",
               SafetensorsBuilder().Add("a", "BF16", "[2]", a).Bytes());
  shards.Write("y.safetensors",
               SafetensorsBuilder().Add("b", "BF16", "[3]", b).Bytes());
  shards.Write(kIndex,
               R"({"weight_map":{"a":"x.safetensors","b":"y.safetensors"}})");
  EXPECT_EQ(FingerprintOf(TinyCheckpoint(together)), FingerprintOf(shards));
}

// Samples are of 4 KiB, one every 16 KiB here.
TEST(CheckpointTest, AFingerprintSeesEveryStretchOfALargeTensor) {
  constexpr size_t kBytes = 8 << 20;
  std::string data(kBytes, '\1');
  const auto fingerprint = [&] {
    SafetensorsBuilder weights;
    weights.Add("w", "BF16", "[2048,2048]", data);
    return FingerprintOf(TinyCheckpoint(weights));
  };
  const uint64_t first = fingerprint();
  for (const size_t stretch : {size_t{0}, kBytes / 2, kBytes - 16384}) {
    for (size_t i = 0; i < 16384; ++i) data[stretch + i] = '\2';
    EXPECT_NE(fingerprint(), first) << stretch;
    for (size_t i = 0; i < 16384; ++i) data[stretch + i] = '\1';
  }
  EXPECT_EQ(fingerprint(), first);
}

TEST(CheckpointTest, SaysWhatIsMissing) {
  EXPECT_THAT(Checkpoint::Open("/no/such/folder"),
              StatusIs(StatusCode::kNotFound, HasSubstr("/no/such/folder")));
  TempFolder folder;
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(StatusCode::kNotFound, HasSubstr("config.json")));
  EXPECT_THAT(ReadModelConfig(folder.path()), StatusIs(StatusCode::kNotFound));
  folder.Write("config.json", kTinyConfig);
  EXPECT_THAT(ReadModelConfig(folder.path()), IsOk());
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(StatusCode::kNotFound, HasSubstr("model.safetensors")));
}

// As a cache that was cleared half leaves it.
TEST(CheckpointTest, NamesALinkToNothing) {
  TempFolder folder;
  folder.Write("config.json", kTinyConfig);
  std::filesystem::create_symlink("gone", folder.path() + "/model.safetensors");
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(StatusCode::kNotFound,
                       HasSubstr("model.safetensors: a link to a file that is "
                                 "not there")));
}

TEST(CheckpointTest, DoesNotWaitForTheWriterOfAPipe) {
  TempFolder folder;
  folder.Write("config.json", kTinyConfig);
  ASSERT_EQ(::mkfifo((folder.path() + "/model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(StatusCode::kNotFound,
                       HasSubstr("model.safetensors: not a regular file")));
}

TEST(CheckpointTest, NamesTheDamagedFile) {
  TempFolder folder;
  folder.Write("config.json", kTinyConfig);
  folder.Write("model.safetensors", "");
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("model.safetensors")));
  std::string bytes = OneToSix().Bytes();
  bytes.resize(bytes.size() - 3);
  folder.Write("model.safetensors", bytes);
  EXPECT_THAT(
      Checkpoint::Open(folder.path()),
      StatusIs(StatusCode::kDataLoss,
               AllOf(HasSubstr("model.safetensors"), HasSubstr("tensor w"))));
}

TEST(CheckpointTest, TakesEosIdsFromGenerationConfigFirst) {
  const TempFolder folder = TinyCheckpoint(OneToSix());
  const auto eos = [&] {
    const auto checkpoint = Checkpoint::Open(folder.path());
    return checkpoint.ok() ? (*checkpoint)->EosIds() : std::vector<int32_t>();
  };
  EXPECT_THAT(eos(), ElementsAre(3));
  folder.Write("generation_config.json", "{}");
  EXPECT_THAT(eos(), ElementsAre(3));
  folder.Write("generation_config.json", R"({"eos_token_id": [2, 68, 72]})");
  EXPECT_THAT(eos(), ElementsAre(2, 68, 72));
  folder.Write("generation_config.json", R"({"eos_token_id": 9})");
  EXPECT_THAT(eos(), ElementsAre(9));
  folder.Write("generation_config.json", R"({"eos_token_id": -1})");
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("generation_config.json"),
                             HasSubstr("eos_token_id"))));
}

// Two shards with a tensor each, and an index that tells `map` about them.
TempFolder Sharded(const std::string& map) {
  TempFolder folder;
  folder.Write("config.json", kTinyConfig);
  folder.Write("1.safetensors", SafetensorsBuilder().AddBf16("a", {2}).Bytes());
  folder.Write("2.safetensors", SafetensorsBuilder().AddBf16("b", {2}).Bytes());
  folder.Write(kIndex, R"({"weight_map":{)" + map + "}}");
  return folder;
}

TEST(CheckpointTest, JoinsShards) {
  const TempFolder folder =
      Sharded(R"("b":"2.safetensors","a":"1.safetensors")");
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  ASSERT_EQ((*checkpoint)->tensors().size(), 2U);
  EXPECT_EQ((*checkpoint)->tensors()[0].name, "a");
  EXPECT_EQ((*checkpoint)->tensors()[1].file, "2.safetensors");
}

TEST(CheckpointTest, RefusesShardsThatContradictTheIndex) {
  const auto open = [](const std::string& map) {
    const TempFolder folder = Sharded(map);
    return Checkpoint::Open(folder.path());
  };
  EXPECT_THAT(open(R"("a":"1.safetensors","b":"3.safetensors")"),
              StatusIs(StatusCode::kNotFound, HasSubstr("3.safetensors")));
  EXPECT_THAT(open(R"("a":"2.safetensors","b":"1.safetensors")"),
              StatusIs(StatusCode::kDataLoss,
                       HasSubstr("tensor a is listed in 2.safetensors but is "
                                 "in 1.safetensors")));
  EXPECT_THAT(
      open(R"("a":"1.safetensors","b":"2.safetensors","c":"2.safetensors")"),
      StatusIs(StatusCode::kDataLoss, HasSubstr("tensor c")));
  EXPECT_THAT(open(R"("c":"2.safetensors","a":"1.safetensors")"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tensor b of")));
  EXPECT_THAT(open(R"("a":"../1.safetensors","b":"2.safetensors")"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("../1.safetensors")));
}

// "b" of two matrices [3, 2], which a file may stack as [2, 3, 2].
TensorDecl SecondOfStack() {
  return {
      .name = "b",
      .shape = {3, 2},
      .elsewhere = TensorRows{.name = "ab", .shape = {2, 3, 2}, .first = 3}};
}

TEST(StackedTensorTest, GivesItsRowsAsTheDeclaredTensor) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const TempFolder folder = TinyCheckpoint(
      SafetensorsBuilder().Add("ab", "BF16", "[2,3,2]", Bf16Bytes(values)));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  const TensorDecl decl = SecondOfStack();
  EXPECT_THAT((*checkpoint)->Check({&decl, 1}), IsOk());
  const auto rows = (*checkpoint)->Rows(decl, 1, 3);
  ASSERT_THAT(rows, IsOk());
  EXPECT_EQ(rows->view.shape(), (Shape{2, 2}));
  EXPECT_THAT(Values(rows->view), ElementsAre(9, 10, 11, 12));
  EXPECT_TRUE(rows->owned.empty()) << "it is a view into the mapping";
  EXPECT_THAT((*checkpoint)->Rows(decl, 1, 4),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("tensor b")));
  (*checkpoint)->Drop(decl);
}

TEST(StackedTensorTest, IsReadOnlyWhereTheDeclaredNameIsNotThere) {
  const std::vector<float> own = {1, 2, 3, 4, 5, 6};
  const TempFolder folder =
      TinyCheckpoint(SafetensorsBuilder()
                         .Add("b", "BF16", "[3,2]", Bf16Bytes(own))
                         .AddBf16("ab", {2, 3, 2}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  const TensorDecl decl = SecondOfStack();
  const auto rows = (*checkpoint)->Rows(decl, 0, 1);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(Values(rows->view), ElementsAre(1, 2));
  EXPECT_THAT((*checkpoint)->Check({&decl, 1}),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("unexpected: ab [2,3,2]")));
}

TEST(StackedTensorTest, IsRefusedWhereSomeOfItsTensorsAreThereToo) {
  const TempFolder folder = TinyCheckpoint(
      SafetensorsBuilder().AddBf16("b", {3, 2}).AddBf16("ab", {2, 3, 2}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  std::vector<TensorDecl> both(2, SecondOfStack());
  both[0].name = "a";
  both[0].elsewhere->first = 0;
  EXPECT_THAT((*checkpoint)->Check(both),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("1 tensors"),
                             HasSubstr("twice: b [3,2] and among the rows of "
                                       "ab"))));
}

TEST(StackedTensorTest, IsNamedWhereNeitherIsThere) {
  const TempFolder folder =
      TinyCheckpoint(SafetensorsBuilder().AddBf16("c", {1, 1}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  const TensorDecl decl = SecondOfStack();
  EXPECT_THAT((*checkpoint)->Check({&decl, 1}),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("missing: b [3,2], or rows of ab [2,3,2]")));
}

TEST(StackedTensorTest, IsRefusedOnceInAnotherShape) {
  const TempFolder folder =
      TinyCheckpoint(SafetensorsBuilder().AddBf16("ab", {2, 2, 3}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  std::vector<TensorDecl> both(2, SecondOfStack());
  both[0].name = "a";
  both[0].elsewhere->first = 0;
  EXPECT_THAT(
      (*checkpoint)->Check(both),
      StatusIs(StatusCode::kInvalidArgument,
               AllOf(HasSubstr("1 tensors"),
                     HasSubstr("misshapen: ab [2,2,3], expected [2,3,2]"))));
  EXPECT_THAT((*checkpoint)->Rows(both[1], 0, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("tensor ab")));
}

TEST(CheckpointTest, OpensEveryTinyCheckpoint) {
  const std::string root =
      std::string(BATON_SOURCE_DIR) + "/tests/checkpoints/";
  for (const char* name :
       {"apertus", "apertus-4x-sharded", "arcee", "arcee-mscale", "mixtral",
        "mixtral-stacked", "nanbeige", "nanbeige-skip-norm"}) {
    const auto checkpoint = Checkpoint::Open(root + name);
    ASSERT_THAT(checkpoint, IsOk());
    EXPECT_THAT((*checkpoint)->config().Rope(), IsOk()) << name;
    EXPECT_TRUE((*checkpoint)->Has("lm_head.weight")) << name;
    EXPECT_FALSE((*checkpoint)->EosIds().empty()) << name;
  }
}

}  // namespace
}  // namespace baton
