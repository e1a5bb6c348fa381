// SPDX-License-Identifier: Apache-2.0
// The long calls of the Stage service, at the stage's end. Included by this
// folder only. Both objects delete themselves when their call is done.
#pragma once

#include <deque>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "actors/grpc/grpc_util.h"
#include "actors/messages.h"
#include "proto/stage.grpc.pb.h"

namespace baton {

// A Load call. Progress() is for as long as Done() has not been called.
// Thread: any.
class LoadCall : public grpc::ServerWriteReactor<v1::LoadEvent> {
 public:
  // Only the newest is sent where the reader is slow.
  void Progress(int64_t done, int64_t total) ABSL_LOCKS_EXCLUDED(mutex_);
  // Once.
  void Done(StatusOr<StageLoaded> loaded) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  v1::LoadEvent writing_event_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<StatusOr<StageLoaded>> result_ ABSL_GUARDED_BY(mutex_);
};

class RunCall;
class RunCallOwner {
 public:
  virtual ~RunCallOwner() = default;
  // Answers the hello through `call`, before anything else. Not OK: the call is
  // refused.
  virtual Status Attach(RunCall* call, const v1::RunHello& hello) = 0;
  virtual void Take(Round round) = 0;
  virtual void Gone(RunCall* call) = 0;
};

// A Run call. Its owner outlives it and forgets it in Gone().
// Thread: any; the owner is called on gRPC's threads.
class RunCall : public grpc::ServerBidiReactor<v1::RunDown, v1::RunUp> {
 public:
  explicit RunCall(RunCallOwner* owner);

  // A controller that reads nothing for thousands of results is cut off.
  void Send(v1::RunUp message) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(const Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  Status TakeMessage();

  RunCallOwner* const owner_;
  v1::RunDown incoming_;  // reader's
  bool ready_ = false;    // reader's

  absl::Mutex mutex_;
  std::deque<v1::RunUp> outgoing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton
