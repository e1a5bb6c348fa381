// SPDX-License-Identifier: Apache-2.0
// Serving as a user sees it: processes, ports, signals.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <span>

#include "actors/version.h"
#include "actors/wire.h"
#include "runtime/weights/safetensors.h"
#include "tests/e2e/pipeline.h"
#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using ::baton::testing::Client;
using ::baton::testing::IsOk;
using ::baton::testing::LongCall;
using ::baton::testing::LongConfig;
using ::baton::testing::Process;
using ::baton::testing::Ran;
using ::baton::testing::ReadBytes;
using ::baton::testing::RunBaton;
using ::baton::testing::Running;
using ::baton::testing::StatusIs;
using ::baton::testing::TempFolder;
using ::baton::testing::TwoStages;
using ::testing::HasSubstr;

const char kTiny[] = BATON_SOURCE_DIR "/tests/checkpoints/nanbeige";

std::string ToText(const nlohmann::json& ids) {
  std::string text;
  for (const auto& id : ids) text += std::to_string(id.get<int>()) + ",";
  return text;
}

// Stages inside the server.
class EmbeddedTest : public ::testing::Test {
 protected:
  EmbeddedTest()
      : serve_({"serve", kTiny, "--listen", "127.0.0.1:0", "--dtype", "f32",
                "--stages", "2", "--threads", "1"}) {
    address_ = serve_.WaitFor("listening on ").value_or("");
    serving_ = serve_.WaitFor("serving nanbeige on ").has_value();
  }
  Ran Ask(std::vector<std::string> args) {
    args.insert(args.begin(), {"generate", "--server", address_});
    return RunBaton(args);
  }
  Process serve_;
  std::string address_;
  bool serving_ = false;
};

TEST_F(EmbeddedTest, GeneratesTheGoldenTokens) {
  ASSERT_TRUE(serving_) << serve_.output();
  const nlohmann::json golden =
      nlohmann::json::parse(ReadBytes(std::string(kTiny) + "/golden.json"));
  for (const nlohmann::json& prompt : golden["cases"]) {
    const Ran ran = Ask({"--ids", ToText(prompt["prompt_ids"]), "--temperature",
                         "0", "--max-tokens", "16", "--ignore-eos", "--json"});
    ASSERT_EQ(ran.exit_code, 0) << ran.output;
    const nlohmann::json got = nlohmann::json::parse(ran.output);
    EXPECT_EQ(got["ids"], prompt["greedy_ids"]);
    EXPECT_EQ(got["text"], prompt["text"]);
    EXPECT_EQ(got["finish_reason"], "length");
  }
}

TEST_F(EmbeddedTest, RefusesBadRequests) {
  ASSERT_TRUE(serving_) << serve_.output();
  const struct {
    std::vector<std::string> args;
    std::string message;
  } cases[] = {
      {{"--ids", "5,283"}, "INVALID_ARGUMENT: prompt id 283 at position 1"},
      {{"--ids", ""}, "INVALID_ARGUMENT: the prompt is empty"},
      {{"--ids", "5", "--max-tokens", "0"}, "INVALID_ARGUMENT: max_tokens 0"},
      {{"--ids", "5,6", "--max-tokens", "191"},
       "INVALID_ARGUMENT: prompt of 2 tokens + max_tokens 191 is over the "
       "context of 192"},
      {{"--ids", "5", "--temperature", "-1"}, "INVALID_ARGUMENT: temperature"},
      {{"--ids", "5", "--temperature", "nan"}, "INVALID_ARGUMENT: temperature"},
      {{"--ids", "5", "--top-p", "1.5"}, "INVALID_ARGUMENT: top_p"},
      {{"--ids", "5", "--min-p", "-2"}, "INVALID_ARGUMENT: min_p"},
      {{"--ids", "5", "--logprobs", "65"}, "INVALID_ARGUMENT: logprobs"},
      {{"--ids", "five"}, "INVALID_ARGUMENT: token ids"},
  };
  for (const auto& [args, message] : cases) {
    const Ran ran = Ask(args);
    EXPECT_EQ(ran.exit_code, 1) << ran.output;
    EXPECT_THAT(ran.output, HasSubstr(message));
  }
  std::string over;
  for (int i = 0; i < 192; ++i) over += "5,";
  EXPECT_THAT(Ask({"--ids", over}).output,
              HasSubstr("INVALID_ARGUMENT: the prompt has 192 tokens"));
}

TEST_F(EmbeddedTest, GivesTheSameTokensForTheSameSeed) {
  ASSERT_TRUE(serving_) << serve_.output();
  const std::vector<std::string> args = {
      "--ids", "9,8,7", "--seed", "42", "--json", "--max-tokens", "20"};
  const Ran first = Ask(args);
  ASSERT_EQ(first.exit_code, 0) << first.output;
  EXPECT_EQ(nlohmann::json::parse(first.output)["ids"],
            nlohmann::json::parse(Ask(args).output)["ids"]);
}

TEST_F(EmbeddedTest, SaysThatItsPortIsTaken) {
  ASSERT_TRUE(serving_) << serve_.output();
  const Ran ran = RunBaton({"serve", kTiny, "--listen", address_});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.output, HasSubstr("cannot listen on " + address_));
}

TEST_F(EmbeddedTest, RefusesWhatItCannotHonour) {
  ASSERT_TRUE(serving_) << serve_.output();
  Client client(address_);
  testing::engine::GenerateRequest request;
  request.mutable_tokenized()->add_input_ids(5);
  const auto code = [&] {
    grpc::ClientContext context;
    auto reader = client.front().Generate(&context, request);
    testing::engine::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    return reader->Finish().error_code();
  };
  request.mutable_sampling_params()->set_max_tokens(1);
  EXPECT_EQ(code(), grpc::StatusCode::OK);
  request.mutable_sampling_params()->set_n(2);
  EXPECT_EQ(code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_sampling_params()->set_n(1);
  request.mutable_sampling_params()->set_regex("a*");
  EXPECT_EQ(code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_sampling_params()->clear_regex();
  request.mutable_sampling_params()->set_presence_penalty(1);
  EXPECT_EQ(code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_text("hello");
  EXPECT_EQ(code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(EmbeddedTest, StopsOnSigtermWithCodeZero) {
  ASSERT_TRUE(serving_) << serve_.output();
  serve_.Signal(SIGTERM);
  EXPECT_EQ(serve_.WaitForExit(), 0) << serve_.output();
}

TEST(CommandLineTest, ExitsWithTwoOnWrongUsage) {
  EXPECT_EQ(RunBaton({}).exit_code, 2);
  EXPECT_EQ(RunBaton({"serve", kTiny, "--nonsense"}).exit_code, 2);
  EXPECT_EQ(RunBaton({"serve", kTiny, "--stages", "0"}).exit_code, 2);
  EXPECT_EQ(RunBaton({"--help"}).exit_code, 0);
}

// gRPC would choose a port for the one left out, and wrap the large one around.
TEST(CommandLineTest, RefusesAddressesThatAreNotHostAndPort) {
  for (const char* address : {"127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x"}) {
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{
             {"serve", kTiny, "--listen"},
             {"serve", kTiny, "--metrics"},
             {"stage", "--name", "a", "--controller"},
             {"stage", "--name", "a", "--controller", "h:1", "--listen"},
             {"generate", "--ids", "1", "--server"}}) {
      std::vector<std::string> line = command;
      line.emplace_back(address);
      const Ran ran = RunBaton(line);
      EXPECT_EQ(ran.exit_code, 2) << ran.output;
      EXPECT_THAT(ran.output,
                  HasSubstr(fmt::format("{}: expected HOST:PORT, found \"{}\"",
                                        command.back(), address)));
    }
  }
}

TEST(CommandLineTest, RefusesACanaryWithoutAHop) {
  const Ran ran = RunBaton({"parity", kTiny, "--pp", "1", "--canary"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.output, HasSubstr("--canary"));
  EXPECT_EQ(RunBaton({"parity", kTiny, "--max-tokens", "-1"}).exit_code, 2);
}

TEST(CommandLineTest, RefusesACheckpointWithoutWeights) {
  const Ran ran =
      RunBaton({"serve", BATON_SOURCE_DIR "/tests/configs/apertus-8b"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.output, HasSubstr("NOT_FOUND"));
}

TEST(CommandLineTest, InspectsAndPlansAConfigAlone) {
  const std::string folder = BATON_SOURCE_DIR "/tests/configs/nanbeige4.2-3b";
  const Ran inspect = RunBaton({"inspect", folder});
  EXPECT_EQ(inspect.exit_code, 0);
  EXPECT_THAT(inspect.output, HasSubstr("4,169,800,704"));
  EXPECT_THAT(inspect.output, HasSubstr("180,224"));
  const Ran plan = RunBaton({"plan", folder, "--stages", "2"});
  EXPECT_EQ(plan.exit_code, 0);
  EXPECT_THAT(plan.output, HasSubstr("stage1"));
}

TEST(CommandLineTest, InspectsWhatEachRankHolds) {
  const std::string tiny = BATON_SOURCE_DIR "/tests/checkpoints/";
  const Ran spark = RunBaton({"inspect", tiny + "spark2_5-ranks", "--tp", "4"});
  EXPECT_EQ(spark.exit_code, 0);
  for (const char* line :
       {"self_attn.q_k_v_proj.weight [256,64]: 32 rows of queries; of keys and "
        "of values 32 rows, each on 2 ranks\n",
        "self_attn.g_proj.weight [4,64]: 1 rows\n",
        "self_attn.out_proj.weight [64,128]: 32 columns\n",
        "input_layernorm.weight [64]: all on every rank\n",
        "model.embedding.weight [284,64]: 16 columns\n",
        "model.embedding.weight [284,64]: 71 rows\n",
        " bytes on each of 4\n"}) {
    EXPECT_THAT(spark.output, HasSubstr(line));
  }
  const Ran kimi =
      RunBaton({"inspect", tiny + "kimi-linear-ranks", "--tp", "2"});
  EXPECT_THAT(kimi.output,
              HasSubstr("kv_b_proj.2.key.weight [16,28]: all on rank 1\n"));
  const Ran refused = RunBaton({"inspect", tiny + "spark2_5", "--tp", "4"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.output,
              HasSubstr("q_k_v_proj.weight [240,64]: 6 equal parts do not "
                        "divide among 4 ranks"));
}

// The tiny checkpoint with one element of the final norm that is no number.
TempFolder Damaged() {
  TempFolder folder;
  const std::string tiny = kTiny;
  folder.Write("config.json", ReadBytes(tiny + "/config.json"));
  std::string bytes = ReadBytes(tiny + "/model.safetensors");
  const auto tensors = ParseSafetensors(std::as_bytes(std::span(bytes)), tiny);
  for (const SafetensorsTensor& tensor : tensors.value()) {
    if (tensor.name != "model.norm.weight") continue;
    const auto* data = reinterpret_cast<const char*>(tensor.data.data());
    bytes.replace(static_cast<size_t>(data - bytes.data()), 2, "\xc0\x7f");
  }
  folder.Write("model.safetensors", bytes);
  return folder;
}

TEST(DamagedWeightsTest, EndTheRequestInsteadOfMakingUpTokens) {
  const TempFolder folder = Damaged();
  Process serve({"serve", folder.path(), "--listen", "127.0.0.1:0"});
  const std::string address = serve.WaitFor("listening on ").value_or("");
  ASSERT_TRUE(serve.WaitFor("serving ").has_value()) << serve.output();
  EXPECT_THAT(Running(address, LongCall(8)).End(),
              StatusIs(StatusCode::kDataLoss, HasSubstr("not finite")));
  EXPECT_TRUE(Client(address).AwaitUsedTokens(0, absl::Seconds(10)));
}

TEST(DisconnectTest, FreesThePagesOfAClientThatLeft) {
  TempFolder folder;
  folder.Write("config.json", LongConfig());
  Process serve({"serve", folder.path(), "--random-weights", "--listen",
                 "127.0.0.1:0", "--kv-tokens", "60000", "--threads", "1"});
  const std::string address = serve.WaitFor("listening on ").value_or("");
  ASSERT_TRUE(serve.WaitFor("serving ").has_value()) << serve.output();
  Client client(address);
  Running running(address, LongCall(50000));
  ASSERT_TRUE(running.AwaitFirstToken());
  EXPECT_GT(client.UsedTokens(), 0);
  running.Cancel();
  EXPECT_THAT(running.End(), StatusIs(StatusCode::kCancelled));
  EXPECT_TRUE(client.AwaitUsedTokens(0, absl::Seconds(10)));
}

}  // namespace
}  // namespace baton
