// SPDX-License-Identifier: Apache-2.0
// A controller and its stages as processes on loopback, and a client of them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actors/grpc/generate_client.h"
#include "proto/controller.grpc.pb.h"
#include "proto/router/vllm_engine.grpc.pb.h"
#include "tests/e2e/process.h"
#include "tests/testing/tiny_checkpoint.h"

namespace baton::testing {

namespace engine = vllm::grpc::engine;

// Calls the front of a server.
class Client {
 public:
  explicit Client(const std::string& address);

  engine::HealthCheckResponse Health();
  // Polls until HealthCheck says so; the last answer.
  engine::HealthCheckResponse AwaitHealth(
      bool healthy, absl::Duration timeout = absl::Seconds(30));
  // Polls until HealthCheck says `text`; the last message.
  std::string AwaitMessage(const std::string& text,
                           absl::Duration timeout = absl::Seconds(30));
  int64_t UsedTokens();
  bool AwaitUsedTokens(int64_t used,
                       absl::Duration timeout = absl::Seconds(30));
  engine::VllmEngine::Stub& front() { return *front_; }
  v1::Controller::Stub& controller() { return *controller_; }

 private:
  std::unique_ptr<engine::VllmEngine::Stub> front_;
  std::unique_ptr<v1::Controller::Stub> controller_;
};

// A request that runs on a thread of its own.
class Running {
 public:
  Running(const std::string& address, const GenerateCall& call);
  ~Running();
  // False: it ended first, or the deadline has passed.
  bool AwaitFirstToken(absl::Duration timeout = absl::Seconds(30));
  void Cancel() { cancelled_ = true; }
  // How it ended; waits for that.
  StatusOr<GenerateSummary> End();

 private:
  std::atomic<int64_t> tokens_ = 0;
  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> ended_ = false;
  StatusOr<GenerateSummary> result_;
  std::thread thread_;
};

// A tiny looped decoder with room for very long requests; random weights.
[[nodiscard]] std::string LongConfig();
// A greedy request of `max_tokens` that no end token stops.
[[nodiscard]] GenerateCall LongCall(uint32_t max_tokens);

// serve with two stages a and b in processes of their own.
class TwoStages {
 public:
  // `extra`: more arguments of serve; `deadlines`: lines of its config. Waits
  // until it listens.
  TwoStages(const std::string& checkpoint, std::vector<std::string> extra,
            const std::string& deadlines = "lease: 1s\nstep_deadline: 10s\n");

  void StartStage(const std::string& name);
  void StartBoth();
  // Of the stage started last under that name.
  Process& stage(const std::string& name) { return *stages_.at(name); }
  void DropStage(const std::string& name) { stages_.erase(name); }
  Process& serve() { return *serve_; }
  // Kills the controller and starts another one on the same port.
  void RestartController();
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  void Launch(const std::string& listen);

  TempFolder folder_;
  std::vector<std::string> args_;
  std::unique_ptr<Process> serve_;
  std::map<std::string, std::unique_ptr<Process>> stages_;
  std::string address_;
};

}  // namespace baton::testing
