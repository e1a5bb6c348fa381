// SPDX-License-Identifier: Apache-2.0
#include "actors/wire.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace baton {
namespace {

// More than any step of ours has; less than what could hurt.
constexpr int kMaxSteps = 1 << 12;
constexpr int kMaxSequences = 1 << 20;
constexpr int kMaxRows = 1 << 24;
constexpr int kMaxTop = 64;

template <typename Field>
Status CheckCount(const Field& field, int most, std::string_view what) {
  if (field.size() > most) {
    return InvalidArgument("{}: {} of them, at most {} are allowed", what,
                           field.size(), most);
  }
  return OkStatus();
}

Status CheckPresent(bool present, std::string_view what) {
  if (!present) return InvalidArgument("{} is missing", what);
  return OkStatus();
}

Status CheckNotNegative(const google::protobuf::RepeatedField<int32_t>& values,
                        std::string_view what) {
  for (const int32_t value : values) {
    if (value < 0) return InvalidArgument("{}: {} is negative", what, value);
  }
  return OkStatus();
}

Status CheckPages(const google::protobuf::RepeatedField<int32_t>& pages,
                  std::string_view what) {
  BATON_RETURN_IF_ERROR(CheckNotNegative(pages, what));
  return CheckCount(pages, kMaxRows, what);
}

template <typename T>
std::vector<T> ToVector(const google::protobuf::RepeatedField<T>& field) {
  return std::vector<T>(field.begin(), field.end());
}

void Fill(const StepSequence& s, v1::StepSequence& proto) {
  proto.set_id(s.id.value());
  proto.set_first_position(s.first_position);
  proto.set_rows(s.rows);
  proto.mutable_ids()->Add(s.ids.begin(), s.ids.end());
  proto.set_token_from(s.token_from.value());
  proto.mutable_new_pages()->Add(s.new_pages.begin(), s.new_pages.end());
  proto.mutable_new_window_pages()->Add(s.new_window_pages.begin(),
                                        s.new_window_pages.end());
  proto.set_wants_token(s.wants_token);
  proto.mutable_targets()->Add(s.targets.begin(), s.targets.end());
}

// Rows, the tokens they come from and what is wanted of them.
Status CheckRows(const v1::StepSequence& proto) {
  if (proto.rows() < 1 || proto.rows() > kMaxRows) {
    return InvalidArgument("sequence {}: rows {}, expected 1 to {}", proto.id(),
                           proto.rows(), kMaxRows);
  }
  if (proto.first_position() < 0 ||
      proto.first_position() >
          std::numeric_limits<int32_t>::max() - proto.rows()) {
    return InvalidArgument("sequence {}: first_position {}", proto.id(),
                           proto.first_position());
  }
  if (proto.ids().empty()) {
    if (proto.rows() != 1 || proto.token_from() == 0) {
      return InvalidArgument(
          "sequence {}: {} rows without ids, from step {}; expected one row "
          "and a step",
          proto.id(), proto.rows(), proto.token_from());
    }
  } else if (proto.ids_size() != proto.rows() || proto.token_from() != 0) {
    return InvalidArgument("sequence {}: {} ids for {} rows, from step {}",
                           proto.id(), proto.ids_size(), proto.rows(),
                           proto.token_from());
  }
  if (proto.targets_size() + (proto.wants_token() ? 1 : 0) > proto.rows()) {
    return InvalidArgument("sequence {}: {} targets for {} rows", proto.id(),
                           proto.targets_size(), proto.rows());
  }
  return OkStatus();
}

StatusOr<StepSequence> FromProto(const v1::StepSequence& proto) {
  BATON_RETURN_IF_ERROR(CheckPresent(proto.id() != 0, "sequence id"));
  BATON_RETURN_IF_ERROR(
      CheckPresent(proto.has_first_position(), "first_position"));
  BATON_RETURN_IF_ERROR(CheckRows(proto));
  BATON_RETURN_IF_ERROR(CheckNotNegative(proto.ids(), "ids"));
  BATON_RETURN_IF_ERROR(CheckNotNegative(proto.targets(), "targets"));
  BATON_RETURN_IF_ERROR(CheckPages(proto.new_pages(), "new_pages"));
  BATON_RETURN_IF_ERROR(
      CheckPages(proto.new_window_pages(), "new_window_pages"));
  StepSequence s;
  s.id = SequenceId(proto.id());
  s.first_position = proto.first_position();
  s.rows = proto.rows();
  s.ids = ToVector(proto.ids());
  s.token_from = StepId(proto.token_from());
  s.new_pages = ToVector(proto.new_pages());
  s.new_window_pages = ToVector(proto.new_window_pages());
  s.wants_token = proto.wants_token();
  s.targets = ToVector(proto.targets());
  return s;
}

StatusOr<StepDescriptor> FromProto(const v1::StepDescriptor& proto) {
  BATON_RETURN_IF_ERROR(CheckPresent(proto.step() != 0, "step"));
  BATON_RETURN_IF_ERROR(CheckPresent(proto.has_slot(), "slot"));
  if (proto.slot() < 0 || proto.slot() > kMaxSteps) {
    return InvalidArgument("step {}: slot {}", proto.step(), proto.slot());
  }
  BATON_RETURN_IF_ERROR(
      CheckPresent(!proto.sequences().empty(), "sequences of a step"));
  BATON_RETURN_IF_ERROR(
      CheckCount(proto.sequences(), kMaxSequences, "sequences of a step"));
  StepDescriptor step;
  step.step = StepId(proto.step());
  step.slot = proto.slot();
  for (const v1::StepSequence& part : proto.sequences()) {
    StatusOr<StepSequence> sequence = FromProto(part);
    if (!sequence.ok()) {
      return Annotate(sequence.status(), fmt::format("step {}", proto.step()));
    }
    step.sequences.push_back(*std::move(sequence));
  }
  if (step.rows() > kMaxRows) {
    return InvalidArgument("step {}: {} rows, at most {} are allowed",
                           proto.step(), step.rows(), kMaxRows);
  }
  return step;
}

void Fill(const SampleResult& sample, v1::SampleResult& proto) {
  proto.set_token(sample.token);
  proto.set_logprob(sample.logprob);
  for (const TokenLogprob& top : sample.top) {
    v1::TokenLogprob& to = *proto.add_top();
    to.set_token(top.token);
    to.set_logprob(top.logprob);
  }
  proto.set_digest(sample.digest);
}

StatusOr<SampleResult> FromProto(const v1::SampleResult& proto) {
  BATON_RETURN_IF_ERROR(CheckCount(proto.top(), kMaxTop, "top"));
  if (proto.token() < 0) {
    return InvalidArgument("token: {} is negative", proto.token());
  }
  SampleResult sample;
  sample.token = proto.token();
  sample.logprob = proto.logprob();
  for (const v1::TokenLogprob& top : proto.top()) {
    if (top.token() < 0) {
      return InvalidArgument("top token: {} is negative", top.token());
    }
    sample.top.push_back({top.token(), top.logprob()});
  }
  sample.digest = proto.digest();
  return sample;
}

Status CheckSampling(const v1::SamplingParams& proto) {
  BATON_RETURN_IF_ERROR(CheckPresent(
      proto.has_temperature() && proto.has_top_k() && proto.has_top_p() &&
          proto.has_min_p() && proto.has_seed(),
      "a field of sampling"));
  if (!(proto.temperature() >= 0) || !std::isfinite(proto.temperature()) ||
      proto.top_k() < 0 || !(proto.top_p() > 0 && proto.top_p() <= 1) ||
      !(proto.min_p() >= 0 && proto.min_p() <= 1)) {
    return InvalidArgument(
        "sampling: temperature {} top_k {} top_p {} min_p {}",
        proto.temperature(), proto.top_k(), proto.top_p(), proto.min_p());
  }
  if (proto.top_logprobs() < 0 || proto.top_logprobs() > kMaxTop ||
      proto.prompt_logprobs() < 0 || proto.prompt_logprobs() > kMaxTop) {
    return InvalidArgument("sampling: top_logprobs {} prompt_logprobs {}",
                           proto.top_logprobs(), proto.prompt_logprobs());
  }
  return OkStatus();
}

}  // namespace

v1::SamplingParams ToProto(const SamplingParams& sampling) {
  v1::SamplingParams proto;
  proto.set_temperature(sampling.temperature);
  proto.set_top_k(sampling.top_k);
  proto.set_top_p(sampling.top_p);
  proto.set_min_p(sampling.min_p);
  proto.set_seed(sampling.seed);
  proto.set_top_logprobs(sampling.top_logprobs);
  proto.set_prompt_logprobs(sampling.prompt_logprobs);
  proto.set_digest(sampling.digest);
  return proto;
}

StatusOr<SamplingParams> FromProto(const v1::SamplingParams& proto) {
  BATON_RETURN_IF_ERROR(CheckSampling(proto));
  SamplingParams sampling;
  sampling.temperature = proto.temperature();
  sampling.top_k = proto.top_k();
  sampling.top_p = proto.top_p();
  sampling.min_p = proto.min_p();
  sampling.seed = proto.seed();
  sampling.top_logprobs = proto.top_logprobs();
  sampling.prompt_logprobs = proto.prompt_logprobs();
  sampling.digest = proto.digest();
  return sampling;
}

v1::Round ToProto(const Round& round) {
  v1::Round proto;
  proto.set_epoch(round.epoch.value());
  proto.set_round(round.round.value());
  for (const SequenceId id : round.released) proto.add_released(id.value());
  for (const SequenceStart& start : round.starts) {
    v1::SequenceStart& to = *proto.add_starts();
    to.set_id(start.id.value());
    *to.mutable_sampling() = ToProto(start.sampling);
    to.set_prompt_tokens(start.prompt_tokens);
    if (start.state_slot >= 0) to.set_state_slot(start.state_slot);
  }
  for (const StepDescriptor& step : round.steps) {
    v1::StepDescriptor& to = *proto.add_steps();
    to.set_step(step.step.value());
    to.set_slot(step.slot);
    for (const StepSequence& s : step.sequences) Fill(s, *to.add_sequences());
  }
  return proto;
}

StatusOr<Round> FromProto(const v1::Round& proto) {
  BATON_RETURN_IF_ERROR(CheckPresent(proto.epoch() != 0, "epoch"));
  BATON_RETURN_IF_ERROR(CheckPresent(proto.round() != 0, "round"));
  BATON_RETURN_IF_ERROR(
      CheckCount(proto.released(), kMaxSequences, "released"));
  BATON_RETURN_IF_ERROR(CheckCount(proto.starts(), kMaxSequences, "starts"));
  BATON_RETURN_IF_ERROR(CheckCount(proto.steps(), kMaxSteps, "steps"));
  Round round;
  round.epoch = Epoch(proto.epoch());
  round.round = RoundId(proto.round());
  for (const uint64_t id : proto.released()) {
    BATON_RETURN_IF_ERROR(CheckPresent(id != 0, "a released id"));
    round.released.push_back(SequenceId(id));
  }
  for (const v1::SequenceStart& start : proto.starts()) {
    BATON_RETURN_IF_ERROR(CheckPresent(start.id() != 0, "a started id"));
    BATON_RETURN_IF_ERROR(CheckPresent(start.has_sampling(), "sampling"));
    BATON_RETURN_IF_ERROR(
        CheckPresent(start.prompt_tokens() > 0, "prompt_tokens"));
    BATON_ASSIGN_OR_RETURN(SamplingParams sampling,
                           FromProto(start.sampling()));
    if (start.has_state_slot() && start.state_slot() < 0) {
      return InvalidArgument("state_slot: {} is negative", start.state_slot());
    }
    round.starts.push_back({SequenceId(start.id()), sampling,
                            start.prompt_tokens(),
                            start.has_state_slot() ? start.state_slot() : -1});
  }
  for (const v1::StepDescriptor& step : proto.steps()) {
    BATON_ASSIGN_OR_RETURN(StepDescriptor descriptor, FromProto(step));
    round.steps.push_back(std::move(descriptor));
  }
  return round;
}

v1::StepResult ToProto(const StepResult& result) {
  v1::StepResult proto;
  proto.set_epoch(result.epoch.value());
  proto.set_step(result.step.value());
  for (const SequenceResult& sequence : result.sequences) {
    v1::SequenceResult& to = *proto.add_sequences();
    to.set_id(sequence.id.value());
    for (const SampleResult& sample : sequence.samples) {
      Fill(sample, *to.add_samples());
    }
  }
  return proto;
}

StatusOr<StepResult> FromProto(const v1::StepResult& proto) {
  BATON_RETURN_IF_ERROR(CheckPresent(proto.epoch() != 0, "epoch"));
  BATON_RETURN_IF_ERROR(CheckPresent(proto.step() != 0, "step"));
  BATON_RETURN_IF_ERROR(
      CheckCount(proto.sequences(), kMaxSequences, "sequences"));
  StepResult result;
  result.epoch = Epoch(proto.epoch());
  result.step = StepId(proto.step());
  for (const v1::SequenceResult& from : proto.sequences()) {
    BATON_RETURN_IF_ERROR(CheckPresent(from.id() != 0, "sequence id"));
    BATON_RETURN_IF_ERROR(CheckCount(from.samples(), kMaxRows, "samples"));
    SequenceResult sequence;
    sequence.id = SequenceId(from.id());
    for (const v1::SampleResult& sample : from.samples()) {
      BATON_ASSIGN_OR_RETURN(SampleResult value, FromProto(sample));
      sequence.samples.push_back(std::move(value));
    }
    result.sequences.push_back(std::move(sequence));
  }
  return result;
}

}  // namespace baton
