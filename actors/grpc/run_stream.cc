// SPDX-License-Identifier: Apache-2.0
#include "actors/grpc/run_stream.h"

#include <utility>

#include "actors/wire.h"

namespace baton {
namespace {

// Far more than run-ahead ever has in flight.
constexpr size_t kMaxQueued = 4096;

}  // namespace

RunStream::RunStream(RunStreamOptions options) : options_(std::move(options)) {}

std::shared_ptr<RunStream> RunStream::Start(v1::Stage::Stub& stub,
                                            RunStreamOptions options) {
  std::shared_ptr<RunStream> stream(new RunStream(std::move(options)));
  stream->self_ = stream;
  stub.async()->Run(&stream->context_, stream.get());
  stream->AddHold();  // for writes from outside; End() gives it back
  v1::RunDown hello;
  *hello.mutable_hello()->mutable_hello() = MyHello();
  hello.mutable_hello()->set_incarnation(stream->options_.incarnation);
  stream->StartRead(&stream->incoming_);
  stream->Queue(std::move(hello));
  stream->StartCall();
  return stream;
}

void RunStream::Send(const Round& round) {
  v1::RunDown message;
  *message.mutable_round() = ToProto(round);
  Queue(std::move(message));
}

void RunStream::Queue(v1::RunDown message) {
  bool full = false;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    full = outgoing_.size() >= kMaxQueued;
    if (!full) outgoing_.push_back(std::move(message));
    if (!full && !writing_) {
      writing_ = true;
      StartWrite(&outgoing_.front());
    }
  }
  if (full) End(Unavailable("the stage reads no rounds any more"));
}

void RunStream::OnWriteDone(bool ok) {
  if (!ok) return End(OkStatus());  // OnDone knows why
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  outgoing_.pop_front();
  if (ended_ || outgoing_.empty()) return;
  writing_ = true;
  StartWrite(&outgoing_.front());
}

Status RunStream::Take(const v1::RunUp& message) {
  if (!ready_) {
    if (!message.has_hello()) return InvalidArgument("no hello came first");
    BATON_RETURN_IF_ERROR(CheckHello(message.hello().hello()));
    if (message.hello().incarnation() != options_.incarnation) {
      return FailedPrecondition("another incarnation answered");
    }
    ready_ = true;
    options_.on_ready();
    return OkStatus();
  }
  if (message.has_result()) {
    BATON_ASSIGN_OR_RETURN(StepResult result, FromProto(message.result()));
    options_.on_result(std::move(result));
    return OkStatus();
  }
  if (message.has_failure()) {
    BATON_ASSIGN_OR_RETURN(StageFailed failed, FromProto(message.failure()));
    options_.on_failure(std::move(failed));
    return OkStatus();
  }
  return InvalidArgument("an empty message came up the Run stream");
}

void RunStream::OnReadDone(bool ok) {
  if (!ok) return End(OkStatus());  // OnDone knows why
  if (Status taken = Take(incoming_); !taken.ok()) {
    End(taken);
    return;
  }
  StartRead(&incoming_);
}

void RunStream::Close() { End(Status(StatusCode::kCancelled, "closed")); }

void RunStream::End(const Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    why_ = why;
  }
  // Where the call ended by itself, its own status says more.
  if (!why.ok()) context_.TryCancel();
  RemoveHold();
}

void RunStream::OnDone(const grpc::Status& status) {
  Status why;
  {
    absl::MutexLock lock(&mutex_);
    why = why_;
  }
  if (why.ok()) {
    why = status.ok() ? Unavailable("the stage ended its Run stream")
                      : FromGrpc(status);
  }
  options_.on_lost(why);
  const std::shared_ptr<RunStream> last = std::move(self_);
}

}  // namespace baton
