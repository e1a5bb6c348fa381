// SPDX-License-Identifier: Apache-2.0
#include "runtime/weights/safetensors.h"

#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_checkpoint.h"

namespace baton {
namespace {

using ::baton::testing::IsOk;
using ::baton::testing::SafetensorsBuilder;
using ::baton::testing::SafetensorsBytes;
using ::baton::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

StatusOr<std::vector<SafetensorsTensor>> Parse(const std::string& bytes) {
  return ParseSafetensors(std::as_bytes(std::span(bytes)), "f.safetensors");
}

// One header over eight bytes of data.
StatusOr<std::vector<SafetensorsTensor>> ParseHeader(
    const std::string& header) {
  return Parse(SafetensorsBytes(header, "12345678"));
}

TEST(SafetensorsTest, ReadsTensorsInTheOrderOfTheirData) {
  const std::string bytes = SafetensorsBytes(
      R"({"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[4,8]},)"
      R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}   )",
      "abcdefgh");
  const auto tensors = Parse(bytes);
  ASSERT_THAT(tensors, IsOk());
  ASSERT_EQ(tensors->size(), 2U);
  EXPECT_EQ((*tensors)[0].name, "b");
  EXPECT_EQ((*tensors)[0].dtype, DType::kBF16);
  EXPECT_EQ((*tensors)[0].shape, (Shape{1, 2}));
  EXPECT_EQ((*tensors)[1].name, "a");
  EXPECT_EQ((*tensors)[1].shape, Shape{});
  ASSERT_EQ((*tensors)[1].data.size(), 4U);
  EXPECT_EQ((*tensors)[1].data[0], std::byte{'e'});
}

TEST(SafetensorsTest, ReadsAFileWithoutTensorsAndATensorWithoutElements) {
  EXPECT_THAT(Parse(SafetensorsBytes("{}", "")), IsOk());
  const auto empty = Parse(SafetensorsBuilder().AddBf16("e", {0, 7}).Bytes());
  ASSERT_THAT(empty, IsOk());
  EXPECT_TRUE((*empty)[0].data.empty());
}

TEST(SafetensorsTest, RefusesAFileTooShortForALength) {
  EXPECT_THAT(Parse(""), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(Parse("1234567"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("7 bytes")));
}

TEST(SafetensorsTest, RefusesAHeaderLengthThatLies) {
  EXPECT_THAT(Parse(SafetensorsBytes("{}", "", 3)),
              StatusIs(StatusCode::kDataLoss, HasSubstr("header of 3 bytes")));
  EXPECT_THAT(Parse(SafetensorsBytes("{}", "", INT64_MAX)),
              StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(Parse(std::string(8, '\xff') + "{}"),
              StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(Parse(SafetensorsBytes("{}", "", 1)),
              StatusIs(StatusCode::kDataLoss, HasSubstr("JSON")));
  EXPECT_THAT(Parse(SafetensorsBytes("{}", "", 0)),
              StatusIs(StatusCode::kDataLoss, HasSubstr("JSON")));
}

TEST(SafetensorsTest, KnowsAPointerInPlaceOfTheFile) {
  EXPECT_THAT(Parse("version https://git-lfs.github.com/spec/v1\n"
                    "oid sha256:5e1f\nsize 16060522752\n"),
              StatusIs(StatusCode::kDataLoss,
                       HasSubstr("f.safetensors: a Git LFS pointer")));
}

TEST(SafetensorsTest, RefusesATruncatedFile) {
  std::string bytes = SafetensorsBuilder().AddBf16("w", {2, 2}).Bytes();
  bytes.pop_back();
  EXPECT_THAT(Parse(bytes),
              StatusIs(StatusCode::kDataLoss,
                       AllOf(HasSubstr("f.safetensors: tensor w"),
                             HasSubstr("[0,8] outside the file's 7 bytes"))));
}

TEST(SafetensorsTest, RefusesATensorNamedTwice) {
  EXPECT_THAT(
      ParseHeader(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
      StatusIs(StatusCode::kDataLoss, HasSubstr("\"w\" is given twice")));
}

TEST(SafetensorsTest, RefusesOverlapsAndHolesAndUnclaimedData) {
  EXPECT_THAT(
      ParseHeader(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
      StatusIs(StatusCode::kDataLoss, HasSubstr("tensor b overlaps the one "
                                                "before it by 4 bytes")));
  EXPECT_THAT(
      ParseHeader(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[6,8]}})"),
      StatusIs(StatusCode::kDataLoss,
               HasSubstr("a hole of 2 bytes before tensor b")));
  EXPECT_THAT(
      ParseHeader(R"({"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}})"),
      StatusIs(StatusCode::kDataLoss,
               HasSubstr("2 bytes of data belong to no tensor")));
}

TEST(SafetensorsTest, RefusesOffsetsThatDoNotFitShapeAndType) {
  EXPECT_THAT(
      ParseHeader(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})"),
      StatusIs(StatusCode::kDataLoss,
               HasSubstr("8 bytes of data, f32 [3] needs 12")));
  for (const char* offsets :
       {"[0,9]", "[8,0]", "[-1,7]", "[0]", "[0,4,8]", "[0,8.0]", "\"0,8\"",
        "[0,18446744073709551615]", "null"}) {
    EXPECT_THAT(
        ParseHeader(fmt::format(
            R"({{"a":{{"dtype":"F32","shape":[2],"data_offsets":{}}}}})",
            offsets)),
        StatusIs(StatusCode::kDataLoss, HasSubstr("tensor a")))
        << offsets;
  }
}

TEST(SafetensorsTest, RefusesShapesThatOverflow) {
  for (const char* shape : {"[4611686018427387904,4]", "[9223372036854775807]",
                            "[4294967296,4294967296,0]", "[-1]", "[1.0]",
                            "[\"1\"]", "2", "[18446744073709551615]"}) {
    EXPECT_THAT(
        ParseHeader(fmt::format(
            R"({{"a":{{"dtype":"F32","shape":{},"data_offsets":[0,8]}}}})",
            shape)),
        StatusIs(StatusCode::kDataLoss, HasSubstr("tensor a: shape")))
        << shape;
  }
}

TEST(SafetensorsTest, NamesTensorAndTypeItCannotRead) {
  EXPECT_THAT(
      ParseHeader(R"({"q":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}})"),
      StatusIs(StatusCode::kUnimplemented,
               AllOf(HasSubstr("tensor q"), HasSubstr("dtype F16"))));
  EXPECT_THAT(
      ParseHeader(R"({"q":{"dtype":"F17","shape":[4],"data_offsets":[0,8]}})"),
      StatusIs(StatusCode::kDataLoss, HasSubstr("\"F17\"")));
  EXPECT_THAT(ParseHeader(R"({"q":{"dtype":"F32","shape":[1,1,1,1,1,2],)"
                          R"("data_offsets":[0,8]}})"),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("6 dimensions")));
}

TEST(SafetensorsTest, RefusesHeadersThatAreNotMapsOfTensors) {
  for (const char* header :
       {"", "[]", "7", "{", R"({"a":7})", R"({"a":{}})", R"({"a":NaN})",
        R"({"a":{"dtype":"F32","shape":[2]}})",
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}})",
        R"({"":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
        R"({"__metadata__":{"a":1}})", R"({"__metadata__":[]})",
        R"({"a":{"dtype":"F32","shape":[[[[2]]]],"data_offsets":[0,8]}})",
        "{\"\xff\":{}}"}) {
    EXPECT_THAT(ParseHeader(header), StatusIs(StatusCode::kDataLoss)) << header;
  }
}

TEST(SafetensorsIndexTest, ReadsTheWeightMap) {
  const auto index = ParseSafetensorsIndex(
      R"({"metadata":{"total_size":8},"weight_map":{"a":"x.safetensors"}})",
      "index");
  ASSERT_THAT(index, IsOk());
  EXPECT_EQ(index->at("a"), "x.safetensors");
}

TEST(SafetensorsIndexTest, RefusesFileNamesThatLeaveTheFolder) {
  for (const char* file :
       {"\"../x.safetensors\"", "\"/x.safetensors\"", "\"a/x.safetensors\"",
        "\"..\"", "\".safetensors\"", "\"a\\\\x.safetensors\"", "\"\"", "7",
        "\"x\\u0000.safetensors\"", "\"config.json\"", "null"}) {
    EXPECT_THAT(ParseSafetensorsIndex(
                    fmt::format(R"({{"weight_map":{{"a":{}}}}})", file), "i"),
                StatusIs(StatusCode::kDataLoss, HasSubstr("tensor a")))
        << file;
  }
}

TEST(SafetensorsIndexTest, RefusesAnIndexWithoutAMap) {
  for (const char* text : {"", "[]", "{}", R"({"weight_map":{}})",
                           R"({"weight_map":[]})", R"({"weight_map":null})"}) {
    EXPECT_THAT(ParseSafetensorsIndex(text, "i"),
                StatusIs(StatusCode::kDataLoss))
        << text;
  }
}

}  // namespace
}  // namespace baton
