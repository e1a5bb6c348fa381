// SPDX-License-Identifier: Apache-2.0
// Step descriptors: what the controller tells every stage, immutable. Shapes of
// everything that travels between stages follow from them.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/sampling.h"
#include "runtime/sched/request.h"

namespace baton {

// Rows of one sequence in a step, at consecutive positions.
struct StepSequence {
  SequenceId id;
  int64_t first_position = 0;
  int32_t rows = 0;
  // Known tokens of the rows (a piece of the prompt). Empty: one row, whose
  // token is the one sampled for this sequence by step `token_from`.
  std::vector<int32_t> ids;
  StepId token_from;
  std::vector<PageId> new_pages;         // appended to the sequence's pages
  std::vector<PageId> new_window_pages;  // and to its window pages
  bool wants_token = false;              // sample a token after the last row
  // Not empty: logprobs are wanted of the tokens that follow rows 0, 1, ...,
  // and these are the tokens. Never reaches a row that wants_token.
  std::vector<int32_t> targets;
  friend bool operator==(const StepSequence&, const StepSequence&) = default;
};

// One forward of one micro-batch over the whole route.
struct StepDescriptor {
  StepId step;
  int32_t slot = 0;  // of the micro-batch
  std::vector<StepSequence> sequences;

  [[nodiscard]] int64_t rows() const {
    int64_t n = 0;
    for (const StepSequence& s : sequences) n += s.rows;
    return n;
  }
  // Sequences that get a token, in order: rows of the token packet.
  [[nodiscard]] int32_t tokens() const {
    int32_t n = 0;
    for (const StepSequence& s : sequences) n += s.wants_token ? 1 : 0;
    return n;
  }
  friend bool operator==(const StepDescriptor&,
                         const StepDescriptor&) = default;
};

struct SequenceStart {
  SequenceId id;
  SamplingParams sampling;
  int64_t prompt_tokens = 0;  // positions before it are the prompt's
  int32_t state_slot = -1;    // its own until it is released; -1: it has none
  friend bool operator==(const SequenceStart&, const SequenceStart&) = default;
};

// Steps issued together, to every stage. Every stage runs the visits of a round
// pass by pass, inside a pass step by step, and rounds in order; so no step of
// a round may need a token of another step of the same round.
struct Round {
  Epoch epoch;
  RoundId round;
  std::vector<SequenceId> released;   // forgotten before the round runs
  std::vector<SequenceStart> starts;  // known from this round on
  std::vector<StepDescriptor> steps;
  friend bool operator==(const Round&, const Round&) = default;
};

// What a step gave for one sequence.
struct SequenceResult {
  SequenceId id;
  // One per target, then one for the sampled token if it was wanted.
  std::vector<SampleResult> samples;
  friend bool operator==(const SequenceResult&,
                         const SequenceResult&) = default;
};
struct StepResult {
  Epoch epoch;
  StepId step;
  std::vector<SequenceResult> sequences;  // as in the descriptor
  friend bool operator==(const StepResult&, const StepResult&) = default;
};

// The place of a visit in a stage's order.
struct Visit {
  int pass = 0;
  int step_index = 0;  // into Round::steps
  friend bool operator==(const Visit&, const Visit&) = default;
};
// The visits of a round at any stage, in order. Stage s runs visit i no earlier
// than stage s - 1, so with at least as many steps as stages in a round every
// stage is busy in every pass.
[[nodiscard]] std::vector<Visit> VisitOrder(int passes, int steps);

}  // namespace baton
