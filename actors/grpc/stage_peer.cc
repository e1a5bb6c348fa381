// SPDX-License-Identifier: Apache-2.0
#include "actors/grpc/stage_peer.h"

#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "actors/grpc/grpc_util.h"
#include "actors/grpc/run_stream.h"
#include "actors/wire.h"
#include "proto/stage.grpc.pb.h"
#include "runtime/base/log.h"

namespace baton {
namespace {

constexpr absl::Duration kEndDeadline = absl::Seconds(10);
constexpr absl::Duration kProgressPeriod = absl::Seconds(2);

// Calls in flight, to be cancelled together. Thread: any.
class OpenCalls {
 public:
  // Cancelled at once if CancelAll() has been called.
  void Add(grpc::ClientContext* context) {
    absl::MutexLock lock(&mutex_);
    contexts_.insert(context);
    if (cancelled_) context->TryCancel();
  }
  void Remove(grpc::ClientContext* context) {
    absl::MutexLock lock(&mutex_);
    contexts_.erase(context);
  }
  void CancelAll() {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }

 private:
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mutex_);
};

// One unary call whose answer is Done. Deletes itself.
template <typename Request, typename Response>
struct UnaryCall {
  std::shared_ptr<OpenCalls> calls;
  grpc::ClientContext context;
  Request request;
  Response response;
  Reply<Done> reply;

  void Finish(const grpc::Status& status) {
    calls->Remove(&context);
    if (status.ok()) {
      reply.Send(Done{});
    } else {
      reply.Send(FromGrpc(status));
    }
    delete this;
  }
};

// A Load call: logs progress, answers with the result. Deletes itself.
class LoadCall : public grpc::ClientReadReactor<v1::LoadEvent> {
 public:
  LoadCall(std::shared_ptr<OpenCalls> calls, std::string name,
           Reply<StageLoaded> reply)
      : calls_(std::move(calls)),
        name_(std::move(name)),
        reply_(std::move(reply)),
        start_(absl::Now()) {}

  void Start(v1::Stage::Stub& stub, v1::LoadRequest request,
             absl::Duration deadline) {
    request_ = std::move(request);
    SetDeadline(context_, deadline);
    calls_->Add(&context_);
    stub.async()->Load(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (event_.has_result()) {
      result_ = FromProto(event_.result());
    } else if (event_.has_progress()) {
      LogProgress(event_.progress());
    }
    StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    calls_->Remove(&context_);
    if (status.ok()) {
      reply_.Send(std::move(result_));
    } else {
      reply_.Send(FromGrpc(status));
    }
    delete this;
  }

 private:
  void LogProgress(const v1::LoadProgress& progress) {
    const absl::Time now = absl::Now();
    if (now - logged_ < kProgressPeriod) return;
    logged_ = now;
    const auto done = static_cast<double>(progress.done_bytes());
    LogInfo("stage.loading", "stage={} bytes={}/{} gb_per_s={:.2f}", name_,
            progress.done_bytes(), progress.total_bytes(),
            done / 1e9 / std::max(absl::ToDoubleSeconds(now - start_), 1e-6));
  }

  std::shared_ptr<OpenCalls> calls_;
  std::string name_;
  Reply<StageLoaded> reply_;
  absl::Time start_;
  absl::Time logged_ = absl::InfinitePast();
  grpc::ClientContext context_;
  v1::LoadRequest request_;
  v1::LoadEvent event_;
  StatusOr<StageLoaded> result_ = Internal("the stage sent no result");
};

// The receiver behind the ref: each message becomes a call.
class Link : public Receiver<LoadStage, ConnectStage, RunRound, EndSession> {
 public:
  Link(StagePeerOptions options, const JoinOffer& offer, PeerEvents events)
      : options_(std::move(options)),
        offer_(offer),
        stub_(v1::Stage::NewStub(OpenChannel(offer.control_address))) {
    RunStreamOptions run;
    run.incarnation = offer.incarnation;
    run.on_ready = std::move(events.on_ready);
    run.on_lost = std::move(events.on_lost);
    run.on_result = [c = options_.controller](StepResult result) {
      c.Tell(StepDone{std::move(result)});
    };
    run.on_failure = [c = options_.controller](StageFailed failed) {
      c.Tell(std::move(failed));
    };
    stream_ = RunStream::Start(*stub_, std::move(run));
  }

  void Deliver(LoadStage message) override {
    v1::LoadRequest request;
    request.set_incarnation(offer_.incarnation);
    *request.mutable_spec() = ToProto(message.spec);
    auto* call = new LoadCall(calls_, offer_.name, std::move(message.reply));
    call->Start(*stub_, std::move(request), options_.load_deadline);
  }

  void Deliver(ConnectStage message) override {
    auto* call = NewCall<v1::ConnectRequest, v1::ConnectResponse>(
        std::move(message.reply), options_.connect_deadline);
    call->request = ToProto(message);
    call->request.set_incarnation(offer_.incarnation);
    stub_->async()->Connect(
        &call->context, &call->request, &call->response,
        [call](const grpc::Status& status) { call->Finish(status); });
  }

  void Deliver(EndSession message) override {
    auto* call = NewCall<v1::EndSessionRequest, v1::EndSessionResponse>(
        std::move(message.reply), kEndDeadline);
    call->request.set_incarnation(offer_.incarnation);
    stub_->async()->EndSession(
        &call->context, &call->request, &call->response,
        [call](const grpc::Status& status) { call->Finish(status); });
  }

  void Deliver(RunRound message) override { stream_->Send(message.round); }

  void Close() {
    stream_->Close();
    calls_->CancelAll();
  }

 private:
  template <typename Request, typename Response>
  UnaryCall<Request, Response>* NewCall(Reply<Done> reply,
                                        absl::Duration deadline) {
    auto* call = new UnaryCall<Request, Response>;
    call->calls = calls_;
    call->reply = std::move(reply);
    SetDeadline(call->context, deadline);
    calls_->Add(&call->context);
    return call;
  }

  const StagePeerOptions options_;
  const JoinOffer offer_;
  std::unique_ptr<v1::Stage::Stub> stub_;
  std::shared_ptr<OpenCalls> calls_ = std::make_shared<OpenCalls>();
  std::shared_ptr<RunStream> stream_;
};

class GrpcStagePeer : public StagePeer {
 public:
  explicit GrpcStagePeer(std::shared_ptr<Link> link) : link_(std::move(link)) {}
  StageRef ref() override { return StageRef(link_); }
  void Close() override { link_->Close(); }

 private:
  std::shared_ptr<Link> link_;
};

}  // namespace

std::shared_ptr<StagePeer> DialStage(const StagePeerOptions& options,
                                     const JoinOffer& offer,
                                     PeerEvents events) {
  return std::make_shared<GrpcStagePeer>(
      std::make_shared<Link>(options, offer, std::move(events)));
}

}  // namespace baton
