// SPDX-License-Identifier: Apache-2.0
// Between what routers say and what the controller understands: defaults,
// checks of what cannot be honoured, ids. Knows no protocol; each protocol has
// a thin service in actors/grpc.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "actors/local_pipeline.h"
#include "actors/messages.h"

namespace baton {

// What a front says about the model.
struct ModelFacts {
  std::string name;  // served as
  std::string path;
  std::string tokenizer_path;  // empty: no tokenizer there
  std::string architecture;
  std::string model_type;
  std::string dtype;
  int64_t vocab = 0;
  int64_t context = 0;
  int64_t kv_tokens = 0;
  int64_t max_sequences = 0;
  std::vector<int32_t> eos_ids;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> pad_id;
};
[[nodiscard]] StatusOr<ModelFacts> FactsOf(const OpenedModel& model,
                                           const ControllerOptions& options,
                                           const std::string& name);

// A request as a router means it; what is absent has no value.
struct GenerateCall {
  std::string request_id;
  std::vector<uint32_t> prompt;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<uint32_t> top_k;
  std::optional<float> min_p;
  std::optional<int64_t> seed;
  std::optional<uint32_t> max_tokens;
  std::optional<int32_t> logprobs;         // alternatives per token
  std::optional<int32_t> prompt_logprobs;  // the same per prompt token
  std::vector<uint32_t> stop_ids;
  bool ignore_eos = false;
};
// Temperature absent: 1; 0: greedy. Top-p absent: 1. max_tokens absent: what
// the context leaves. Seed absent: `random_seed`. InvalidArgument: an empty
// prompt, one that fills the context, ids out of range, more logprobs than
// there are. The controller checks the rest.
[[nodiscard]] StatusOr<Request> MakeRequest(const GenerateCall& call,
                                            const ModelFacts& facts,
                                            std::string id,
                                            uint64_t random_seed);

// The live requests of a front. Thread: any.
class Gateway {
 public:
  Gateway(ControllerRef controller, ModelFacts facts);

  [[nodiscard]] const ModelFacts& facts() const { return facts_; }
  [[nodiscard]] const ControllerRef& controller() const { return controller_; }

  // Sends the request to the controller; events go to `sink`. The ticket names
  // it until Forget(). Empty: refused, and the sink has ended with
  // AlreadyExists (a live request has its id) or InvalidArgument (as
  // MakeRequest).
  [[nodiscard]] std::string Submit(const GenerateCall& call,
                                   std::unique_ptr<RequestSink> sink);
  // The client gave up. Unknown tickets are ignored.
  void Abort(const std::string& ticket);
  // The same by the client's own id. False: no such request.
  bool AbortById(const std::string& request_id);
  void Forget(const std::string& ticket);
  [[nodiscard]] int64_t live() const;

 private:
  // The ticket of a request with this id.
  [[nodiscard]] StatusOr<std::string> Issue(const std::string& request_id);

  const ControllerRef controller_;
  const ModelFacts facts_;
  mutable absl::Mutex mutex_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, std::string> tickets_ ABSL_GUARDED_BY(mutex_);  // by id
};

}  // namespace baton
