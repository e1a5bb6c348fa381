// SPDX-License-Identifier: Apache-2.0
// What a checkpoint has against what a decoder declares.
#include "runtime/weights/weight_source.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_checkpoint.h"

namespace baton {
namespace {

using ::baton::testing::Bf16Bytes;
using ::baton::testing::IsOk;
using ::baton::testing::SafetensorsBuilder;
using ::baton::testing::StatusIs;
using ::baton::testing::TempFolder;
using ::baton::testing::TinyCheckpoint;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<TensorDecl> Declared() {
  return {{.name = "embed", .shape = {4, 2}},
          {.name = "norm", .shape = {2}},
          {.name = "beta",
           .shape = {1},
           .optional = true,
           .any_one_element = true}};
}

TEST(CheckTest, AcceptsOptionalAndIgnoredTensors) {
  const TempFolder folder =
      TinyCheckpoint(SafetensorsBuilder()
                         .AddBf16("embed", {4, 2})
                         .AddBf16("norm", {2})
                         .AddBf16("layers.0.rotary_emb.inv_freq", {8})
                         .AddBf16("model.projector.weight", {2, 2}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_THAT((*checkpoint)->Check(Declared()), IsOk());
}

TEST(CheckTest, IgnoresDraftHeadsAndBiasesOfZeros) {
  SafetensorsBuilder weights;
  weights.AddBf16("embed", {4, 2})
      .AddBf16("norm", {2})
      .AddBf16("model.mtp.0.norm.weight", {2})
      .Add("layers.0.q.bias", "BF16", "[2]", std::string(4, '\0'));
  const TempFolder zeros = TinyCheckpoint(weights);
  EXPECT_THAT((*Checkpoint::Open(zeros.path()))->Check(Declared()), IsOk());
  weights.Add("layers.0.k.bias", "BF16", "[2]",
              Bf16Bytes(std::vector<float>{0, 1}));
  const TempFolder other = TinyCheckpoint(weights);
  EXPECT_THAT((*Checkpoint::Open(other.path()))->Check(Declared()),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("unexpected: layers.0.k.bias [2]"),
                             Not(HasSubstr("q.bias")))));
}

TEST(CheckTest, ListsEverythingThatIsWrongByName) {
  const TempFolder folder = TinyCheckpoint(SafetensorsBuilder()
                                               .AddBf16("embed", {2, 4})
                                               .AddBf16("extra", {1})
                                               .AddBf16("beta", {1, 1}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_THAT(
      (*checkpoint)->Check(Declared()),
      StatusIs(StatusCode::kInvalidArgument,
               AllOf(HasSubstr(folder.path() + ": 4 tensors"),
                     HasSubstr("misshapen: embed [2,4], expected [4,2]"),
                     HasSubstr("missing: norm [2]"),
                     HasSubstr("misshapen: beta [1,1], expected [1]"),
                     HasSubstr("unexpected: extra [1] in "
                               "model.safetensors"),
                     Not(HasSubstr("more")))));
}

TEST(CheckTest, RefusesMixedTypesButInScalars) {
  const TempFolder folder =
      TinyCheckpoint(SafetensorsBuilder()
                         .AddBf16("embed", {4, 2})
                         .Add("norm", "F32", "[2]", "12345678")
                         .Add("beta", "F32", "[1]", "1234"));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_THAT(
      (*checkpoint)->Check(Declared()),
      StatusIs(StatusCode::kInvalidArgument,
               AllOf(HasSubstr("1 tensors"),
                     HasSubstr("wrong type: norm f32, but embed is bf16"))));
}

// What is kept in f32 may be stored so, or as the rest is.
TEST(CheckTest, TakesFloatsOfAnyType) {
  std::vector<TensorDecl> declared = Declared();
  declared[1].form = TensorForm::kFloats;
  for (const bool rounded : {false, true}) {
    SafetensorsBuilder weights;
    weights.AddBf16("embed", {4, 2});
    if (rounded) {
      weights.AddBf16("norm", {2});
    } else {
      weights.Add("norm", "F32", "[2]", "12345678");
    }
    const TempFolder folder = TinyCheckpoint(weights);
    const auto checkpoint = Checkpoint::Open(folder.path());
    ASSERT_THAT(checkpoint, IsOk());
    EXPECT_THAT((*checkpoint)->Check(declared), IsOk());
  }
}

// A tied head that a file has once more: the reference would not tie one that
// differs, so neither tensor may be left unread.
TEST(CheckTest, RefusesARepeatedTensorThatIsAnother) {
  TensorDecl decl{.name = "embed", .shape = {2, 2}, .repeated_as = "head"};
  const std::vector<float> values = {1, 2, 3, 4};
  const auto check = [&](const std::vector<float>& head, const char* shape) {
    const TempFolder folder =
        TinyCheckpoint(SafetensorsBuilder()
                           .Add("embed", "BF16", "[2,2]", Bf16Bytes(values))
                           .Add("head", "BF16", shape, Bf16Bytes(head)));
    return (*Checkpoint::Open(folder.path()))->Check({&decl, 1});
  };
  EXPECT_THAT(check(values, "[2,2]"), IsOk());
  const auto refused =
      StatusIs(StatusCode::kInvalidArgument,
               AllOf(HasSubstr("1 tensors"), HasSubstr("contradictory: head ["),
                     HasSubstr("embed is used in its place")));
  EXPECT_THAT(check({1, 2, 3, 5}, "[2,2]"), refused);
  EXPECT_THAT(check(values, "[4]"), refused);
  EXPECT_THAT(check({1}, "[1]"), refused);
}

TEST(CheckTest, CutsALongList) {
  SafetensorsBuilder weights;
  weights.AddBf16("embed", {4, 2}).AddBf16("norm", {2});
  for (int i = 0; i < 25; ++i) weights.AddBf16(fmt::format("x{}", i), {1});
  const TempFolder folder = TinyCheckpoint(weights);
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_THAT(
      (*checkpoint)->Check(Declared()),
      StatusIs(StatusCode::kInvalidArgument,
               AllOf(HasSubstr("25 tensors"), HasSubstr("\n  and 5 more"))));
}

}  // namespace
}  // namespace baton
