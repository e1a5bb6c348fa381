// SPDX-License-Identifier: Apache-2.0
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "actors/stage_actor.h"

namespace baton {

// Lets the executor's thread start before the data plane is made on it.
class StageHost::PlanePoller : public Poller {
 public:
  void Set(StageActor* actor) {
    absl::MutexLock lock(&mutex_);
    actor_ = actor;
    plane_ = actor == nullptr ? nullptr : &actor->data_plane();
    interrupted_ = true;
  }
  // The executor's thread alone sets and destroys the actor, so it may use it
  // and its plane without the lock.
  bool Progress() override {
    StageActor* actor = Actor();
    if (actor == nullptr) return false;
    const bool finished = actor->Progress();
    return actor->data_plane().Progress() || finished;
  }
  void Wait(absl::Duration timeout) override {
    if (StageActor* actor = Actor()) {
      // A device that is busy gives no sign of its own: look again.
      if (!actor->has_submitted()) actor->data_plane().Wait(timeout);
      return;
    }
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&interrupted_), timeout);
    interrupted_ = false;
  }
  void Interrupt() override {
    absl::MutexLock lock(&mutex_);
    interrupted_ = true;
    // Only sets a flag or a file descriptor; safe under the lock.
    if (plane_ != nullptr) plane_->Interrupt();
  }

 private:
  StageActor* Actor() {
    absl::MutexLock lock(&mutex_);
    return actor_;
  }
  absl::Mutex mutex_;
  StageActor* actor_ ABSL_GUARDED_BY(mutex_) = nullptr;
  DataPlane* plane_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
};

StageHost::StageHost() = default;

StatusOr<std::unique_ptr<StageHost>> StageHost::Start(StageOptions options) {
  std::unique_ptr<StageHost> host(new StageHost);
  host->poller_ = std::make_unique<PlanePoller>();
  host->executor_ =
      std::make_unique<ThreadExecutor>(options.name, host->poller_.get());
  // The actor and its data plane are made on the thread that owns them.
  absl::Notification made;
  Status status;
  host->executor_->Post([&, options = std::move(options)]() mutable {
    auto actor = StageActor::Create(*host->executor_, std::move(options));
    status = actor.status();
    if (actor.ok()) {
      host->actor_ = *std::move(actor);
      host->address_ = host->actor_->DataAddress();
      host->stage_ = host->actor_->ref();
      host->poller_->Set(host->actor_.get());
    }
    made.Notify();
  });
  made.WaitForNotification();
  BATON_RETURN_IF_ERROR(status);
  return host;
}

StageHost::~StageHost() {
  executor_->Post([this] {
    poller_->Set(nullptr);
    actor_.reset();
  });
  executor_->Stop();
}

void StageHost::RunOnStage(const std::function<void(StageActor&)>& body) {
  absl::Notification ran;
  executor_->Post([&] {
    body(*actor_);
    ran.Notify();
  });
  ran.WaitForNotification();
}

}  // namespace baton
