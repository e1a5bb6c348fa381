// SPDX-License-Identifier: Apache-2.0
// The part of StageActor that hands on what visits give: rows to the next
// stage, tokens to the first, results to the controller.
#include <algorithm>

#include "actors/stage_actor.h"
#include "runtime/base/clock.h"

namespace baton {

bool StageActor::Progress() {
  if (submitted_.empty()) return false;
  const ThreadTime work;
  const StatusOr<bool> done = submitted_.front().result.done->Done();
  if (done.ok() && !*done) return false;
  Submitted visit = std::move(submitted_.front());
  submitted_.pop_front();
  if (!session_.has_value() || session_->failed) return true;
  Status status = done.status();
  if (status.ok()) {
    // The device runs it from when the one before was complete.
    visit.since = std::max(visit.since, idle_since_);
    status = Complete(std::move(visit), work);
    // A visit that is next may have waited for these tokens.
    if (!rounds_.empty()) Wake();
  }
  if (!status.ok()) Fail(std::move(status));
  return true;
}

Status StageActor::Complete(Submitted visit, const ThreadTime& work) {
  idle_since_ = Now();
  const double seconds = absl::ToDoubleSeconds(idle_since_ - visit.since);
  step_seconds_.Observe(seconds);
  times_.busy_seconds += seconds;
  const double before = visit.host_seconds;
  Status status = HandOn(std::move(visit));
  times_.host_seconds[static_cast<size_t>(
      times_.visits++ % StageTimes::kRecent)] = before + work.Seconds();
  return status;
}

Status StageActor::HandOn(Submitted visit) {
  if (IsLast(visit.pass)) return Finish(visit.step, std::move(visit.result));
  if (visit.result.stream.empty()) return OkStatus();  // handed on already
  return Hand(visit.step, visit.pass, std::move(visit.result.stream));
}

// To the stage that goes on with the step.
Status StageActor::Hand(const StepDescriptor& step, int pass, Tensor stream) {
  const bool wraps =
      session_->info.self.value() + 1 == session_->info.num_stages;
  const StageId next(wraps ? 0 : session_->info.self.value() + 1);
  return plane_->Send(next, StreamHeader(step, wraps ? pass + 1 : pass),
                      std::move(stream));
}

// The data plane takes host memory.
Status StageActor::ToHost(VisitResult& result) {
  Device& device = *options_.devices[0];
  if (device.kind() == DeviceKind::kCpu) return OkStatus();
  Tensor& stream = result.stream;
  BATON_ASSIGN_OR_RETURN(Buffer host, device.AllocateHost(stream.bytes()));
  BATON_RETURN_IF_ERROR(
      device.Copy(host.data(), stream.view().data(), stream.bytes(), *stream_));
  stream = Tensor(std::move(host), stream.dtype(), stream.shape());
  BATON_ASSIGN_OR_RETURN(result.done, stream_->Record());
  return OkStatus();
}

Status StageActor::Finish(const StepDescriptor& step, VisitResult result) {
  StepDone done;
  done.result.epoch = session_->info.session.epoch;
  done.result.step = step.step;
  BATON_ASSIGN_OR_RETURN(Tensor tokens,
                         Tensor::AllocateHost(DType::kI32, {step.tokens(), 1}));
  std::vector<SampleResult> samples = result.Samples();
  int64_t next_token = 0;
  size_t next_sample = 0;
  for (const StepSequence& part : step.sequences) {
    SequenceResult& out = done.result.sequences.emplace_back();
    out.id = part.id;
    const size_t count = part.targets.size() + (part.wants_token ? 1 : 0);
    for (size_t i = 0; i < count; ++i) {
      out.samples.push_back(std::move(samples[next_sample++]));
    }
    if (part.wants_token) {
      *tokens.view().Row<int32_t>(next_token++) = out.samples.back().token;
    }
  }
  // Tokens first: the next step of these sequences may be waiting for them.
  if (session_->info.self == StageId(0)) {
    BATON_RETURN_IF_ERROR(TakeTokens(step.step, tokens));
  } else if (step.tokens() > 0) {
    PacketHeader header;
    header.epoch = session_->info.session.epoch;
    header.step = step.step;
    header.kind = PacketKind::kTokens;
    header.dtype = DType::kI32;
    header.rows = step.tokens();
    header.columns = 1;
    BATON_RETURN_IF_ERROR(plane_->Send(StageId(0), header, std::move(tokens)));
  }
  options_.on_step_done(std::move(done));
  return OkStatus();
}

// Stage 0: the tokens of a step, for the sequences that asked for them.
Status StageActor::TakeTokens(StepId step, const Tensor& tokens) {
  auto node = due_tokens_.extract(step);
  const size_t due = node.empty() ? 0 : node.mapped().size();
  if (due != static_cast<size_t>(tokens.shape()[0])) {
    return InvalidArgument("tokens of step {}: {} came, {} are due",
                           step.value(), tokens.shape()[0], due);
  }
  for (size_t i = 0; i < due; ++i) {
    const int32_t token = *tokens.view().Row<int32_t>(static_cast<int64_t>(i));
    if (token < 0 || token >= info_.vocab) {
      return InvalidArgument("token {} of step {}: the vocabulary has {}",
                             token, step.value(), info_.vocab);
    }
    auto found = sequences_.find(node.mapped()[i]);
    if (found == sequences_.end()) continue;  // released since
    found->second.next_token = token;
    found->second.next_token_from = step;
  }
  return OkStatus();
}

}  // namespace baton
