// SPDX-License-Identifier: Apache-2.0
#include "runtime/weights/tokenizer.h"

#include <nlohmann/json.hpp>

#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_checkpoint.h"

namespace baton {
namespace {

using ::baton::testing::IsOk;
using ::baton::testing::ReadBytes;
using ::baton::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// `vocab` and `added` are the insides of the JSON map and list.
std::string Tokenizer(const std::string& vocab, const std::string& added = "") {
  return fmt::format(
      R"({{"decoder":{{"type":"ByteLevel"}},"added_tokens":[{}],)"
      R"("model":{{"type":"BPE","vocab":{{{}}}}}}})",
      added, vocab);
}

// Pieces of "aé€😀" and of a broken character: 0 "a", 1 " b", 2 "\xc3",
// 3 "\xa9", 4 "\xe2\x82", 5 "\xac", 6 "\xf0\x9f", 7 "\x98\x80".
TokenTable Pieces() {
  auto table = TokenTable::Parse(
      Tokenizer(R"("a":0,"Ġb":1,"Ã":2,"©":3,"âĤ":4,"¬":5,"ðŁ":6,"ĺĢ":7)"));
  EXPECT_THAT(table, IsOk());
  return *std::move(table);
}

TEST(TokenTableTest, MapsTheByteAlphabetBack) {
  const TokenTable table = Pieces();
  EXPECT_EQ(table.Bytes(0), "a");
  EXPECT_EQ(table.Bytes(1), " b");
  EXPECT_EQ(table.Bytes(2), "\xc3");
  EXPECT_EQ(table.Bytes(4), "\xe2\x82");
  EXPECT_EQ(table.Bytes(7), "\x98\x80");
}

TEST(TokenTableTest, GivesNothingForSpecialAndUnknownIds) {
  const auto table = TokenTable::Parse(Tokenizer(
      R"("<s>":0,"a":1)", R"({"id":0,"content":"<s>","special":true},)"
                          R"({"id":5,"content":"<x y>","special":false})"));
  ASSERT_THAT(table, IsOk());
  EXPECT_EQ(table->Bytes(0), "");
  EXPECT_EQ(table->Bytes(1), "a");
  EXPECT_EQ(table->Bytes(3), "");
  EXPECT_EQ(table->Bytes(5), "<x y>");  // a space is not in the alphabet
  EXPECT_EQ(table->Bytes(6), "");
  EXPECT_EQ(table->Bytes(-1), "");
}

TEST(TokenTableTest, FindsByteLevelInASequence) {
  EXPECT_THAT(TokenTable::Parse(R"({"decoder":{"type":"Sequence","decoders":)"
                                R"([{"type":"Fuse"},{"type":"ByteLevel"}]},)"
                                R"("model":{"vocab":{"a":0}}})"),
              IsOk());
}

TEST(TokenTableTest, RefusesOtherKindsOfTokenizer) {
  for (const char* text :
       {R"({"model":{"vocab":{"a":0}}})",
        R"({"decoder":null,"model":{"vocab":{"a":0}}})",
        R"({"decoder":{"type":"Metaspace"},"model":{"vocab":{"a":0}}})",
        R"({"decoder":{"type":"ByteLevel"},"model":{"vocab":[["a",0.5]]}})"}) {
    EXPECT_THAT(TokenTable::Parse(text), StatusIs(StatusCode::kUnimplemented))
        << text;
  }
}

TEST(TokenTableTest, RefusesDamagedFiles) {
  for (const std::string& text : std::vector<std::string>{
           "", "[]", "{\"decoder\":", R"({"decoder":{"type":"ByteLevel"}})",
           Tokenizer(R"("a":-1)"), Tokenizer(R"("a":4194304)"),
           Tokenizer(R"("a":1e3)"), Tokenizer(R"("a":"0")"),
           Tokenizer(R"("a":0,"a":1)"), Tokenizer(R"("a":0,"b":0)"),
           Tokenizer(R"("a":0)", R"({"id":0,"content":"b","special":true})"),
           Tokenizer(R"("a":0)", R"({"id":1})"), Tokenizer(R"("a":0)", "7"),
           Tokenizer(R"("a":0)", R"({"id":1,"content":"b","special":1})")}) {
    EXPECT_THAT(TokenTable::Parse(text), StatusIs(StatusCode::kInvalidArgument))
        << text;
  }
}

TEST(TokenTableTest, SaysWhichFileIsMissing) {
  const testing::TempFolder folder;
  EXPECT_THAT(TokenTable::Open(folder.path()),
              StatusIs(StatusCode::kNotFound, HasSubstr("tokenizer.json")));
}

TEST(TextStreamTest, HoldsBackUnfinishedCharacters) {
  const TokenTable table = Pieces();
  TextStream stream(&table);
  EXPECT_EQ(stream.Push(0), "a");
  EXPECT_EQ(stream.Push(2), "");
  EXPECT_EQ(stream.Push(3), "é");
  EXPECT_EQ(stream.Push(4), "");
  EXPECT_EQ(stream.Push(5), "€");
  EXPECT_EQ(stream.Push(6), "");
  EXPECT_EQ(stream.Push(7), "😀");
  EXPECT_EQ(stream.Push(1), " b");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStreamTest, ReplacesBrokenCharacters) {
  const TokenTable table = Pieces();
  TextStream stream(&table);
  EXPECT_EQ(stream.Push(3), "\uFFFD");   // a follower with no lead
  EXPECT_EQ(stream.Push(6), "");         // two bytes of four
  EXPECT_EQ(stream.Push(0), "\uFFFDa");  // one mark for both
  EXPECT_EQ(stream.Push(4), "");
  EXPECT_EQ(stream.Finish(), "\uFFFD");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStreamTest, KnowsTheEdgesOfUtf8) {
  // Long forms, surrogates and what is past U+10FFFF have no characters: each
  // byte that starts none is marked by itself.
  const auto table = TokenTable::Parse(
      Tokenizer(R"("Àģ":0,"íłĢ":1,"ôĲĢĢ":2,"íŁ¿":3,"ôı¿¿":4,"õ":5)"));
  ASSERT_THAT(table, IsOk());
  ASSERT_EQ(table->Bytes(1), "\xed\xa0\x80");
  const auto text = [&](int32_t id) {
    TextStream stream(&*table);
    return stream.Push(id) + stream.Finish();
  };
  EXPECT_EQ(text(0), "\uFFFD\uFFFD");
  EXPECT_EQ(text(1), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(text(2), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(text(3), "\xed\x9f\xbf");
  EXPECT_EQ(text(4), "\xf4\x8f\xbf\xbf");
  EXPECT_EQ(text(5), "\uFFFD");
}

TEST(TextStreamTest, DecodesAsTheReferenceTokenizer) {
  const std::string root =
      std::string(BATON_SOURCE_DIR) + "/tests/checkpoints/";
  for (const char* name : {"apertus", "apertus-4x-sharded", "arcee",
                           "arcee-mscale", "nanbeige", "nanbeige-skip-norm"}) {
    const auto table = TokenTable::Open(root + name);
    ASSERT_THAT(table, IsOk());
    const auto golden =
        nlohmann::json::parse(ReadBytes(root + name + "/golden.json"));
    for (const auto& one : golden["cases"]) {
      TextStream stream(&*table);
      std::string text;
      for (const int32_t id : one["greedy_ids"]) text += stream.Push(id);
      EXPECT_EQ(text + stream.Finish(), one["text"].get<std::string>()) << name;
    }
  }
}

}  // namespace
}  // namespace baton
