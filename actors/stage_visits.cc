// SPDX-License-Identifier: Apache-2.0
// The part of StageActor that runs rounds: which visit is next, whether its
// inputs are here. What it gives: stage_results.cc.
#include <algorithm>
#include <set>

#include "actors/stage_actor.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"

namespace baton {

void StageActor::Handle(RunRound message) {
  if (!session_.has_value() || session_->failed ||
      message.round.epoch != session_->info.session.epoch) {
    LogDebug("stage.round_dropped", "stage={} epoch={} round={}", options_.name,
             message.round.epoch.value(), message.round.round.value());
    return;
  }
  QueuedRound queued;
  queued.order = VisitOrder(session_->info.passes,
                            static_cast<int>(message.round.steps.size()));
  queued.round = std::move(message.round);
  rounds_.push_back(std::move(queued));
  Wake();
}

void StageActor::Wake() {
  if (std::exchange(woken_, true)) return;
  TellSelf(Continue{});
}

void StageActor::Handle(Continue) {
  woken_ = false;
  if (!session_.has_value() || session_->failed || rounds_.empty()) return;
  QueuedRound& head = rounds_.front();
  auto advance = [&]() -> StatusOr<bool> {
    if (!std::exchange(head.entered, true)) {
      BATON_RETURN_IF_ERROR(EnterRound(head));
    }
    if (head.next == head.order.size()) return true;
    const Visit visit = head.order[head.next];
    const StepDescriptor& step =
        head.round.steps[static_cast<size_t>(visit.step_index)];
    BATON_ASSIGN_OR_RETURN(bool ready, Ready(step, visit.pass));
    if (!ready) return false;
    BATON_RETURN_IF_ERROR(RunVisit(step, visit.pass));
    ++head.next;
    return true;
  };
  StatusOr<bool> advanced = advance();
  if (!advanced.ok()) {
    Fail(advanced.status());
    return;
  }
  if (!*advanced) {
    waiting_since_ = std::min(waiting_since_, Now());
    return;
  }
  waiting_since_ = absl::InfiniteFuture();
  if (head.next == head.order.size()) rounds_.pop_front();
  if (!rounds_.empty()) Wake();
}

Status StageActor::EnterRound(QueuedRound& queued) {
  for (SequenceId id : queued.round.released) {
    auto node = sequences_.extract(id);
    if (!node.empty() && node.mapped().slot >= 0) {
      free_slots_.push_back(node.mapped().slot);
    }
  }
  for (const SequenceStart& start : queued.round.starts) {
    BATON_RETURN_IF_ERROR(CheckStart(start));
    Sequence s;
    s.sampling = start.sampling;
    s.prompt_tokens = start.prompt_tokens;
    s.state_slot = start.state_slot;
    // A stage that both draws a token and reads it need not see it in between.
    if (session_->info.num_stages == 1 && !free_slots_.empty()) {
      s.slot = free_slots_.back();
      free_slots_.pop_back();
    }
    if (!sequences_.emplace(start.id, std::move(s)).second) {
      return InvalidArgument("round {} starts sequence {} twice",
                             queued.round.round.value(), start.id.value());
    }
  }
  std::set<SequenceId> seen;
  for (const StepDescriptor& step : queued.round.steps) {
    BATON_RETURN_IF_ERROR(CheckStep(step));
    for (const StepSequence& part : step.sequences) {
      if (!seen.insert(part.id).second) {
        return InvalidArgument("round {} has sequence {} in two places",
                               queued.round.round.value(), part.id.value());
      }
    }
  }
  return OkStatus();
}

// A slot for each sequence where the decoder needs any, and nobody else's.
Status StageActor::CheckStart(const SequenceStart& start) const {
  const int64_t total = info_.NeedsStateSlots() ? spec_->kv.state_slots : 0;
  const bool fits = total == 0
                        ? start.state_slot == -1
                        : start.state_slot >= 0 && start.state_slot < total;
  const bool taken =
      start.state_slot >= 0 &&
      std::any_of(sequences_.begin(), sequences_.end(), [&](const auto& entry) {
        return entry.second.state_slot == start.state_slot;
      });
  if (fits && !taken) return OkStatus();
  return InvalidArgument("sequence {} starts in state slot {} of {}{}",
                         start.id.value(), start.state_slot, total,
                         taken ? ", which another has" : "");
}

Status StageActor::CheckStep(const StepDescriptor& step) const {
  if (step.rows() > session_->info.max_step_rows) {
    return InvalidArgument("step {}: {} rows, at most {} were agreed",
                           step.step.value(), step.rows(),
                           session_->info.max_step_rows);
  }
  for (const StepSequence& part : step.sequences) {
    auto found = sequences_.find(part.id);
    if (found == sequences_.end()) {
      return InvalidArgument("step {}: sequence {} was never started",
                             step.step.value(), part.id.value());
    }
    const Sequence& s = found->second;
    const bool rows_fit =
        part.rows > 0 &&
        (part.ids.empty()
             ? part.rows == 1
             : part.ids.size() == static_cast<size_t>(part.rows)) &&
        part.targets.size() <=
            static_cast<size_t>(part.rows - (part.wants_token ? 1 : 0));
    auto in_vocab = [&](int32_t id) { return id >= 0 && id < info_.vocab; };
    const bool ids_fit =
        std::all_of(part.ids.begin(), part.ids.end(), in_vocab) &&
        std::all_of(part.targets.begin(), part.targets.end(), in_vocab);
    if (!rows_fit || !PagesFit(s, part) || !ids_fit) {
      return InvalidArgument(
          "step {}, sequence {}: {} rows at {} ({} ids, {} targets, {} new "
          "pages, {} new window pages) do not follow {} positions",
          step.step.value(), part.id.value(), part.rows, part.first_position,
          part.ids.size(), part.targets.size(), part.new_pages.size(),
          part.new_window_pages.size(), s.positions);
    }
  }
  return OkStatus();
}

bool StageActor::PagesFit(const Sequence& s, const StepSequence& part) const {
  const int64_t end = part.first_position + part.rows;
  const auto fit = [end](const std::vector<PageId>& old,
                         const std::vector<PageId>& added, int64_t total) {
    const auto pages = static_cast<int64_t>(old.size() + added.size());
    return pages >= PagesFor(end) &&
           std::all_of(added.begin(), added.end(), [total](PageId page) {
             return page >= 0 && page < total;
           });
  };
  return part.first_position == s.positions &&
         fit(s.pages, part.new_pages, spec_->kv.pages) &&
         (info_.Window() == 0 ? part.new_window_pages.empty()
                              : fit(s.window_pages, part.new_window_pages,
                                    spec_->kv.window_pages));
}

bool StageActor::IsFirst(int pass) const {
  return pass == 0 && session_->info.self == StageId(0);
}

bool StageActor::IsLast(int pass) const {
  return pass == session_->info.passes - 1 &&
         session_->info.self == StageId(session_->info.num_stages - 1);
}

PacketHeader StageActor::StreamHeader(const StepDescriptor& step,
                                      int pass) const {
  PacketHeader header;
  header.epoch = session_->info.session.epoch;
  header.step = step.step;
  header.pass = pass;
  header.kind = PacketKind::kStream;
  header.dtype = info_.stream_dtype;
  header.rows = static_cast<int32_t>(step.rows());
  header.columns = static_cast<int32_t>(info_.hidden);
  return header;
}

StatusOr<bool> StageActor::Ready(const StepDescriptor& step, int pass) {
  if (IsFirst(pass)) {
    return std::all_of(step.sequences.begin(), step.sequences.end(),
                       [&](const StepSequence& part) {
                         const Sequence& s = sequences_.at(part.id);
                         return !part.ids.empty() ||
                                s.next_token_from == part.token_from ||
                                (s.slot >= 0 && s.slot_from == part.token_from);
                       });
  }
  auto found = inbox_.find({step.step.value(), pass, PacketKind::kStream});
  if (found == inbox_.end()) return false;
  const PacketHeader expected = StreamHeader(step, pass);
  if (found->second.header != expected) {
    return InvalidArgument("recv from stage {}: {}, the step says {}",
                           found->second.from.value(),
                           ToString(found->second.header), ToString(expected));
  }
  return true;
}

Status StageActor::RunVisit(const StepDescriptor& step, int pass) {
  const absl::Time start = Now();
  const ThreadTime work;
  if (submitted_.empty()) {
    idle_seconds_.Add(absl::ToDoubleSeconds(start - idle_since_));
  }
  Packet input;
  if (!IsFirst(pass)) {
    auto node = inbox_.extract({step.step.value(), pass, PacketKind::kStream});
    input = std::move(node.mapped());
  }
  if (pass == 0) {
    for (const StepSequence& part : step.sequences) {
      Sequence& s = sequences_.at(part.id);
      s.pages.insert(s.pages.end(), part.new_pages.begin(),
                     part.new_pages.end());
      s.window_pages.insert(s.window_pages.end(), part.new_window_pages.begin(),
                            part.new_window_pages.end());
      s.positions += part.rows;
      if (IsFirst(pass) && part.wants_token) {
        due_tokens_[step.step].push_back(part.id);
      }
    }
  }
  BATON_ASSIGN_OR_RETURN(VisitResult result, Forward(step, pass, input));
  // Where the plane waits for the device by itself, nothing waits here.
  if (!IsLast(pass) && plane_->TakesDeviceMemory()) {
    BATON_RETURN_IF_ERROR(Hand(step, pass, std::move(result.stream)));
    result.stream = Tensor();
  }
  Submitted visit{.pass = pass, .result = std::move(result), .since = start};
  visit.step = step;
  // Device memory goes back to its plane in the order of the stream.
  if (input.payload.kind() == DeviceKind::kCpu) {
    visit.input = std::move(input.payload);
  }
  if (visit.result.done == nullptr) {
    return Complete(std::move(visit), work);
  }
  visit.host_seconds = work.Seconds();
  submitted_.push_back(std::move(visit));
  return OkStatus();
}

StatusOr<VisitResult> StageActor::Forward(const StepDescriptor& step, int pass,
                                          Packet& input) {
  std::vector<SequenceSpan> spans;
  std::vector<int32_t> positions;
  std::vector<int32_t> ids;
  std::vector<int32_t> logit_rows;
  std::vector<SamplingRow> sampling;
  const auto rows = static_cast<size_t>(step.rows());
  spans.reserve(step.sequences.size());
  positions.reserve(rows);
  ids.reserve(rows);
  int64_t row = 0;
  for (const StepSequence& part : step.sequences) {
    Sequence& s = sequences_.at(part.id);
    const int32_t next_token =
        s.next_token_from == part.token_from ? s.next_token : -1 - s.slot;
    spans.push_back({.first_row = row,
                     .rows = part.rows,
                     .first_position = part.first_position,
                     .pages = s.pages,
                     .prompt_rows = std::clamp<int64_t>(
                         s.prompt_tokens - part.first_position, 0, part.rows),
                     .window_pages = s.window_pages,
                     .state_slot = s.state_slot});
    for (int32_t i = 0; i < part.rows; ++i) {
      const int64_t position = part.first_position + i;
      positions.push_back(static_cast<int32_t>(position));
      ids.push_back(part.ids.empty() ? next_token
                                     : part.ids[static_cast<size_t>(i)]);
      const bool target = static_cast<size_t>(i) < part.targets.size();
      const bool sampled = part.wants_token && i + 1 == part.rows;
      if (!target && !sampled) continue;
      SamplingRow how;
      how.temperature = s.sampling.temperature;
      how.top_k = s.sampling.top_k;
      how.top_p = s.sampling.top_p;
      how.min_p = s.sampling.min_p;
      how.seed = s.sampling.seed;
      how.position = position + 1;
      how.top_logprobs =
          target ? s.sampling.prompt_logprobs : s.sampling.top_logprobs;
      how.forced = target ? part.targets[static_cast<size_t>(i)] : -1;
      how.digest = s.sampling.digest ? 1 : 0;
      if (sampled) how.slot = s.slot;
      logit_rows.push_back(static_cast<int32_t>(row + i));
      sampling.push_back(how);
    }
    row += part.rows;
    if (part.wants_token) s.slot_from = step.step;
  }
  AttentionBatch batch{spans, positions};
  VisitArgs args;
  args.step = step.step;
  args.range = spec_->ranges[static_cast<size_t>(pass)];
  args.batch = &batch;
  if (IsFirst(pass)) {
    args.ids = ids;
  } else {
    args.stream = input.payload.view();
    if (input.ready != nullptr) {
      BATON_RETURN_IF_ERROR(stream_->WaitFor(*input.ready));
    }
  }
  if (IsLast(pass)) {
    args.logit_rows = logit_rows;
    args.sampling = sampling;
  }
  BATON_ASSIGN_OR_RETURN(VisitResult result, slice_->Run(args));
  if (!IsFirst(pass)) plane_->Consume(input.from);
  if (!IsLast(pass) && !plane_->TakesDeviceMemory()) {
    BATON_RETURN_IF_ERROR(ToHost(result));
  }
  return result;
}

}  // namespace baton
