// SPDX-License-Identifier: Apache-2.0
#include "actors/grpc/stage_service.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "actors/grpc/grpc_util.h"
#include "actors/grpc/stage_calls.h"
#include "actors/wire.h"
#include "proto/stage.grpc.pb.h"
#include "runtime/base/log.h"

namespace baton {
namespace {

class StageServiceImpl : public StageService,
                         public v1::Stage::CallbackService,
                         private RunCallOwner {
 public:
  StageServiceImpl(std::string name, std::string checkpoint)
      : name_(std::move(name)), checkpoint_(std::move(checkpoint)) {}

  grpc::Service* service() override { return this; }

  void SetStage(StageRef stage) override {
    absl::MutexLock lock(&mutex_);
    stage_ = std::move(stage);
  }

  void SetIncarnation(uint64_t incarnation) override {
    absl::MutexLock lock(&mutex_);
    incarnation_ = incarnation;
    broken_ = false;
    if (run_ != nullptr) {
      run_->End(FailedPrecondition("the stage joined again"));
    }
    run_ = nullptr;
  }

  bool Attached() const override {
    absl::MutexLock lock(&mutex_);
    return !broken_;
  }

  void OnStepDone(StepDone done) override {
    v1::RunUp message;
    *message.mutable_result() = ToProto(done.result);
    Up(std::move(message));
  }

  void OnFailed(StageFailed failed) override {
    LogError("stage.failed", "epoch={} status={}", failed.epoch.value(),
             ToString(failed.status));
    v1::RunUp message;
    *message.mutable_failure() = ToProto(failed);
    Up(std::move(message));
  }

  void OnLoadProgress(int64_t done, int64_t total) override {
    absl::MutexLock lock(&mutex_);
    if (loading_ != nullptr) loading_->Progress(done, total);
  }

  grpc::ServerWriteReactor<v1::LoadEvent>* Load(
      grpc::CallbackServerContext*, const v1::LoadRequest* request) override {
    auto* call = new LoadCall;
    StatusOr<StageSpec> spec = FromProto(request->spec());
    baton::Status ready = CheckIncarnation(request->incarnation());
    if (ready.ok()) ready = spec.status();
    if (!ready.ok()) {
      call->Done(ready);
      return call;
    }
    if (!checkpoint_.empty()) spec->checkpoint = checkpoint_;
    LoadStage load;
    load.spec = *std::move(spec);
    {
      absl::MutexLock lock(&mutex_);
      loading_ = call;
    }
    load.reply = Reply<StageLoaded>([this, call](StatusOr<StageLoaded> loaded) {
      {
        absl::MutexLock relock(&mutex_);
        if (loading_ == call) loading_ = nullptr;
      }
      call->Done(std::move(loaded));
    });
    Stage().Tell(std::move(load));
    return call;
  }

  grpc::ServerUnaryReactor* Connect(grpc::CallbackServerContext* context,
                                    const v1::ConnectRequest* request,
                                    v1::ConnectResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    StatusOr<ConnectStage> connect = FromProto(*request);
    Reply<Done> reply = AnswerDone(reactor);
    baton::Status ready = CheckIncarnation(request->incarnation());
    if (ready.ok()) ready = connect.status();
    if (!ready.ok()) {
      reply.Send(ready);
      return reactor;
    }
    connect->reply = std::move(reply);
    Stage().Tell(*std::move(connect));
    return reactor;
  }

  grpc::ServerUnaryReactor* EndSession(grpc::CallbackServerContext* context,
                                       const v1::EndSessionRequest* request,
                                       v1::EndSessionResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    Reply<Done> reply = AnswerDone(reactor);
    if (baton::Status ready = CheckIncarnation(request->incarnation());
        !ready.ok()) {
      reply.Send(ready);
      return reactor;
    }
    Stage().Tell(baton::EndSession{std::move(reply)});
    return reactor;
  }

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const v1::StageStatusRequest*,
                                   v1::StageStatusResponse* response) override {
    *response->mutable_hello() = MyHello();
    response->set_name(name_);
    {
      absl::MutexLock lock(&mutex_);
      response->set_incarnation(incarnation_);
      response->set_running(run_ != nullptr);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerBidiReactor<v1::RunDown, v1::RunUp>* Run(
      grpc::CallbackServerContext*) override {
    return new RunCall(this);
  }

 private:
  StageRef Stage() const {
    absl::MutexLock lock(&mutex_);
    return stage_;
  }

  void Up(v1::RunUp message) {
    absl::MutexLock lock(&mutex_);
    if (run_ != nullptr) run_->Send(std::move(message));
  }

  baton::Status CheckIncarnation(uint64_t incarnation) const {
    absl::MutexLock lock(&mutex_);
    if (incarnation == 0 || incarnation != incarnation_) {
      return FailedPrecondition(
          "stage {} does not obey incarnation {} any more", name_, incarnation);
    }
    return OkStatus();
  }

  // Of the Run stream, on gRPC's threads.
  baton::Status Attach(RunCall* call, const v1::RunHello& hello) override {
    BATON_RETURN_IF_ERROR(CheckHello(hello.hello()));
    BATON_RETURN_IF_ERROR(CheckIncarnation(hello.incarnation()));
    absl::MutexLock lock(&mutex_);
    if (run_ != nullptr) {
      return FailedPrecondition("a Run stream is open already");
    }
    v1::RunUp answer;  // before any result
    *answer.mutable_hello()->mutable_hello() = MyHello();
    answer.mutable_hello()->set_incarnation(incarnation_);
    call->Send(std::move(answer));
    run_ = call;
    return OkStatus();
  }
  void Take(Round round) override { Stage().Tell(RunRound{std::move(round)}); }
  void Gone(RunCall* call) override {
    absl::MutexLock lock(&mutex_);
    if (run_ != call) return;
    run_ = nullptr;
    broken_ = true;
  }

  const std::string name_;
  const std::string checkpoint_;
  mutable absl::Mutex mutex_;
  StageRef stage_ ABSL_GUARDED_BY(mutex_);
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  RunCall* run_ ABSL_GUARDED_BY(mutex_) = nullptr;
  LoadCall* loading_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace

std::unique_ptr<StageService> StageService::New(std::string name,
                                                std::string checkpoint) {
  return std::make_unique<StageServiceImpl>(std::move(name),
                                            std::move(checkpoint));
}

}  // namespace baton
