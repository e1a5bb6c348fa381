// SPDX-License-Identifier: Apache-2.0
// Sampling from logits. The generator is counter-based (Philox 4x32-10) and
// keyed by (seed, position), so a token depends on its request alone.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/sampling.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// How to choose the token after one row. The filters apply in the order
// temperature, top-k, top-p (of what top-k left), min-p (relative to the
// largest probability); they see tokens by descending logit, then ascending id.
// Of the tokens kept, the first in order of id whose cumulative probability
// exceeds a number in [0, 1) is taken.
struct SamplingRow {
  float temperature = 0;  // 0: greedy, ties to the lowest id
  int top_k = 0;          // 0: all; ties at the border to lower ids
  float top_p = 1;        // in (0, 1]
  float min_p = 0;        // in [0, 1]
  uint64_t seed = 0;
  int64_t position = 0;  // of the token being chosen
  int top_logprobs = 0;  // how many of the best to report
  int32_t forced = -1;   // >= 0: report this token (a prompt's own next one)
  int32_t digest = 0;    // not 0: hash the whole row of logits
  int32_t slot = -1;     // >= 0: also write the token to Args::drawn
};

// A SampleResult of fixed size, as a device can write it.
struct SampledRow {
  int32_t token = 0;
  float logprob = 0;
  uint64_t digest = 0;
  int64_t num_top = 0;
  TokenLogprob top[kMaxTopLogprobs];

  [[nodiscard]] SampleResult Result() const {
    return {token, logprob, {top, top + num_top}, digest};
  }
};

// Where the results of rows [0, count) go; the rows behind are nobody's.
struct SampledRows {
  SampledRow* rows = nullptr;  // [count]; host memory that the device can write
  int64_t count = 0;
};

// Spans are in the memory of the device; `rows` and `results` may be read
// before the kernel just ahead has ended, so that must not write them. Digests
// of two kinds of device are hashes of different make and do not compare.
struct Sample {
  static constexpr std::string_view kName = "sample";
  struct Args {
    ConstView logits;  // [rows, vocab] f32
    std::span<const SamplingRow> rows;
    const SampledRows* results;     // on the device, read when the kernel runs
    std::span<int32_t> drawn = {};  // by SamplingRow::slot
  };
};

}  // namespace baton
