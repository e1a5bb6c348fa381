// SPDX-License-Identifier: Apache-2.0
#include "actors/grpc/generate_call.h"

#include <algorithm>
#include <utility>

namespace baton {
namespace {

Counter FinishedCounter(const std::string& model, const std::string& reason) {
  return Counter("vllm:request_success_total", "Requests that ended",
                 {{"model_name", model}, {"finished_reason", reason}});
}

void AddTop(const SampleResult& result, int most, engine::TopLogProbs& to) {
  const size_t count =
      std::min(result.top.size(), static_cast<size_t>(std::max(most, 0)));
  for (size_t i = 0; i < count; ++i) {
    to.add_values(result.top[i].logprob);
    to.add_token_ids(static_cast<uint32_t>(result.top[i].token));
  }
}

Status CheckSampling(const engine::SamplingParams& p) {
  if (p.constraint_case() != engine::SamplingParams::CONSTRAINT_NOT_SET) {
    return InvalidArgument("constrained decoding is not supported");
  }
  if (p.n() > 1) {
    return InvalidArgument("n {}: only one choice is supported", p.n());
  }
  if (p.frequency_penalty() != 0 || p.presence_penalty() != 0 ||
      (p.repetition_penalty() != 0 && p.repetition_penalty() != 1)) {
    return InvalidArgument(
        "frequency, presence and repetition penalties are not supported");
  }
  if (!p.logit_bias().empty()) {
    return InvalidArgument("logit_bias is not supported");
  }
  if (p.min_tokens() > 0) {
    return InvalidArgument("min_tokens {} is not supported", p.min_tokens());
  }
  if (p.has_truncate_prompt_tokens()) {
    return InvalidArgument("truncate_prompt_tokens is not supported");
  }
  return OkStatus();
}

Status CheckInput(const engine::GenerateRequest& proto) {
  if (proto.has_text()) {
    return InvalidArgument("text input: send token ids (`tokenized`)");
  }
  if (!proto.has_tokenized()) return InvalidArgument("there is no input");
  if (proto.has_mm_inputs() || proto.has_media_refs() ||
      !proto.extra_mm_inputs().empty()) {
    return InvalidArgument("multimodal input is not supported");
  }
  if (proto.has_kv_transfer_params() || proto.has_kv_transfer_params_json()) {
    return InvalidArgument("KV transfer is not supported");
  }
  if (proto.data_parallel_rank() != 0) {
    return InvalidArgument("data_parallel_rank {}: there is only rank 0",
                           proto.data_parallel_rank());
  }
  return OkStatus();
}

}  // namespace

GenerateMetrics::GenerateMetrics(const std::string& model)
    : prompt_tokens("vllm:prompt_tokens_total", "Prompt tokens taken",
                    {{"model_name", model}}),
      generated_tokens("vllm:generation_tokens_total", "Tokens generated",
                       {{"model_name", model}}),
      stopped(FinishedCounter(model, "stop")),
      cut_off(FinishedCounter(model, "length")),
      aborted(FinishedCounter(model, "abort")),
      first_token_seconds("vllm:time_to_first_token_seconds",
                          "From request to first token",
                          {{"model_name", model}}),
      request_seconds("vllm:e2e_request_latency_seconds", "From request to end",
                      {{"model_name", model}}) {}

// Stop strings are left to the router, which cuts the text there: this worker
// sees no text. Sampling fields without presence count as absent when 0.
StatusOr<GenerateCall> FromProto(const engine::GenerateRequest& proto) {
  const engine::SamplingParams& p = proto.sampling_params();
  BATON_RETURN_IF_ERROR(CheckInput(proto));
  BATON_RETURN_IF_ERROR(CheckSampling(p));
  GenerateCall call;
  call.request_id = proto.request_id();
  call.prompt.assign(proto.tokenized().input_ids().begin(),
                     proto.tokenized().input_ids().end());
  if (p.has_temperature()) call.temperature = p.temperature();
  if (p.top_p() != 0) call.top_p = p.top_p();
  if (p.top_k() != 0) call.top_k = p.top_k();
  if (p.min_p() != 0) call.min_p = p.min_p();
  if (p.has_seed()) call.seed = p.seed();
  if (p.has_max_tokens()) call.max_tokens = p.max_tokens();
  if (p.has_logprobs()) call.logprobs = p.logprobs();
  if (p.has_prompt_logprobs()) call.prompt_logprobs = p.prompt_logprobs();
  call.stop_ids.assign(p.stop_token_ids().begin(), p.stop_token_ids().end());
  call.ignore_eos = p.ignore_eos();
  return call;
}

// The controller's handle on the call; one that is dropped without an end says
// so itself.
class GenerateReactor::Sink : public RequestSink {
 public:
  explicit Sink(GenerateReactor* reactor) : reactor_(reactor) {}
  ~Sink() override { OnEnd(Unavailable("the controller has stopped")); }
  void OnEvent(const TokenEvent& event) override { reactor_->Event(event); }
  void OnEnd(const Status& status) override {
    if (reactor_ != nullptr) std::exchange(reactor_, nullptr)->End(status);
  }

 private:
  GenerateReactor* reactor_;
};

void GenerateReactor::Start(const engine::GenerateRequest& request) {
  std::string ticket;
  StatusOr<GenerateCall> call = FromProto(request);
  if (call.ok()) {
    prompt_ = call->prompt;
    streams_ = request.stream();
    wants_logprobs_ = call->logprobs.has_value();
    wants_prompt_logprobs_ = call->prompt_logprobs.has_value();
    prompt_alternatives_ = call->prompt_logprobs.value_or(0);
    ticket = gateway_->Submit(*call, std::make_unique<Sink>(this));
    if (!ticket.empty()) {
      metrics_->prompt_tokens.Add(static_cast<double>(prompt_.size()));
    }
  } else {
    End(call.status());
  }
  Gateway* const gateway = gateway_;
  bool abort = false;
  {
    absl::MutexLock lock(&mutex_);
    ticket_ = ticket;
    started_ = true;
    abort = cancelled_;
    Advance();  // may finish the call: `this` is gone after the lock
  }
  if (abort && !ticket.empty()) gateway->Abort(ticket);
}

void GenerateReactor::Event(const TokenEvent& event) {
  absl::MutexLock lock(&mutex_);
  prompt_results_.insert(prompt_results_.end(), event.prompt_logprobs.begin(),
                         event.prompt_logprobs.end());
  if (event.token.has_value()) {
    if (tokens_.empty()) {
      metrics_->first_token_seconds.Observe(
          absl::ToDoubleSeconds(absl::Now() - start_));
    }
    metrics_->generated_tokens.Add();
    tokens_.push_back(*event.token);
  }
  if (event.finished.has_value()) reason_ = event.finished;
  Advance();
}

void GenerateReactor::End(const Status& status) {
  absl::MutexLock lock(&mutex_);
  ended_ = status;
  Advance();
}

void GenerateReactor::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  Advance();
}

void GenerateReactor::OnCancel() {
  std::string ticket;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    ticket = ticket_;
  }
  if (!ticket.empty()) gateway_->Abort(ticket);
}

void GenerateReactor::Advance() {
  if (!started_ || writing_ || finished_) return;
  if (ended_.has_value() && (!ended_->ok() || cancelled_)) {
    Leave();
    metrics_->aborted.Add();
    Finish(ToGrpc(ended_->ok() ? Status(StatusCode::kCancelled, "cancelled")
                               : *ended_));
    return;
  }
  if (cancelled_) return;
  if (streams_ && sent_ < tokens_.size()) return WriteChunk();
  if (ended_.has_value()) WriteComplete();
}

void GenerateReactor::Leave() {
  finished_ = true;
  // Before the client hears of the end: it may use the id again at once.
  if (!ticket_.empty()) gateway_->Forget(ticket_);
}

void GenerateReactor::OnDone() {
  // Whoever finished the call may still be inside the lock.
  { absl::MutexLock lock(&mutex_); }
  delete this;
}

void GenerateReactor::FillOutput(size_t begin, engine::OutputLogProbs& to) {
  for (size_t i = begin; i < tokens_.size(); ++i) {
    to.add_token_logprobs(tokens_[i].logprob);
    to.add_token_ids(static_cast<uint32_t>(tokens_[i].token));
    AddTop(tokens_[i], static_cast<int>(tokens_[i].top.size()),
           *to.add_top_logprobs());
  }
}

// The first prompt token has no logprob.
void GenerateReactor::FillInput(engine::InputLogProbs& to) {
  to.add_token_logprobs();
  to.add_token_ids(prompt_.front());
  to.add_top_logprobs();
  for (const SampleResult& result : prompt_results_) {
    to.add_token_logprobs()->set_value(result.logprob);
    to.add_token_ids(static_cast<uint32_t>(result.token));
    AddTop(result, prompt_alternatives_, *to.add_top_logprobs());
  }
}

void GenerateReactor::WriteChunk() {
  response_.Clear();
  engine::GenerateStreamChunk& chunk = *response_.mutable_chunk();
  for (size_t i = sent_; i < tokens_.size(); ++i) {
    chunk.add_token_ids(static_cast<uint32_t>(tokens_[i].token));
  }
  chunk.set_prompt_tokens(static_cast<uint32_t>(prompt_.size()));
  chunk.set_completion_tokens(static_cast<uint32_t>(tokens_.size() - sent_));
  if (wants_logprobs_) FillOutput(sent_, *chunk.mutable_output_logprobs());
  if (wants_prompt_logprobs_ && sent_ == 0) {
    FillInput(*chunk.mutable_input_logprobs());
  }
  sent_ = tokens_.size();
  writing_ = true;
  StartWrite(&response_);
}

void GenerateReactor::WriteComplete() {
  response_.Clear();
  engine::GenerateComplete& complete = *response_.mutable_complete();
  for (const SampleResult& token : tokens_) {
    complete.add_output_ids(static_cast<uint32_t>(token.token));
  }
  const bool stopped = reason_ == FinishReason::kStop;
  complete.set_finish_reason(stopped ? "stop" : "length");
  (stopped ? metrics_->stopped : metrics_->cut_off).Add();
  if (stopped && !tokens_.empty()) {
    complete.set_matched_token_id(static_cast<uint32_t>(tokens_.back().token));
  }
  complete.set_prompt_tokens(static_cast<uint32_t>(prompt_.size()));
  complete.set_completion_tokens(static_cast<uint32_t>(tokens_.size()));
  if (!streams_) {
    if (wants_logprobs_) FillOutput(0, *complete.mutable_output_logprobs());
    if (wants_prompt_logprobs_) FillInput(*complete.mutable_input_logprobs());
  }
  metrics_->request_seconds.Observe(
      absl::ToDoubleSeconds(absl::Now() - start_));
  Leave();
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

}  // namespace baton
