// SPDX-License-Identifier: Apache-2.0
// The controller's end of a stage's Run stream. Included by this folder only.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "actors/grpc/grpc_util.h"
#include "actors/messages.h"
#include "proto/stage.grpc.pb.h"

namespace baton {

struct RunStreamOptions {
  uint64_t incarnation = 0;
  std::function<void()> on_ready;       // the handshake is done
  std::function<void(Status)> on_lost;  // once, last
  std::function<void(StepResult)> on_result;
  std::function<void(StageFailed)> on_failure;
};

// Lives until the call has ended, whoever else holds it.
// [dialling] --hello--> [ready] --Close, broken, nonsense--> [ended]
// Thread: any; callbacks come from gRPC's threads, one at a time.
class RunStream : public grpc::ClientBidiReactor<v1::RunDown, v1::RunUp> {
 public:
  static std::shared_ptr<RunStream> Start(v1::Stage::Stub& stub,
                                          RunStreamOptions options);

  // Queues a round; dropped once the stream has ended. A stage that reads
  // nothing for thousands of rounds is cut off.
  void Send(const Round& round) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  explicit RunStream(RunStreamOptions options);
  Status Take(const v1::RunUp& message);
  void Queue(v1::RunDown message) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the call, for this reason; OK where it ended by itself.
  void End(const Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  const RunStreamOptions options_;
  std::shared_ptr<RunStream> self_;  // until OnDone
  grpc::ClientContext context_;
  v1::RunUp incoming_;  // reader's
  bool ready_ = false;  // reader's

  absl::Mutex mutex_;
  std::deque<v1::RunDown> outgoing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  Status why_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
