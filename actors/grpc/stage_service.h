// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "actors/grpc/rpc_server.h"
#include "actors/messages.h"

namespace baton {

// The Stage service of one host: turns calls into messages for its stage, and
// what the stage says into messages up the Run stream. Obeys the controller of
// one incarnation at a time.
//
// Lifecycle: New -> (the stage is started with the three On...() as its
// callbacks) -> SetStage -> served -> SetIncarnation per join -> Detach.
// Thread: any.
class StageService : public RpcService {
 public:
  // `checkpoint`, if not empty, replaces the directory that the controller
  // names.
  [[nodiscard]] static std::unique_ptr<StageService> New(
      std::string name, std::string checkpoint);

  virtual void SetStage(StageRef stage) = 0;
  // From now on only calls of this incarnation are obeyed; the Run stream of
  // another one ends. 0: none.
  virtual void SetIncarnation(uint64_t incarnation) = 0;
  // False once the Run stream of the present incarnation has broken.
  [[nodiscard]] virtual bool Attached() const = 0;

  // What the stage says. Dropped where no controller listens.
  virtual void OnStepDone(StepDone done) = 0;
  virtual void OnFailed(StageFailed failed) = 0;
  virtual void OnLoadProgress(int64_t done, int64_t total) = 0;
};

}  // namespace baton
