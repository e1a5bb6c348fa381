// SPDX-License-Identifier: Apache-2.0
// What scheduler tests share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/sched/scheduler.h"

namespace baton::testing {

inline SchedulerOptions Options() {
  SchedulerOptions o;
  o.kv_pages = 16;
  o.prefill_chunk = 4;
  o.max_step_tokens = 8;
  o.max_sequences = 4;
  o.max_queue = 4;
  return o;
}

inline Request MakeRequest(const std::string& id, int prompt,
                           int64_t max_tokens) {
  Request r;
  r.id = id;
  for (int i = 0; i < prompt; ++i) r.prompt.push_back(10 + i);
  r.max_tokens = max_tokens;
  return r;
}

// A stage that samples position * 7 % 50 everywhere.
inline StepResult Answer(const StepDescriptor& step, Epoch epoch) {
  StepResult result;
  result.epoch = epoch;
  result.step = step.step;
  for (const StepSequence& part : step.sequences) {
    SequenceResult& out = result.sequences.emplace_back();
    out.id = part.id;
    for (int32_t target : part.targets) {
      SampleResult r;
      r.token = target;
      out.samples.push_back(r);
    }
    if (part.wants_token) {
      SampleResult r;
      r.token =
          static_cast<int32_t>((part.first_position + part.rows) * 7 % 50);
      out.samples.push_back(r);
    }
  }
  return result;
}

inline std::vector<TokenEvent> Finish(Scheduler& s,
                                      const StepDescriptor& step) {
  auto events = s.Complete(Answer(step, Epoch(1)));
  EXPECT_TRUE(events.ok()) << events.status();
  return events.ok() ? *events : std::vector<TokenEvent>{};
}

}  // namespace baton::testing
