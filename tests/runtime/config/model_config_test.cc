// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/model_config.h"

#include <limits>

#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using ::baton::testing::IsOk;
using ::baton::testing::IsOkAndHolds;
using ::baton::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

StatusOr<ModelConfig> Parse(const std::string& text) {
  return ModelConfig::Parse(text, "config.json");
}

// A config with `keys`, the inside of a JSON object.
ModelConfig With(const std::string& keys) {
  auto config = Parse(R"({"architectures":["A"])" +
                      (keys.empty() ? "" : "," + keys) + "}");
  EXPECT_THAT(config, IsOk());
  return *std::move(config);
}

TEST(ModelConfigTest, ReadsTheFirstArchitectureAndIgnoresUnknownKeys) {
  const auto config = Parse(
      R"({"architectures":["FirstForCausalLM","B"],"never_heard_of":{"a":[]}})");
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->architecture(), "FirstForCausalLM");
}

TEST(ModelConfigTest, RefusesTextThatIsNotAConfig) {
  for (const char* text :
       {"", "{", "[]", "7", "{}", R"({"architectures":[]})",
        R"({"architectures":"A"})", R"({"architectures":[7]})",
        R"({"architectures":[""]})", R"({"architectures":["A"],"x":NaN})",
        R"({"architectures":["A"],"x":1e999})",
        R"({"architectures":["A"],"architectures":["B"]})"}) {
    EXPECT_THAT(Parse(text), StatusIs(StatusCode::kInvalidArgument,
                                      HasSubstr("config.json: ")))
        << text;
  }
}

TEST(ModelConfigTest, RefusesDeepAndLongText) {
  const std::string deep = R"({"architectures":["A"],"x":)" +
                           std::string(100000, '[') + std::string(100000, ']') +
                           "}";
  EXPECT_THAT(Parse(deep),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("deeper")));
  EXPECT_THAT(Parse(std::string(5 << 20, ' ')),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("bytes")));
}

TEST(ModelConfigTest, NamesTheKeyOfABadSize) {
  const ModelConfig config = With(
      R"("zero":0,"minus":-1,"big":2147483648,"huge":18446744073709551615,)"
      R"("real":4.0,"text":"4","null":null,"most":2147483647)");
  for (const char* key : {"zero", "minus", "big", "huge", "real", "text"}) {
    EXPECT_THAT(config.Size(key),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr(std::string("config.json: ") + key)));
    EXPECT_THAT(config.SizeOr(key, 5), StatusIs(StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(config.Size("absent"),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("config.json: absent is missing")));
  EXPECT_THAT(config.Size("null"), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(config.Size("most"), IsOkAndHolds(2147483647));
  EXPECT_THAT(config.SizeOr("absent", 5), IsOkAndHolds(5));
  EXPECT_THAT(config.SizeOr("null", 5), IsOkAndHolds(5));
}

TEST(ModelConfigTest, ReadsNumbersBoolsTextAndIds) {
  const ModelConfig config =
      With(R"("n":1e-5,"i":3,"yes":true,"t":"relu2","one":7,"many":[2,68])");
  EXPECT_THAT(config.Number("n"), IsOkAndHolds(1e-5));
  EXPECT_THAT(config.Number("i"), IsOkAndHolds(3.0));
  EXPECT_THAT(config.BoolOr("yes", false), IsOkAndHolds(true));
  EXPECT_THAT(config.BoolOr("absent", true), IsOkAndHolds(true));
  EXPECT_THAT(config.Text("t"), IsOkAndHolds(std::string("relu2")));
  EXPECT_THAT(config.Ids("one"), IsOkAndHolds(ElementsAre(7)));
  EXPECT_THAT(config.Ids("many"), IsOkAndHolds(ElementsAre(2, 68)));
  EXPECT_THAT(config.Ids("absent"), IsOkAndHolds(IsEmpty()));
  EXPECT_TRUE(config.Has("n"));
  EXPECT_FALSE(config.Has("absent"));
}

TEST(ModelConfigTest, ReadsListsOfText) {
  const ModelConfig config = With(R"("a":["x","y"],"b":"x","c":["x",1])");
  EXPECT_THAT(config.Texts("a"),
              IsOkAndHolds(std::vector<std::string>{"x", "y"}));
  EXPECT_THAT(config.Texts("none"), IsOkAndHolds(std::vector<std::string>{}));
  for (const char* key : {"b", "c"}) {
    EXPECT_THAT(config.Texts(key),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(key)));
  }
}

TEST(ModelConfigTest, RefusesValuesOfTheWrongType) {
  const ModelConfig config = With(R"("t":"x","b":1,"ids":[1,-2],"o":{})");
  EXPECT_THAT(config.Number("t"), StatusIs(StatusCode::kInvalidArgument,
                                           HasSubstr("config.json: t is")));
  EXPECT_THAT(config.BoolOr("b", false),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(config.Text("b"), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(config.Ids("ids"), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(config.Ids("o"), StatusIs(StatusCode::kInvalidArgument));
}

TEST(ModelConfigTest, ReadsAnObjectInsideAndNamesBothInErrors) {
  const ModelConfig config =
      With(R"("inner":{"size":3,"off":null},"size":4,"list":[1])");
  const auto inner = config.Object("inner");
  ASSERT_THAT(inner, IsOk());
  EXPECT_EQ(inner->architecture(), "A");
  EXPECT_THAT(inner->Size("size"), IsOkAndHolds(3));
  EXPECT_FALSE(inner->Has("off"));
  EXPECT_THAT(inner->Size("other"),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("config.json: inner: other is missing")));
  EXPECT_THAT(config.Object("absent"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("absent")));
  for (const char* key : {"size", "list"}) {
    EXPECT_THAT(config.Object(key), StatusIs(StatusCode::kInvalidArgument,
                                             HasSubstr("expected an object")));
  }
}

TEST(ModelConfigTest, RefusesMathsThatIsOn) {
  const ModelConfig config =
      With(R"("a":null,"b":false,"c":0,"d":"","e":[],"f":{},"g":0.0,)"
           R"("bad":true,"one":1,"text":"x","list":[0],"map":{"k":0})");
  for (const char* key : {"absent", "a", "b", "c", "d", "e", "f", "g"}) {
    EXPECT_THAT(config.RequireOff(key), IsOk()) << key;
  }
  for (const char* key : {"bad", "one", "text", "list", "map"}) {
    EXPECT_THAT(config.RequireOff(key),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(key)))
        << key;
  }
  EXPECT_THAT(config.RequireText("absent", "x"), IsOk());
  EXPECT_THAT(config.RequireText("text", "x"), IsOk());
  EXPECT_THAT(config.RequireText("text", "y"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("\"x\"")));
  EXPECT_THAT(config.RequireText("one", "y"),
              StatusIs(StatusCode::kInvalidArgument));
}

TEST(RopeConfigTest, ReadsTheOlderLayout) {
  const auto rope =
      With(R"("rope_theta":12000000,"rope_scaling":{"type":"llama3",)"
           R"("rope_type":"llama3","factor":8,"low_freq_factor":2.0,)"
           R"("high_freq_factor":5.0,"original_max_position_embeddings":8192})")
          .Rope();
  ASSERT_THAT(rope, IsOk());
  EXPECT_EQ(rope->kind, RopeConfig::Kind::kLlama3);
  EXPECT_EQ(rope->theta, 12e6);
  EXPECT_EQ(rope->factor, 8);
  EXPECT_EQ(rope->low_freq_factor, 2);
  EXPECT_EQ(rope->high_freq_factor, 5);
  EXPECT_EQ(rope->original_max_positions, 8192);
}

TEST(RopeConfigTest, ReadsTheNewerLayout) {
  const auto rope =
      With(R"("rope_parameters":{"rope_type":"yarn","rope_theta":5000.0,)"
           R"("factor":20.0,"original_max_position_embeddings":4096,)"
           R"("beta_fast":16,"beta_slow":2,"mscale":0.5,"mscale_all_dim":0.25,)"
           R"("attention_factor":1.5,"truncate":false})")
          .Rope();
  ASSERT_THAT(rope, IsOk());
  EXPECT_EQ(rope->kind, RopeConfig::Kind::kYarn);
  EXPECT_EQ(rope->theta, 5000);
  EXPECT_EQ(rope->factor, 20);
  EXPECT_EQ(rope->beta_fast, 16);
  EXPECT_EQ(rope->beta_slow, 2);
  EXPECT_EQ(rope->mscale, 0.5);
  EXPECT_EQ(rope->mscale_all_dim, 0.25);
  EXPECT_EQ(rope->attention_factor, 1.5);
  EXPECT_FALSE(rope->truncate);
}

TEST(RopeConfigTest, ReadsPlainRotationInEverySpelling) {
  for (const char* keys :
       {R"("rope_theta":70000000)", R"("rope_theta":7e7,"rope_scaling":null)",
        R"("rope_theta":7e7,"rope_scaling":{"type":"default"})",
        R"("rope_parameters":{"rope_theta":7e7})",
        R"("rope_parameters":{"rope_theta":7e7,"rope_type":"default"})",
        R"("rope_theta":7e7,"rope_parameters":{"rope_type":"default"})",
        R"("rope_theta":7e7,"rope_parameters":{"rope_theta":7e7},)"
        R"("partial_rotary_factor":1.0)"}) {
    const auto rope = With(keys).Rope();
    ASSERT_THAT(rope, IsOk()) << keys;
    EXPECT_EQ(rope->kind, RopeConfig::Kind::kPlain) << keys;
    EXPECT_EQ(rope->theta, 7e7) << keys;
  }
}

TEST(RopeConfigTest, ReadsParametersByLayerType) {
  const ModelConfig config =
      With(R"("rope_parameters":{"full":{"rope_theta":5e6,)"
           R"("partial_rotary_factor":0.25},"sliding":{"rope_theta":1e4}})");
  EXPECT_EQ(config.RopeOf("full")->theta, 5e6);
  EXPECT_EQ(config.RopeOf("full")->part, 0.25);
  EXPECT_EQ(config.RopeOf("sliding")->theta, 1e4);
  EXPECT_EQ(config.RopeOf("sliding")->part, 1);
  EXPECT_THAT(config.RopeOf("chunked"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("chunked")));
  EXPECT_THAT(config.Rope(), StatusIs(StatusCode::kInvalidArgument))
      << "one rotation for all layers";
}

TEST(RopeConfigTest, TakesAYarnFactorOfNullFromTheLengths) {
  const auto rope =
      With(R"("rope_theta":1e4,"max_position_embeddings":65536,"rope_scaling":)"
           R"({"type":"yarn","factor":null,)"
           R"("original_max_position_embeddings":4096})")
          .Rope();
  ASSERT_THAT(rope, IsOk());
  EXPECT_EQ(rope->factor, 16);
}

TEST(RopeConfigTest, ReadsTheTypeOfTheFrequencies) {
  const auto rounded = [](const std::string& keys) -> StatusOr<bool> {
    const auto rope = With(R"("rope_theta":1e4)" + keys).Rope();
    if (!rope.ok()) return rope.status();
    return rope->bf16_frequencies;
  };
  EXPECT_THAT(rounded(""), IsOkAndHolds(false));
  EXPECT_THAT(rounded(R"(,"rope_frequency_dtype":"float32")"),
              IsOkAndHolds(false));
  EXPECT_THAT(rounded(R"(,"rope_frequency_dtype":"bfloat16")"),
              IsOkAndHolds(true));
  EXPECT_THAT(rounded(R"(,"rope_frequency_dtype":"float16")"),
              StatusIs(StatusCode::kInvalidArgument));
}

TEST(RopeConfigTest, RefusesWhatItDoesNotUnderstand) {
  for (const char* keys :
       {"", R"("rope_theta":null)", R"("rope_theta":0)", R"("rope_theta":-1e4)",
        R"("rope_theta":1)", R"("rope_theta":"1e4")",
        R"("rope_theta":1e4,"rope_scaling":7)",
        R"("rope_theta":1e4,"rope_scaling":{"factor":8})",
        R"("rope_theta":1e4,"rope_scaling":{"type":"linear","factor":8})",
        R"("rope_theta":1e4,"rope_scaling":{"type":"a","rope_type":"b"})",
        R"("rope_theta":1e4,"rope_scaling":{"type":7})",
        R"("rope_theta":1e4,"rope_parameters":{"rope_theta":2e4})",
        R"("rope_theta":1e4,"rope_parameters":{},"rope_scaling":{})",
        R"("rope_theta":1e4,"rope_parameters":{"full":{"rope_theta":1e4}})",
        R"("rope_theta":1e4,"partial_rotary_factor":0.5)"}) {
    EXPECT_THAT(With(keys).Rope(), StatusIs(StatusCode::kInvalidArgument,
                                            HasSubstr("config.json: ")))
        << keys;
  }
}

constexpr const char* kLength = R"(,"original_max_position_embeddings":64)";

StatusOr<RopeConfig> Scaled(const std::string& keys) {
  return With(R"("rope_theta":1e4,"rope_scaling":{)" + keys + "}").Rope();
}

TEST(RopeConfigTest, RefusesLlama3FactorsOutOfRange) {
  const std::string llama3 =
      R"("type":"llama3","low_freq_factor":1,"high_freq_factor":4)";
  EXPECT_THAT(Scaled(llama3 + R"(,"factor":8)" + kLength), IsOk());
  EXPECT_THAT(Scaled(llama3 + R"(,"factor":8)"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("config.json: rope_scaling: "),
                             HasSubstr("original_max_position_embeddings"))));
  for (const char* factor :
       {"0", "-8", "\"8\"", "null", "[8]", "1e-10", "1e16"}) {
    EXPECT_THAT(Scaled(llama3 + kLength + R"(,"factor":)" + factor),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("factor")))
        << factor;
  }
  for (const char* keys : {R"("type":"llama3","factor":8)",
                           R"("type":"llama3","factor":8,"low_freq_factor":4,)"
                           R"("high_freq_factor":4)"}) {
    EXPECT_THAT(Scaled(std::string(keys) + kLength),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("freq")));
  }
}

// It would be left out of the maths.
TEST(RopeConfigTest, RefusesKeysThatTheTypeDoesNotHave) {
  const std::string llama3 =
      R"("type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4)";
  const std::string yarn = R"("type":"yarn","factor":4)";
  const std::pair<std::string, const char*> cases[] = {
      {llama3 + kLength + R"(,"attention_factor":1.5)", "attention_factor"},
      {yarn + kLength + R"(,"extrapolation_factor":2)", "extrapolation_factor"},
      {R"("type":"default","factor":8)", "factor"},
      {R"("mrope_section":[16,24,24])", "mrope_section"}};
  for (const auto& [keys, key] : cases) {
    EXPECT_THAT(Scaled(keys),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr(fmt::format("rope_scaling: {} is ", key))));
  }
  EXPECT_THAT(Scaled(llama3 + kLength + R"(,"attention_factor":null)"), IsOk());
}

TEST(RopeConfigTest, RefusesYarnFactorsOutOfRange) {
  const std::string yarn = R"("type":"yarn","factor":4)";
  EXPECT_THAT(Scaled(yarn + kLength), IsOk());
  EXPECT_THAT(Scaled(yarn), StatusIs(StatusCode::kInvalidArgument));
  for (const char* keys :
       {R"(,"beta_fast":1,"beta_slow":2)", R"(,"beta_fast":-1)",
        R"(,"mscale":-1)", R"(,"attention_factor":0)", R"(,"truncate":0)"}) {
    EXPECT_THAT(Scaled(yarn + kLength + keys),
                StatusIs(StatusCode::kInvalidArgument))
        << keys;
  }
  EXPECT_THAT(Scaled(R"("type":"yarn")" + std::string(kLength)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("factor")));
  EXPECT_THAT(Scaled(R"("type":"yarn","factor":null)" + std::string(kLength)),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("max_position_embeddings is missing")));
}

}  // namespace
}  // namespace baton
