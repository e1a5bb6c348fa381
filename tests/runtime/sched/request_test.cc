// SPDX-License-Identifier: Apache-2.0
#include "runtime/sched/request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace baton {
namespace {

constexpr RequestLimits kLimits = {100, 64, 48};

Request Good() {
  Request r;
  r.id = std::string("r");  // GCC 12 warns of a plain "r" at -O3
  r.prompt = {1, 2, 3};
  r.max_tokens = 5;
  return r;
}

StatusCode CodeOf(const Request& r) { return CheckRequest(r, kLimits).code(); }

TEST(CheckRequestTest, TakesAGoodOne) {
  EXPECT_TRUE(CheckRequest(Good(), kLimits).ok());
}

TEST(CheckRequestTest, RefusesAnEmptyPrompt) {
  Request r = Good();
  r.prompt.clear();
  EXPECT_EQ(CodeOf(r), StatusCode::kInvalidArgument);
}

TEST(CheckRequestTest, NamesThePromptIdOutOfRange) {
  Request r = Good();
  r.prompt = {1, 100};
  const Status status = CheckRequest(r, kLimits);
  EXPECT_EQ(Message(status),
            "prompt id 100 at position 1: the vocabulary has 100 entries");
  r.prompt = {-1};
  EXPECT_EQ(CodeOf(r), StatusCode::kInvalidArgument);
}

TEST(CheckRequestTest, RefusesNoTokensAndTooMany) {
  Request r = Good();
  r.max_tokens = 0;
  EXPECT_EQ(CodeOf(r), StatusCode::kInvalidArgument);
  r.max_tokens = 62;
  EXPECT_EQ(CodeOf(r), StatusCode::kInvalidArgument);
  r.max_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(CodeOf(r), StatusCode::kInvalidArgument);
}

TEST(CheckRequestTest, SaysWhatNeverFitsThePool) {
  Request r = Good();
  r.max_tokens = 46;
  EXPECT_EQ(CodeOf(r), StatusCode::kResourceExhausted);
}

TEST(CheckRequestTest, RefusesAbsurdSampling) {
  auto with = [](auto change) {
    Request r = Good();
    change(r.sampling);
    return CodeOf(r);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  using S = SamplingParams;
  EXPECT_EQ(with([&](S& s) { s.temperature = nan; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(with([&](S& s) { s.temperature = inf; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(with([](S& s) { s.temperature = -1; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(with([](S& s) { s.top_p = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(with([&](S& s) { s.top_p = nan; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(with([](S& s) { s.top_p = 1.5F; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(with([](S& s) { s.min_p = -0.1F; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(with([](S& s) { s.top_k = -1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(with([](S& s) { s.top_logprobs = 65; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(with([](S& s) { s.prompt_logprobs = -1; }),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
