// SPDX-License-Identifier: Apache-2.0
#include "actors/grpc/stage_calls.h"

#include <utility>

#include "actors/wire.h"

namespace baton {
namespace {

constexpr size_t kMaxQueued = 4096;

}  // namespace

void LoadCall::Progress(int64_t done, int64_t total) {
  absl::MutexLock lock(&mutex_);
  if (writing_ || result_.has_value()) return;
  writing_event_.mutable_progress()->set_done_bytes(done);
  writing_event_.mutable_progress()->set_total_bytes(total);
  writing_ = true;
  StartWrite(&writing_event_);
}

void LoadCall::Done(StatusOr<StageLoaded> loaded) {
  absl::MutexLock lock(&mutex_);
  result_ = std::move(loaded);
  FinishIfIdle();
}

void LoadCall::OnWriteDone(bool) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  FinishIfIdle();
}

void LoadCall::FinishIfIdle() {
  if (writing_ || !result_.has_value()) return;
  if (!result_->ok()) {
    Finish(ToGrpc(result_->status()));
    return;
  }
  *writing_event_.mutable_result() = ToProto(**result_);
  StartWriteAndFinish(&writing_event_, grpc::WriteOptions(), grpc::Status::OK);
}

void LoadCall::OnDone() {
  // Whoever finished the call may still be inside the lock.
  { absl::MutexLock lock(&mutex_); }
  delete this;
}

RunCall::RunCall(RunCallOwner* owner) : owner_(owner) { StartRead(&incoming_); }

void RunCall::Send(v1::RunUp message) {
  bool full = false;
  {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    full = outgoing_.size() >= kMaxQueued;
    if (!full) outgoing_.push_back(std::move(message));
    if (!full && !writing_) {
      writing_ = true;
      StartWrite(&outgoing_.front());
    }
  }
  if (full) End(ResourceExhausted("the controller reads no results any more"));
}

void RunCall::End(const Status& status) {
  absl::MutexLock lock(&mutex_);
  if (finished_) return;
  finished_ = true;
  Finish(ToGrpc(status));
}

Status RunCall::TakeMessage() {
  if (!ready_) {
    if (!incoming_.has_hello()) return InvalidArgument("no hello came first");
    BATON_RETURN_IF_ERROR(owner_->Attach(this, incoming_.hello()));
    ready_ = true;
    return OkStatus();
  }
  if (!incoming_.has_round()) {
    return InvalidArgument("a message without a round came down Run");
  }
  BATON_ASSIGN_OR_RETURN(Round round, FromProto(incoming_.round()));
  owner_->Take(std::move(round));
  return OkStatus();
}

void RunCall::OnReadDone(bool ok) {
  if (!ok) return End(OkStatus());
  if (Status taken = TakeMessage(); !taken.ok()) return End(taken);
  StartRead(&incoming_);
}

void RunCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  outgoing_.pop_front();
  if (!ok || finished_ || outgoing_.empty()) return;
  writing_ = true;
  StartWrite(&outgoing_.front());
}

void RunCall::OnDone() {
  owner_->Gone(this);
  // Whoever finished the call may still be inside the lock.
  { absl::MutexLock lock(&mutex_); }
  delete this;
}

}  // namespace baton
