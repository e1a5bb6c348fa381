// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/pipeline.h"

#include <grpcpp/grpcpp.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"

namespace baton::testing {
namespace {

// Asks again until `holds`; the pace is set by the answer.
bool Await(absl::Duration timeout, const std::function<bool()>& holds) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!holds()) {
    if (absl::Now() > deadline) return false;
  }
  return true;
}

}  // namespace

Client::Client(const std::string& address) {
  auto channel =
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  front_ = engine::VllmEngine::NewStub(channel);
  controller_ = v1::Controller::NewStub(channel);
}

engine::HealthCheckResponse Client::Health() {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
  engine::HealthCheckResponse response;
  const grpc::Status status = front_->HealthCheck(&context, {}, &response);
  if (!status.ok()) response.set_message(status.error_message());
  return response;
}

engine::HealthCheckResponse Client::AwaitHealth(bool healthy,
                                                absl::Duration timeout) {
  engine::HealthCheckResponse last;
  Await(timeout, [&] {
    last = Health();
    return last.healthy() == healthy;
  });
  return last;
}

std::string Client::AwaitMessage(const std::string& text,
                                 absl::Duration timeout) {
  std::string last;
  Await(timeout, [&] {
    last = Health().message();
    return last.find(text) != std::string::npos;
  });
  return last;
}

int64_t Client::UsedTokens() {
  grpc::ClientContext context;
  engine::GetLoadsResponse response;
  const grpc::Status status = front_->GetLoads(&context, {}, &response);
  if (!status.ok() || response.loads_size() != 1) return -1;
  return response.loads(0).num_used_tokens();
}

bool Client::AwaitUsedTokens(int64_t used, absl::Duration timeout) {
  return Await(timeout, [&] { return UsedTokens() == used; });
}

Running::Running(const std::string& address, const GenerateCall& call)
    : result_(Internal("has not ended")), thread_([this, address, call] {
        result_ = Generate(
            address, call,
            [this](const GenerateChunk& chunk) {
              tokens_ += static_cast<int64_t>(chunk.ids.size());
            },
            [this] { return cancelled_.load(); });
        ended_ = true;
      }) {}

Running::~Running() {
  Cancel();
  if (thread_.joinable()) thread_.join();
}

bool Running::AwaitFirstToken(absl::Duration timeout) {
  Await(timeout, [this] {
    std::this_thread::yield();
    return tokens_ > 0 || ended_;
  });
  return tokens_ > 0 && !ended_;
}

StatusOr<GenerateSummary> Running::End() {
  if (thread_.joinable()) thread_.join();
  return result_;
}

std::string LongConfig() {
  nlohmann::json config = nlohmann::json::parse(
      ReadBytes(BATON_SOURCE_DIR "/tests/checkpoints/nanbeige/config.json"));
  config["max_position_embeddings"] = 200000;
  return config.dump();
}

GenerateCall LongCall(uint32_t max_tokens) {
  GenerateCall call;
  call.prompt = {5, 6, 7};
  call.temperature = 0;
  call.max_tokens = max_tokens;
  call.ignore_eos = true;
  return call;
}

TwoStages::TwoStages(const std::string& checkpoint,
                     std::vector<std::string> extra,
                     const std::string& deadlines)
    : args_(std::move(extra)) {
  folder_.Write("plan.yaml", "checkpoint: " + checkpoint +
                                 "\nstages: [{name: a}, {name: b}]\n" +
                                 deadlines);
  args_.insert(args_.begin(), {"--config", folder_.path() + "/plan.yaml"});
  Launch("127.0.0.1:0");
}

void TwoStages::Launch(const std::string& listen) {
  std::vector<std::string> args = {"serve", "--listen", listen};
  args.insert(args.end(), args_.begin(), args_.end());
  serve_ = std::make_unique<Process>(args);
  address_ = serve_->WaitFor("listening on ").value_or("");
}

void TwoStages::RestartController() {
  const std::string listen = address_;
  serve_.reset();
  Launch(listen);
}

void TwoStages::StartStage(const std::string& name) {
  stages_[name] = std::make_unique<Process>(std::vector<std::string>{
      "stage", "--controller", address_, "--name", name, "--threads", "1",
      "--transports", "tcp,self"});
}

void TwoStages::StartBoth() {
  StartStage("a");
  StartStage("b");
}

}  // namespace baton::testing
