// SPDX-License-Identifier: Apache-2.0
#include "actors/grpc/generate_client.h"

#include <thread>

#include "actors/grpc/grpc_util.h"
#include "proto/router/vllm_engine.grpc.pb.h"

namespace baton {
namespace {

namespace engine = vllm::grpc::engine;

engine::GenerateRequest ToProto(const GenerateCall& call) {
  engine::GenerateRequest proto;
  proto.set_request_id(call.request_id);
  proto.set_stream(true);
  proto.mutable_tokenized()->mutable_input_ids()->Add(call.prompt.begin(),
                                                      call.prompt.end());
  engine::SamplingParams& p = *proto.mutable_sampling_params();
  if (call.temperature.has_value()) p.set_temperature(*call.temperature);
  p.set_top_p(call.top_p.value_or(0));
  p.set_top_k(call.top_k.value_or(0));
  p.set_min_p(call.min_p.value_or(0));
  if (call.seed.has_value()) p.set_seed(static_cast<int32_t>(*call.seed));
  if (call.max_tokens.has_value()) p.set_max_tokens(*call.max_tokens);
  if (call.logprobs.has_value()) p.set_logprobs(*call.logprobs);
  if (call.prompt_logprobs.has_value()) {
    p.set_prompt_logprobs(*call.prompt_logprobs);
  }
  p.mutable_stop_token_ids()->Add(call.stop_ids.begin(), call.stop_ids.end());
  p.set_ignore_eos(call.ignore_eos);
  return proto;
}

SampleResult ToResult(uint32_t token, float logprob,
                      const engine::TopLogProbs& top) {
  SampleResult result;
  result.token = static_cast<int32_t>(token);
  result.logprob = logprob;
  for (int i = 0; i < std::min(top.values_size(), top.token_ids_size()); ++i) {
    result.top.push_back(
        {static_cast<int32_t>(top.token_ids(i)), top.values(i)});
  }
  return result;
}

GenerateChunk ToChunk(const engine::GenerateStreamChunk& proto) {
  GenerateChunk chunk;
  chunk.ids.assign(proto.token_ids().begin(), proto.token_ids().end());
  const engine::OutputLogProbs& out = proto.output_logprobs();
  for (int i = 0; i < std::min({out.token_logprobs_size(), out.token_ids_size(),
                                out.top_logprobs_size()});
       ++i) {
    chunk.logprobs.push_back(
        ToResult(out.token_ids(i), out.token_logprobs(i), out.top_logprobs(i)));
  }
  const engine::InputLogProbs& in = proto.input_logprobs();
  for (int i = 1; i < std::min({in.token_logprobs_size(), in.token_ids_size(),
                                in.top_logprobs_size()});
       ++i) {
    chunk.prompt_logprobs.push_back(ToResult(
        in.token_ids(i), in.token_logprobs(i).value(), in.top_logprobs(i)));
  }
  return chunk;
}

GenerateSummary ToSummary(const engine::GenerateComplete& proto) {
  GenerateSummary summary;
  summary.ids.assign(proto.output_ids().begin(), proto.output_ids().end());
  summary.finish_reason = proto.finish_reason();
  summary.prompt_tokens = proto.prompt_tokens();
  if (proto.has_matched_token_id()) {
    summary.matched_id = static_cast<int32_t>(proto.matched_token_id());
  }
  return summary;
}

}  // namespace

StatusOr<GenerateSummary> Generate(
    const std::string& server, const GenerateCall& call,
    const std::function<void(const GenerateChunk&)>& on_chunk,
    const std::function<bool()>& cancelled) {
  auto stub = engine::VllmEngine::NewStub(OpenChannel(server));
  grpc::ClientContext context;
  std::jthread watcher([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (cancelled()) return context.TryCancel();
      absl::SleepFor(absl::Milliseconds(20));
    }
  });
  std::unique_ptr<grpc::ClientReader<engine::GenerateResponse>> reader =
      stub->Generate(&context, ToProto(call));
  StatusOr<GenerateSummary> summary =
      Internal("the stream ended without a summary");
  engine::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_chunk()) on_chunk(ToChunk(response.chunk()));
    if (response.has_complete()) summary = ToSummary(response.complete());
  }
  const Status status = FromGrpc(reader->Finish());
  if (!status.ok()) return status;
  return summary;
}

StatusOr<ServedModel> AskModel(const std::string& server) {
  auto stub = engine::VllmEngine::NewStub(OpenChannel(server));
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(10));
  engine::GetModelInfoResponse response;
  BATON_RETURN_IF_ERROR(FromGrpc(stub->GetModelInfo(&context, {}, &response)));
  ServedModel model;
  model.name = response.served_model_name();
  model.tokenizer_path = response.tokenizer_path();
  model.context = response.max_context_length();
  return model;
}

}  // namespace baton
