// SPDX-License-Identifier: Apache-2.0
// One VllmEngine.Generate call. Included by this folder only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "actors/gateway.h"
#include "actors/grpc/grpc_util.h"
#include "proto/router/vllm_engine.grpc.pb.h"
#include "runtime/base/metrics.h"

namespace baton {

namespace engine = vllm::grpc::engine;

// What the calls of a front count; names as gateways scrape them.
struct GenerateMetrics {
  explicit GenerateMetrics(const std::string& model);
  Counter prompt_tokens;
  Counter generated_tokens;
  Counter stopped;
  Counter cut_off;  // by length
  Counter aborted;
  Histogram first_token_seconds;
  Histogram request_seconds;
};

// The request as it is meant. InvalidArgument: asks for what is not done here;
// nothing that would change the output is ignored.
[[nodiscard]] StatusOr<GenerateCall> FromProto(
    const engine::GenerateRequest& proto);

// Takes events on the controller's thread and writes them as fast as the
// client reads; what waits is bounded by the request's max_tokens. Deletes
// itself when the call is done, which is after its sink has ended.
class GenerateReactor
    : public grpc::ServerWriteReactor<engine::GenerateResponse> {
 public:
  GenerateReactor(Gateway* gateway, GenerateMetrics* metrics)
      : gateway_(gateway), metrics_(metrics) {}

  // Once, first.
  void Start(const engine::GenerateRequest& request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class Sink;

  void Event(const TokenEvent& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(const Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes what there is to write, or finishes; nothing before Start() is done
  // and while a write runs.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The last write or status is about to go out.
  void Leave() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteComplete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillOutput(size_t begin, engine::OutputLogProbs& to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillInput(engine::InputLogProbs& to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Gateway* const gateway_;
  GenerateMetrics* const metrics_;
  const absl::Time start_ = absl::Now();
  std::vector<uint32_t> prompt_;
  bool streams_ = false;
  bool wants_logprobs_ = false;
  bool wants_prompt_logprobs_ = false;
  int prompt_alternatives_ = 0;

  absl::Mutex mutex_;
  std::string ticket_ ABSL_GUARDED_BY(mutex_);
  std::vector<SampleResult> prompt_results_ ABSL_GUARDED_BY(mutex_);
  std::vector<SampleResult> tokens_ ABSL_GUARDED_BY(mutex_);
  size_t sent_ ABSL_GUARDED_BY(mutex_) = 0;  // of tokens_
  std::optional<FinishReason> reason_ ABSL_GUARDED_BY(mutex_);
  std::optional<Status> ended_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  engine::GenerateResponse response_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
