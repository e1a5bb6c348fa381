// SPDX-License-Identifier: Apache-2.0
#include "actors/grpc/vllm_service.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "actors/grpc/generate_call.h"
#include "actors/grpc/grpc_util.h"
#include "actors/version.h"
#include "kernels/ops/attention.h"
#include "proto/router/vllm_engine.grpc.pb.h"

namespace baton {
namespace {

namespace common = smg::grpc::common;

int32_t Clamped(int64_t value) {
  return static_cast<int32_t>(
      std::clamp<int64_t>(value, 0, std::numeric_limits<int32_t>::max()));
}

// Finishes a server-streaming call at once.
template <typename T>
class RefuseStream : public grpc::ServerWriteReactor<T> {
 public:
  explicit RefuseStream(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

grpc::Status NotDoneHere(const std::string& what) {
  return {grpc::StatusCode::UNIMPLEMENTED, what + " is not supported"};
}

grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context,
                                    const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

class VllmService : public RpcService,
                    public engine::VllmEngine::CallbackService {
 public:
  explicit VllmService(Gateway* gateway)
      : gateway_(gateway), metrics_(gateway->facts().name) {}

  grpc::Service* service() override { return this; }

  grpc::ServerWriteReactor<engine::GenerateResponse>* Generate(
      grpc::CallbackServerContext*,
      const engine::GenerateRequest* request) override {
    auto* reactor = new GenerateReactor(gateway_, &metrics_);
    reactor->Start(*request);
    return reactor;
  }

  grpc::ServerUnaryReactor* HealthCheck(
      grpc::CallbackServerContext* context, const engine::HealthCheckRequest*,
      engine::HealthCheckResponse* response) override {
    return AskController(
        context, response,
        [](const ControllerStatus& status, engine::HealthCheckResponse& to) {
          to.set_healthy(status.state == ControllerState::kServing);
          to.set_message(
              status.detail.empty()
                  ? std::string(Name(status.state))
                  : fmt::format("{}: {}", Name(status.state), status.detail));
        });
  }

  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const engine::AbortRequest* request,
                                  engine::AbortResponse*) override {
    for (const std::string& id : request->request_ids()) {
      gateway_->AbortById(id);
    }
    return FinishNow(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* GetModelInfo(
      grpc::CallbackServerContext* context, const engine::GetModelInfoRequest*,
      engine::GetModelInfoResponse* response) override {
    const ModelFacts& facts = gateway_->facts();
    response->set_model_path(facts.path);
    response->set_is_generation(true);
    response->set_max_context_length(static_cast<uint32_t>(facts.context));
    response->set_vocab_size(static_cast<uint32_t>(facts.vocab));
    response->set_served_model_name(facts.name);
    response->set_tokenizer_path(facts.tokenizer_path);
    response->set_model_type(facts.model_type);
    response->add_architectures(facts.architecture);
    response->mutable_eos_token_ids()->Add(facts.eos_ids.begin(),
                                           facts.eos_ids.end());
    response->set_bos_token_id(facts.bos_id.value_or(0));
    response->set_pad_token_id(facts.pad_id.value_or(0));
    response->set_max_req_input_len(Clamped(facts.context - 1));
    return FinishNow(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* GetServerInfo(
      grpc::CallbackServerContext* context, const engine::GetServerInfoRequest*,
      engine::GetServerInfoResponse* response) override {
    response->set_active_requests(
        static_cast<uint32_t>(Clamped(gateway_->live())));
    response->set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - started_));
    response->set_server_type("baton");
    response->set_data_parallel_size(1);
    response->set_kv_cache_dtype(gateway_->facts().dtype);
    response->set_block_size(static_cast<int32_t>(kPageTokens));
    response->set_model_dtype(gateway_->facts().dtype);
    return FinishNow(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* GetLoads(
      grpc::CallbackServerContext* context, const engine::GetLoadsRequest*,
      engine::GetLoadsResponse* response) override {
    // The rest is filled in when the controller has answered.
    response->add_loads()->set_max_running_requests(
        Clamped(gateway_->facts().max_sequences));
    return AskController(
        context, response,
        [](const ControllerStatus& status, engine::GetLoadsResponse& to) {
          FillLoad(status, *to.mutable_loads(0));
          to.set_timestamp(absl::FormatTime(absl::RFC3339_full, absl::Now(),
                                            absl::UTCTimeZone()));
          to.set_version(BuildId());
          to.set_dp_rank_count(1);
        });
  }

  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context,
                                  const engine::EmbedRequest*,
                                  engine::EmbedResponse*) override {
    return FinishNow(context, NotDoneHere("Embed"));
  }

  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const common::FlushCacheRequest*,
                                       common::FlushCacheResponse*) override {
    return FinishNow(context, NotDoneHere("FlushCache"));
  }

  grpc::ServerWriteReactor<common::GetTokenizerChunk>* GetTokenizer(
      grpc::CallbackServerContext*,
      const common::GetTokenizerRequest*) override {
    return new RefuseStream<common::GetTokenizerChunk>(
        {grpc::StatusCode::UNIMPLEMENTED,
         "GetTokenizer is not supported: give the router the tokenizer's "
         "directory (--tokenizer-path)"});
  }

  grpc::ServerWriteReactor<common::KvEventBatch>* SubscribeKvEvents(
      grpc::CallbackServerContext*,
      const common::SubscribeKvEventsRequest*) override {
    return new RefuseStream<common::KvEventBatch>(
        NotDoneHere("SubscribeKvEvents"));
  }

 private:
  template <typename Response>
  grpc::ServerUnaryReactor* AskController(
      grpc::CallbackServerContext* context, Response* response,
      std::type_identity_t<void (*)(const ControllerStatus&, Response&)> fill) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    gateway_->controller().Tell(
        GetStatus{AnswerCall<ControllerStatus>(reactor, response, fill)});
    return reactor;
  }

  static void FillLoad(const ControllerStatus& status,
                       engine::SchedulerLoad& to) {
    const double usage = status.pages_total > 0
                             ? static_cast<double>(status.pages_used) /
                                   static_cast<double>(status.pages_total)
                             : 0;
    to.set_num_running_reqs(Clamped(status.running));
    to.set_num_waiting_reqs(Clamped(status.waiting));
    to.set_num_total_reqs(Clamped(status.running + status.waiting));
    to.set_num_used_tokens(Clamped(status.pages_used * kPageTokens));
    to.set_max_total_num_tokens(Clamped(status.pages_total * kPageTokens));
    to.set_token_usage(usage);
    to.set_utilization(static_cast<double>(status.running) /
                       std::max(1, to.max_running_requests()));
  }

  Gateway* const gateway_;
  GenerateMetrics metrics_;
  const absl::Time started_ = absl::Now();
};

}  // namespace

std::unique_ptr<RpcService> NewVllmService(Gateway* gateway) {
  return std::make_unique<VllmService>(gateway);
}

}  // namespace baton
