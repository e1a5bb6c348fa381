// SPDX-License-Identifier: Apache-2.0
// Stands where a controller does and keeps what it is told.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/messages.h"

namespace baton::testing {

struct FakeController
    : public Receiver<StepDone, StageFailed, StageJoined, StageLost,
                      StageLeaving, SubmitRequest, AbortRequest, GetStatus,
                      DrainController, AwaitServing, StageAnswered> {
  void Deliver(StepDone) override {}
  void Deliver(StageFailed) override {}
  void Deliver(StageJoined m) override { joined.push_back(std::move(m)); }
  void Deliver(StageLost m) override { lost.push_back(std::move(m)); }
  void Deliver(StageLeaving m) override { leaving.push_back(std::move(m)); }
  void Deliver(SubmitRequest m) override { submitted.push_back(std::move(m)); }
  void Deliver(AbortRequest m) override { aborted.push_back(m.id); }
  void Deliver(GetStatus) override {}
  void Deliver(DrainController) override {}
  void Deliver(AwaitServing) override {}
  void Deliver(StageAnswered) override {}

  std::vector<StageJoined> joined;
  std::vector<StageLost> lost;
  std::vector<StageLeaving> leaving;
  std::vector<SubmitRequest> submitted;
  std::vector<std::string> aborted;
};

}  // namespace baton::testing
