// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "tests/runtime/sched/scheduler_testing.h"

namespace baton::testing {
namespace {

// Pretends to be the stages: order of writes to pages, tokens by position.
class FakePipeline {
 public:
  explicit FakePipeline(int64_t window = 0) : window_(window) {}

  // Every row must land in a page that its sequence owns, and no page may have
  // two owners among sequences alive in the order rounds are run. A window page
  // is owned as long as a later row of its sequence sees it.
  void Run(const Round& round) {
    for (SequenceId id : round.released) {
      pages_.erase(id);
      window_pages_.erase(id);
    }
    for (const SequenceStart& start : round.starts) {
      ASSERT_TRUE(pages_.emplace(start.id, std::vector<PageId>{}).second);
      window_pages_[start.id];
    }
    std::set<SequenceId> seen;
    for (const StepDescriptor& step : round.steps) {
      for (const StepSequence& part : step.sequences) {
        ASSERT_TRUE(seen.insert(part.id).second);
        auto& mine = pages_.at(part.id);
        for (PageId page : part.new_pages) {
          for (const auto& [other, theirs] : pages_) {
            ASSERT_EQ(std::count(theirs.begin(), theirs.end(), page), 0)
                << "page " << page << " has two owners";
          }
          mine.push_back(page);
        }
        ASSERT_LE(part.first_position + part.rows,
                  static_cast<int64_t>(mine.size()) * 16);
        RunWindow(part);
      }
      queue.push_back(step);
    }
  }
  std::deque<StepDescriptor> queue;
  [[nodiscard]] size_t known() const { return pages_.size(); }

 private:
  struct Window {
    std::vector<PageId> pages;
    int64_t next = 0;  // row
  };

  void RunWindow(const StepSequence& part) {
    if (window_ == 0) {
      ASSERT_TRUE(part.new_window_pages.empty());
      return;
    }
    Window& mine = window_pages_.at(part.id);
    for (PageId page : part.new_window_pages) {
      for (const auto& [other, theirs] : window_pages_) {
        const int64_t seen = std::max<int64_t>(0, theirs.next - window_ + 1);
        for (size_t i = static_cast<size_t>(seen / 16); i < theirs.pages.size();
             ++i) {
          ASSERT_NE(theirs.pages[i], page) << "two owners";
        }
      }
      mine.pages.push_back(page);
    }
    mine.next = part.first_position + part.rows;
    ASSERT_LE(mine.next, static_cast<int64_t>(mine.pages.size()) * 16);
  }

  int64_t window_;
  std::map<SequenceId, std::vector<PageId>> pages_;
  std::map<SequenceId, Window> window_pages_;
};

class SchedulerPropertyTest : public ::testing::TestWithParam<int> {};

// Random requests, aborts and completion times on a pool too small for all.
TEST_P(SchedulerPropertyTest, EveryRequestGetsItsTokensAndAllPagesComeBack) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  SchedulerOptions o = Options();
  o.slots = 1 + GetParam() % 3;
  o.passes = 1 + GetParam() % 2;
  o.kv_pages = 7;
  o.max_queue = 1000;
  o.prefill_chunk = static_cast<int>(random() % 3) * 5;
  o.window = GetParam() / 3 % 2 * 24;
  o.window_pages = EnoughWindowPages(o);
  Scheduler s(o);
  FakePipeline pipeline(o.window);
  std::map<std::string, std::vector<int32_t>> got;
  std::map<std::string, Request> live;
  int submitted = 0;
  int aborted = 0;
  int finished = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    if (submitted < 60 && random() % 4 == 0) {
      Request r = MakeRequest(std::to_string(submitted++), 1 + random() % 40,
                              1 + random() % 60);
      ASSERT_TRUE(s.Add(r).ok());
      live.emplace(r.id, r);
    }
    if (turn < 300 && !live.empty() && random() % 30 == 0) {
      ++aborted;
      EXPECT_TRUE(s.Abort(live.begin()->first));
      live.erase(live.begin());
    }
    if (auto round = s.NextRound(Epoch(1))) {
      pipeline.Run(*round);
    } else if (!pipeline.queue.empty()) {
      for (const TokenEvent& e : Finish(s, pipeline.queue.front())) {
        ASSERT_EQ(live.count(e.request), 1u);
        if (e.token) got[e.request].push_back(e.token->token);
        if (e.finished) {
          const Request& r = live.at(e.request);
          ASSERT_EQ(got[e.request].size(), static_cast<size_t>(r.max_tokens));
          for (size_t i = 0; i < got[e.request].size(); ++i) {
            ASSERT_EQ(got[e.request][i],
                      static_cast<int32_t>((r.prompt.size() + i) * 7 % 50));
          }
          live.erase(e.request);
          ++finished;
        }
      }
      pipeline.queue.pop_front();
    }
  }
  EXPECT_EQ(submitted, 60);
  EXPECT_EQ(finished + aborted, 60);
  EXPECT_GT(s.preemptions(), 0);
  EXPECT_TRUE(live.empty());
  EXPECT_EQ(s.running() + s.waiting(), 0);
  EXPECT_EQ(s.pages_used(), 0);
  EXPECT_EQ(s.window_pages_used(), 0);
  EXPECT_EQ(pipeline.known(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SchedulerPropertyTest, ::testing::Range(0, 24));

}  // namespace
}  // namespace baton::testing
