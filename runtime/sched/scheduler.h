// SPDX-License-Identifier: Apache-2.0
// Continuous batching over micro-batch slots, page allocation, run-ahead. Pure:
// no clock, no I/O, no threads; the controller feeds it and sends what it says.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/kv/block_pool.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/kv/window_pages.h"
#include "runtime/sched/request.h"
#include "runtime/sched/step.h"

namespace baton {

struct SchedulerOptions {
  int passes = 1;             // of the route
  int slots = 1;              // micro-batches
  int run_ahead = 2;          // steps of a slot in flight
  int prefill_chunk = 256;    // prompt tokens of a sequence in a step; 0: all
  int max_step_tokens = 512;  // rows of a step; a whole prompt may exceed it
                              // only if prefill_chunk is 0
  int max_sequences = 64;     // running at once, all slots
  int max_queue = 1024;       // waiting
  int64_t kv_pages = 0;
  // Positions that the rows of some layers see, themselves included, where
  // others see all; 0: there are no such layers.
  int64_t window = 0;
  int64_t window_pages = 0;  // at least WindowPagesFor the longest sequence
  // Every sequence that runs has one; 0: the decoder needs none.
  int64_t state_slots = 0;
};

// The most window pages that a sequence of so many positions holds at a time:
// those that its oldest row in flight sees, and those of all rows in flight.
[[nodiscard]] int64_t WindowPagesFor(const SchedulerOptions& options,
                                     int64_t positions);
// Enough for any sequences that the KV pages and `max_sequences` admit.
[[nodiscard]] int64_t EnoughWindowPages(const SchedulerOptions& options);

enum class FinishReason { kLength, kStop };

// Something to tell a client, in order.
struct TokenEvent {
  std::string request;
  std::optional<SampleResult> token;          // a generated token
  std::vector<SampleResult> prompt_logprobs;  // of the prompt, in order
  std::optional<FinishReason> finished;
};

// Owner thread: the controller's.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // The request has passed CheckRequest. ResourceExhausted: the queue is full.
  // InvalidArgument: its id is in use.
  Status Add(Request request);
  // Forgets it: its pages are free at once and its steps in flight are ignored.
  // False: no such request.
  bool Abort(const std::string& request);
  // Forgets all, as a new epoch does; returns their ids.
  std::vector<std::string> AbortAll();

  // The next round, or nothing while nothing can be issued. `epoch` is copied
  // into it.
  [[nodiscard]] std::optional<Round> NextRound(Epoch epoch);

  // InvalidArgument: not the oldest step in flight of its slot, or its
  // sequences or sample counts do not fit the descriptor.
  [[nodiscard]] StatusOr<std::vector<TokenEvent>> Complete(
      const StepResult& result);

  [[nodiscard]] int64_t running() const;
  [[nodiscard]] int64_t waiting() const;
  [[nodiscard]] int64_t steps_in_flight() const;
  [[nodiscard]] int64_t pages_used() const { return pool_.used(); }
  [[nodiscard]] int64_t window_pages_used() const {
    return window_pool_.used();
  }
  [[nodiscard]] int64_t state_slots_used() const { return state_pool_.used(); }
  [[nodiscard]] KvSizes sizes() const {
    return {.pages = pool_.total(),
            .window_pages = window_pool_.total(),
            .state_slots = state_pool_.total()};
  }
  [[nodiscard]] int64_t preemptions() const { return preemptions_; }
  // True when stages still have to be told of released sequences.
  [[nodiscard]] bool has_releases() const { return !released_.empty(); }

 private:
  struct Sequence {
    Request request;
    SequenceId id;
    int slot = -1;
    std::vector<int32_t> tokens;  // prompt, then generated ones known here
    int64_t issued = 0;           // positions whose rows were issued
    int64_t reported = 0;         // prompt logprobs delivered
    StepId last_step;             // samples the token at position `issued`
    RoundId last_round;           // newest round that has rows of it
    std::vector<PageId> pages;
    WindowPages window_pages;
    int32_t state_slot = -1;  // while it runs
    bool started = false;     // stages know it

    [[nodiscard]] int64_t prompt() const {
      return static_cast<int64_t>(request.prompt.size());
    }
    [[nodiscard]] int64_t known() const {
      return static_cast<int64_t>(tokens.size());
    }
    // Positions that will ever be issued: the last token is not fed back.
    [[nodiscard]] int64_t end() const {
      return prompt() + request.max_tokens - 1;
    }
    // One more row gives one more generated token.
    [[nodiscard]] bool decoding() const { return issued >= prompt(); }
  };
  struct Slot {
    std::deque<StepDescriptor> in_flight;
    std::vector<SequenceId> sequences;  // in admission order
  };

  void AdmitWaiting();
  // For its known tokens and one more.
  [[nodiscard]] static int64_t PagesLacking(const Sequence& s);
  // For all it will ever hold, so that it never lacks one.
  [[nodiscard]] int64_t WindowPagesPromised(const Sequence& s) const;
  // The slot that issues next; -1: none has work, or it has steps enough.
  [[nodiscard]] int NextTurn() const;
  [[nodiscard]] bool IsFull(const Slot& slot) const;
  [[nodiscard]] bool HasWork(const Slot& slot) const;
  void BuildStep(int slot, Round& round);
  // Appends rows of `id` to the step; false where pages are lacking.
  bool AddRows(SequenceId id, int64_t rows, Round& round, StepDescriptor& step);
  bool GrowPages(Sequence& s, int64_t positions, RoundId round,
                 std::vector<PageId>& added);
  bool PreemptYounger(SequenceId than, RoundId round);
  void Release(SequenceId id);
  TokenEvent Deliver(Sequence& s, const StepSequence& part,
                     const SequenceResult& result);

  SchedulerOptions options_;
  BlockPool pool_;
  BlockPool window_pool_;
  BlockPool state_pool_;  // of slots
  std::deque<Sequence> waiting_;
  std::map<SequenceId, Sequence> running_;
  std::vector<Slot> slots_;
  int next_slot_ = 0;  // whose turn it is
  std::vector<SequenceId> released_;
  uint64_t next_sequence_ = 1;
  uint64_t next_step_ = 1;
  uint64_t next_round_ = 1;
  int64_t preemptions_ = 0;
};

}  // namespace baton
