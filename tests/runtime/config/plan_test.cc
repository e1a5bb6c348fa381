// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/plan.h"

#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using ::baton::testing::IsOk;
using ::baton::testing::StatusIs;
using ::testing::HasSubstr;

StatusOr<ServeConfig> Parse(const std::string& text) {
  return ParseServeConfig(text, "plan.yaml");
}

void ExpectError(const std::string& text, const std::string& message) {
  EXPECT_THAT(Parse(text),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr(message)))
      << text;
}

TEST(ServeConfigTest, ReadsEveryKey) {
  StatusOr<ServeConfig> config = Parse(R"(
checkpoint: /models/tiny
route: unrolled
dtype: f32
listen: 0.0.0.0:50051
metrics_listen: 127.0.0.1:0
stages:
  - name: near
    layers: [0, 3]
  - {name: far, layers: [3, 9]}
kv_tokens: 4096
prefill_chunk: 0
max_step_tokens: 300
max_sequences: 7
max_queue: 9
micro_batches: 3
step_deadline: 5s
load_deadline: 1h
join_deadline: 1m30s
lease: 500ms
)");
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->checkpoint, "/models/tiny");
  EXPECT_EQ(config->route, RouteKind::kUnrolled);
  EXPECT_EQ(config->dtype, DType::kF32);
  EXPECT_EQ(config->listen, "0.0.0.0:50051");
  EXPECT_EQ(config->metrics_listen, "127.0.0.1:0");
  ASSERT_EQ(config->stages.size(), 2u);
  EXPECT_EQ(config->stages[1].name, "far");
  EXPECT_EQ(config->stages[1].layers, (UnrolledRange{3, 9}));
  EXPECT_EQ(config->kv_tokens, 4096);
  EXPECT_EQ(config->prefill_chunk, 0);
  EXPECT_EQ(config->max_step_tokens, 300);
  EXPECT_EQ(config->max_sequences, 7);
  EXPECT_EQ(config->max_queue, 9);
  EXPECT_EQ(config->micro_batches, 3);
  EXPECT_EQ(config->step_deadline, absl::Seconds(5));
  EXPECT_EQ(config->load_deadline, absl::Hours(1));
  EXPECT_EQ(config->join_deadline, absl::Seconds(90));
  EXPECT_EQ(config->lease, absl::Milliseconds(500));
}

TEST(ServeConfigTest, NeedsOnlyStages) {
  StatusOr<ServeConfig> config = Parse("stages: [{name: a}]");
  ASSERT_THAT(config, IsOk());
  EXPECT_FALSE(config->stages[0].layers.has_value());
}

TEST(ServeConfigTest, ReadsRanksOfEachStage) {
  StatusOr<ServeConfig> config = Parse("stages: [{name: a, tp: 4}, {name: b}]");
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->stages[0].tp, 4);
  EXPECT_EQ(config->stages[1].tp, 1);
  ExpectError("stages:\n  - name: a\n    tp: 3\n", "tp: 3, expected 1, 2, 4");
  ExpectError("stages:\n  - name: a\n    tp: 16\n", "tp: expected an integer");
}

TEST(ServeConfigTest, NamesTheLineOfAnUnknownKey) {
  ExpectError("stages: [{name: a}]\nkv_token: 4\n",
              "plan.yaml:2: unknown key kv_token");
  ExpectError("stages:\n  - name: a\n    layer: [0, 1]\n",
              "plan.yaml:3: unknown key layer");
}

TEST(ServeConfigTest, RefusesAKeyGivenTwice) {
  ExpectError("lease: 1s\nstages: [{name: a}]\nlease: 2s\n",
              "plan.yaml:3: lease is given twice");
}

TEST(ServeConfigTest, BoundsTheKvPoolWhereverItWasSet) {
  ServeConfig config;
  config.kv_tokens = int64_t{1} << 40;
  EXPECT_EQ(CheckServeConfig(config).code(), StatusCode::kInvalidArgument);
}

TEST(ServeConfigTest, RefusesValuesOfTheWrongKind) {
  const std::string stages = "stages: [{name: a}]\n";
  ExpectError(stages + "kv_tokens: many", "plan.yaml:2: kv_tokens");
  ExpectError(stages + "kv_tokens: 1.5", "kv_tokens");
  ExpectError(stages + "kv_tokens: [1]", "kv_tokens");
  ExpectError(stages + "kv_tokens: 4294967297", "kv_tokens");
  ExpectError(stages + "max_sequences: 0", "expected an integer from 1");
  ExpectError(stages + "lease: 3", "lease: expected a duration");
  ExpectError(stages + "lease: -3s", "lease: expected a duration");
  ExpectError(stages + "route: star", "expected ring or unrolled");
  ExpectError(stages + "dtype: i32", "expected bf16 or f32");
  ExpectError(stages + "listen: 50051", "expected HOST:PORT");
  ExpectError(stages + "listen: host:70000", "expected HOST:PORT");
  ExpectError(stages + "checkpoint: [a]", "checkpoint: expected a text");
}

TEST(ServeConfigTest, RefusesAConfigWithoutStages) {
  ExpectError("lease: 1s", "stages are missing");
  ExpectError("stages: []", "at least one stage");
  ExpectError("stages: a", "at least one stage");
  ExpectError("", "expected a map");
  ExpectError("- a", "expected a map");
}

TEST(ServeConfigTest, RefusesStagesThatShareAName) {
  ExpectError("stages:\n  - name: a\n  - name: a\n",
              "plan.yaml:3: two stages are named a");
  ExpectError("stages: [{name: 'a b'}]", "stage name");
  ExpectError("stages: [{layers: [0, 1]}]", "a stage has no name");
}

TEST(ServeConfigTest, RefusesLayersOfSomeStagesOnly) {
  ExpectError("stages:\n  - {name: a, layers: [0, 2]}\n  - name: b\n",
              "plan.yaml:3: stage b: layers are given for some stages only");
}

TEST(ServeConfigTest, RefusesLayersLeftOutOrTwice) {
  ExpectError("stages: [{name: a, layers: [1, 2]}]", "expected 0");
  ExpectError("stages: [{name: a, layers: [0, 2]}, {name: b, layers: [3, 4]}]",
              "layers begin at 3, expected 2");
  ExpectError("stages: [{name: a, layers: [0, 2]}, {name: b, layers: [1, 4]}]",
              "layers begin at 1, expected 2");
  ExpectError("stages: [{name: a, layers: [0, 0]}]", "holds no layer");
  ExpectError("stages: [{name: a, layers: [0]}]", "[FIRST, END]");
}

TEST(ServeConfigTest, RefusesStepsThatCannotHoldEverySequence) {
  ExpectError("stages: [{name: a}]\nmax_sequences: 600",
              "max_step_tokens 512 is less than max_sequences 600");
}

TEST(ServeConfigTest, SaysWhereTheFileIsNotYaml) {
  ExpectError("stages:\n  - name: [a\n", "plan.yaml:");
}

}  // namespace
}  // namespace baton
