// SPDX-License-Identifier: Apache-2.0
#include "runtime/sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace baton {

int64_t WindowPagesFor(const SchedulerOptions& options, int64_t positions) {
  if (options.window == 0) return 0;
  const int64_t all = PagesFor(positions);
  if (options.prefill_chunk == 0) return all;  // rows of a whole prompt
  const int64_t in_flight = int64_t{options.run_ahead} * options.prefill_chunk;
  return std::min(all, PagesFor(options.window + in_flight) + 1);
}

int64_t EnoughWindowPages(const SchedulerOptions& options) {
  const int64_t most = WindowPagesFor(options, options.kv_pages * kPageTokens);
  return std::min(options.kv_pages, options.max_sequences * most);
}

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      pool_(options.kv_pages),
      window_pool_(options.window_pages),
      state_pool_(options.state_slots),
      slots_(static_cast<size_t>(options.slots)) {
  BATON_CHECK(options.slots > 0 && options.run_ahead > 0);
  BATON_CHECK(options.max_step_tokens >= options.max_sequences);
  BATON_CHECK(options.window_pages >=
              WindowPagesFor(options, options.kv_pages * kPageTokens));
}

Status Scheduler::Add(Request request) {
  auto same_id = [&](const Sequence& s) { return s.request.id == request.id; };
  if (std::any_of(waiting_.begin(), waiting_.end(), same_id) ||
      std::any_of(running_.begin(), running_.end(),
                  [&](const auto& entry) { return same_id(entry.second); })) {
    return InvalidArgument("request id {} is in use", request.id);
  }
  if (waiting() >= options_.max_queue) {
    return ResourceExhausted("{} requests are waiting, the most allowed",
                             waiting());
  }
  Sequence s;
  s.id = SequenceId(next_sequence_++);
  s.tokens = request.prompt;
  s.request = std::move(request);
  waiting_.push_back(std::move(s));
  return OkStatus();
}

bool Scheduler::Abort(const std::string& request) {
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    if (it->request.id == request) {
      waiting_.erase(it);
      return true;
    }
  }
  for (auto& [id, s] : running_) {
    if (s.request.id == request) {
      Release(id);
      return true;
    }
  }
  return false;
}

std::vector<std::string> Scheduler::AbortAll() {
  std::vector<std::string> ids;
  for (const Sequence& s : waiting_) ids.push_back(s.request.id);
  for (const auto& [id, s] : running_) ids.push_back(s.request.id);
  waiting_.clear();
  while (!running_.empty()) Release(running_.begin()->first);
  for (Slot& slot : slots_) slot.in_flight.clear();
  released_.clear();
  return ids;
}

void Scheduler::AdmitWaiting() {
  if (waiting_.empty()) return;
  // Room for all known tokens and one more, so that a prompt never starts only
  // to be preempted by its own length or by that of one that started with it.
  int64_t available = pool_.available();
  int64_t window_available = window_pool_.total();
  for (const auto& [id, s] : running_) {
    available -= PagesLacking(s);
    window_available -= WindowPagesPromised(s);
  }
  while (!waiting_.empty() && running() < options_.max_sequences) {
    Sequence& s = waiting_.front();
    available -= PagesLacking(s);
    window_available -= WindowPagesPromised(s);
    if (available < 0 || window_available < 0) return;
    if (options_.state_slots > 0) {
      if (state_pool_.available() == 0) return;
      s.state_slot = state_pool_.Take(1).value().front();
    }
    int best = 0;
    for (int i = 1; i < options_.slots; ++i) {
      if (slots_[i].sequences.size() < slots_[best].sequences.size()) best = i;
    }
    s.slot = best;
    slots_[best].sequences.push_back(s.id);
    running_.emplace(s.id, std::move(s));
    waiting_.pop_front();
  }
}

int64_t Scheduler::PagesLacking(const Sequence& s) {
  const int64_t need = PagesFor(std::min(s.known() + 1, s.end()));
  return std::max<int64_t>(0, need - static_cast<int64_t>(s.pages.size()));
}

int64_t Scheduler::WindowPagesPromised(const Sequence& s) const {
  // A sequence holds no more of them than of the others, which run out first.
  if (window_pool_.total() >= pool_.total()) return 0;
  return WindowPagesFor(options_, s.end());
}

bool Scheduler::HasWork(const Slot& slot) const {
  return std::any_of(slot.sequences.begin(), slot.sequences.end(),
                     [&](SequenceId id) {
                       const Sequence& s = running_.at(id);
                       return s.issued < s.end();
                     });
}

// Slots take turns, so that a stage finds the steps of different slots in turn:
// one that is ahead of its turn would only wait there for its own last token,
// with the others behind it.
int Scheduler::NextTurn() const {
  for (int i = 0; i < options_.slots; ++i) {
    const int slot = (next_slot_ + i) % options_.slots;
    if (HasWork(slots_[slot])) return IsFull(slots_[slot]) ? -1 : slot;
  }
  return -1;
}

bool Scheduler::IsFull(const Slot& slot) const {
  return static_cast<int>(slot.in_flight.size()) >= options_.run_ahead;
}

std::optional<Round> Scheduler::NextRound(Epoch epoch) {
  AdmitWaiting();
  // A looped route keeps its stages busy only while rounds stay whole: wait
  // until every slot can take part.
  const bool waits = options_.passes > 1 &&
                     std::any_of(slots_.begin(), slots_.end(),
                                 [this](const Slot& s) { return IsFull(s); });
  int slot = waits ? -1 : NextTurn();
  if (slot < 0 && released_.empty()) return std::nullopt;
  Round round;
  round.epoch = epoch;
  round.round = RoundId(next_round_);
  round.released = std::exchange(released_, {});
  // No slot twice: a step may need a token of the slot's last one.
  std::vector<bool> built(static_cast<size_t>(options_.slots));
  while (slot >= 0 && !built[static_cast<size_t>(slot)]) {
    built[static_cast<size_t>(slot)] = true;
    BuildStep(slot, round);
    next_slot_ = (slot + 1) % options_.slots;
    slot = NextTurn();
  }
  // Sequences preempted while the round was built are told of right away.
  for (SequenceId id : std::exchange(released_, {})) {
    round.released.push_back(id);
  }
  if (round.steps.empty() && round.released.empty()) return std::nullopt;
  ++next_round_;
  return round;
}

void Scheduler::BuildStep(int slot, Round& round) {
  StepDescriptor step;
  step.step = StepId(next_step_);
  step.slot = slot;
  int64_t budget = options_.max_step_tokens;
  const std::vector<SequenceId> sequences = slots_[slot].sequences;
  for (SequenceId id : sequences) {
    auto it = running_.find(id);  // may have been preempted meanwhile
    if (it == running_.end() || budget == 0) continue;
    const Sequence& s = it->second;
    if (!s.decoding() || s.issued + 1 < s.known() || s.issued >= s.end()) {
      continue;
    }
    if (AddRows(id, 1, round, step)) --budget;
  }
  for (SequenceId id : sequences) {
    auto it = running_.find(id);
    if (it == running_.end() || budget <= 0) continue;
    const Sequence& s = it->second;
    if (s.last_round == round.round) continue;
    int64_t rows = s.known() - s.issued;
    if (rows <= 0 || s.issued >= s.end()) continue;
    if (options_.prefill_chunk > 0) {
      rows = std::min({rows, int64_t{options_.prefill_chunk}, budget});
    }
    if (AddRows(id, rows, round, step)) budget -= rows;
  }
  if (step.sequences.empty()) return;
  ++next_step_;
  slots_[slot].in_flight.push_back(step);
  round.steps.push_back(std::move(step));
}

bool Scheduler::AddRows(SequenceId id, int64_t rows, Round& round,
                        StepDescriptor& step) {
  Sequence& s = running_.at(id);
  StepSequence part;
  part.id = id;
  part.first_position = s.issued;
  part.rows = static_cast<int32_t>(rows);
  const int64_t end = s.issued + rows;
  if (!GrowPages(s, end, round.round, part.new_pages)) return false;
  if (options_.window > 0) {
    part.new_window_pages = s.window_pages.Grow(end, window_pool_);
  }
  if (s.issued < s.known()) {
    part.ids.assign(s.tokens.begin() + s.issued, s.tokens.begin() + end);
  } else {
    part.token_from = s.last_step;
  }
  part.wants_token = end >= s.known();
  if (s.request.sampling.prompt_logprobs > 0) {
    const int64_t targets =
        std::clamp<int64_t>(s.prompt() - 1 - s.issued, 0, rows);
    part.targets.assign(s.tokens.begin() + s.issued + 1,
                        s.tokens.begin() + s.issued + 1 + targets);
  }
  if (!s.started) {
    round.starts.push_back({id, s.request.sampling, s.prompt(), s.state_slot});
    s.started = true;
  }
  s.issued = end;
  s.last_round = round.round;
  if (part.wants_token) s.last_step = step.step;
  step.sequences.push_back(std::move(part));
  return true;
}

bool Scheduler::GrowPages(Sequence& s, int64_t positions, RoundId round,
                          std::vector<PageId>& added) {
  const int64_t need =
      PagesFor(positions) - static_cast<int64_t>(s.pages.size());
  if (need <= 0) return true;
  while (pool_.available() < need) {
    if (!PreemptYounger(s.id, round)) return false;
  }
  added = pool_.Take(need).value();
  s.pages.insert(s.pages.end(), added.begin(), added.end());
  return true;
}

// Takes the pages of the youngest sequence younger than `than`, which starts
// over later from the tokens it has. One with rows in the round being built is
// spared: its pages would have two writers in the same round.
bool Scheduler::PreemptYounger(SequenceId than, RoundId round) {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if (it->first <= than) return false;
    if (it->second.last_round == round) continue;
    Sequence s = it->second;
    Release(s.id);
    s.window_pages = {};
    s.id = SequenceId(next_sequence_++);
    s.slot = -1;
    s.issued = 0;
    s.last_round = RoundId();
    s.pages.clear();
    s.state_slot = -1;
    s.started = false;
    waiting_.push_front(std::move(s));
    ++preemptions_;
    return true;
  }
  return false;
}

void Scheduler::Release(SequenceId id) {
  Sequence& s = running_.at(id);
  pool_.Give(s.pages);
  s.window_pages.Clear(window_pool_);
  if (s.state_slot >= 0) state_pool_.Give({s.state_slot});
  auto& list = slots_[s.slot].sequences;
  list.erase(std::find(list.begin(), list.end(), id));
  if (s.started) released_.push_back(id);
  running_.erase(id);
}

StatusOr<std::vector<TokenEvent>> Scheduler::Complete(
    const StepResult& result) {
  auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) {
    return !s.in_flight.empty() && s.in_flight.front().step == result.step;
  });
  if (slot == slots_.end()) {
    return InvalidArgument("result of step {}, which is no slot's oldest",
                           result.step.value());
  }
  const StepDescriptor& step = slot->in_flight.front();
  if (result.sequences.size() != step.sequences.size()) {
    return InvalidArgument("result of step {}: {} sequences, expected {}",
                           result.step.value(), result.sequences.size(),
                           step.sequences.size());
  }
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const StepSequence& part = step.sequences[i];
    const size_t want = part.targets.size() + (part.wants_token ? 1 : 0);
    if (result.sequences[i].id != part.id ||
        result.sequences[i].samples.size() != want) {
      return InvalidArgument(
          "result of step {}, sequence {}: {} samples of sequence {}, "
          "expected {} of {}",
          result.step.value(), i, result.sequences[i].samples.size(),
          result.sequences[i].id.value(), want, part.id.value());
    }
  }
  std::vector<TokenEvent> events;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    auto it = running_.find(step.sequences[i].id);
    if (it == running_.end()) continue;  // ended or preempted since
    TokenEvent event =
        Deliver(it->second, step.sequences[i], result.sequences[i]);
    const bool finished = event.finished.has_value();
    if (options_.window > 0) {
      // Rows of later steps come after this step's last one.
      const StepSequence& part = step.sequences[i];
      it->second.window_pages.Trim(part.first_position + part.rows,
                                   options_.window, window_pool_);
    }
    if (event.token.has_value() || !event.prompt_logprobs.empty()) {
      events.push_back(std::move(event));
    }
    if (finished) Release(it->first);
  }
  slot->in_flight.pop_front();
  return events;
}

TokenEvent Scheduler::Deliver(Sequence& s, const StepSequence& part,
                              const SequenceResult& result) {
  TokenEvent event;
  event.request = s.request.id;
  for (size_t i = 0; i < part.targets.size(); ++i) {
    // A sequence that starts over does not report a position twice.
    if (part.first_position + static_cast<int64_t>(i) < s.reported) continue;
    event.prompt_logprobs.push_back(result.samples[i]);
    ++s.reported;
  }
  if (!part.wants_token) return event;
  BATON_CHECK(part.first_position + part.rows == s.known());
  event.token = result.samples.back();
  s.tokens.push_back(event.token->token);
  const auto& stops = s.request.stop_ids;
  if (std::find(stops.begin(), stops.end(), event.token->token) !=
      stops.end()) {
    event.finished = FinishReason::kStop;
  } else if (s.known() - s.prompt() >= s.request.max_tokens) {
    event.finished = FinishReason::kLength;
  }
  return event;
}

int64_t Scheduler::running() const {
  return static_cast<int64_t>(running_.size());
}

int64_t Scheduler::waiting() const {
  return static_cast<int64_t>(waiting_.size());
}

int64_t Scheduler::steps_in_flight() const {
  int64_t n = 0;
  for (const Slot& slot : slots_) {
    n += static_cast<int64_t>(slot.in_flight.size());
  }
  return n;
}

}  // namespace baton
