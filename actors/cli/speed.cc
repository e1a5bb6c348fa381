// SPDX-License-Identifier: Apache-2.0
#include "actors/cli/speed.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"

namespace baton {
namespace {

// Times of a request's tokens.
class TimingSink : public RequestSink {
 public:
  TimingSink(std::vector<absl::Time>* times, Status* status,
             absl::BlockingCounter* done)
      : times_(times), status_(status), done_(done) {}
  void OnEvent(const TokenEvent& event) override {
    if (event.token.has_value()) times_->push_back(absl::Now());
  }
  void OnEnd(const Status& status) override {
    *status_ = status;
    done_->DecrementCount();
  }

 private:
  std::vector<absl::Time>* times_;
  Status* status_;
  absl::BlockingCounter* done_;
};

}  // namespace

StatusOr<Speed> MeasureSpeed(const ControllerRef& controller,
                             const SpeedLoad& load) {
  const auto count = static_cast<size_t>(load.batch);
  std::vector<std::vector<absl::Time>> times(count);
  std::vector<Status> statuses(count);
  absl::BlockingCounter done(load.batch);
  const absl::Time start = absl::Now();
  for (size_t i = 0; i < count; ++i) {
    SubmitRequest submit;
    submit.request.id = fmt::format("bench-{}", i);
    for (int p = 0; p < load.prompt; ++p) {
      submit.request.prompt.push_back(static_cast<int32_t>(
          (static_cast<int64_t>(i) * 131 + p * 17) % load.vocab));
    }
    submit.request.max_tokens = load.tokens;
    submit.sink = std::make_unique<TimingSink>(&times[i], &statuses[i], &done);
    controller.Tell(std::move(submit));
  }
  done.Wait();
  absl::Time first = absl::InfinitePast();
  absl::Time last = absl::InfiniteFuture();
  for (size_t i = 0; i < count; ++i) {
    BATON_RETURN_IF_ERROR(statuses[i]);
    first = std::max(first, times[i].front());
    last = std::min(last, times[i].back());
  }
  if (last <= first) {
    return FailedPrecondition(
        "{} requests of {} + {} tokens never decode at the same time: generate "
        "more",
        load.batch, load.prompt, load.tokens);
  }
  int64_t tokens = 0;
  for (const std::vector<absl::Time>& request : times) {
    tokens += std::count_if(request.begin(), request.end(), [&](absl::Time t) {
      return t > first && t <= last;
    });
  }
  Speed speed;
  speed.prompt_tokens_per_s = static_cast<double>(load.batch * load.prompt) /
                              absl::ToDoubleSeconds(first - start);
  speed.decode_tokens_per_s =
      static_cast<double>(tokens) / absl::ToDoubleSeconds(last - first);
  return speed;
}

}  // namespace baton
