// SPDX-License-Identifier: Apache-2.0
// Actors: a plain class with one Handle overload per message, reached only
// through an ActorRef. A ref may lead to an actor of this process or to a peer
// behind gRPC; the sender cannot tell.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "actors/core/executor.h"
#include "runtime/base/metrics.h"
#include "runtime/base/status.h"

namespace baton {

// The answer to a message, given once; one that is dropped answers Cancelled.
// Thread: any, one owner.
template <typename T>
class Reply {
 public:
  using Callback = absl::AnyInvocable<void(StatusOr<T>)>;
  Reply() = default;
  explicit Reply(Callback callback) : callback_(std::move(callback)) {}
  Reply(Reply&& other) noexcept
      : callback_(std::exchange(other.callback_, nullptr)) {}
  Reply& operator=(Reply&& other) noexcept {
    std::swap(callback_, other.callback_);
    return *this;
  }
  ~Reply() {
    if (callback_) Send(Status(StatusCode::kCancelled, "no answer was given"));
  }
  void Send(StatusOr<T> value) {
    if (callback_) std::exchange(callback_, nullptr)(std::move(value));
  }

 private:
  Callback callback_;
};

struct Done {};

template <typename M>
class ReceiverOf {
 public:
  virtual ~ReceiverOf() = default;
  virtual void Deliver(M message) = 0;  // Thread: any
};
template <typename... Ms>
class Receiver : public ReceiverOf<Ms>... {
 public:
  using ReceiverOf<Ms>::Deliver...;
};

// Shared because an actor's peers may outlive it and its executor; a message to
// an actor that has left is dropped.
template <typename... Ms>
class ActorRef {
 public:
  ActorRef() = default;
  explicit ActorRef(std::shared_ptr<Receiver<Ms...>> receiver)
      : receiver_(std::move(receiver)) {}
  explicit operator bool() const { return receiver_ != nullptr; }

  // Thread: any. Never blocks.
  template <typename M>
  void Tell(M message) const {
    if (receiver_ == nullptr) return;
    static_cast<ReceiverOf<M>&>(*receiver_).Deliver(std::move(message));
  }

 private:
  std::shared_ptr<Receiver<Ms...>> receiver_;
};

// What every actor counts; labelled by actor.
struct ActorMetrics {
  explicit ActorMetrics(const std::string& actor);
  Gauge mailbox;
  Histogram wait_seconds;
  Histogram handle_seconds;
  Gauge running;
};

// Base of an actor that handles Ms. Create it, hand out ref(), destroy it on
// its executor's thread, or after its executor stopped and before it is gone.
template <typename Derived, typename... Ms>
class Actor {
 public:
  using Ref = ActorRef<Ms...>;

  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  // Thread: any.
  [[nodiscard]] Ref ref() const { return Ref(mailbox_); }

 protected:
  Actor(Executor& executor, const std::string& name)
      : mailbox_(std::make_shared<Mailbox>(executor, name)) {
    mailbox_->actor = static_cast<Derived*>(this);
    mailbox_->metrics.running.Set(1);
  }
  ~Actor() {
    mailbox_->Close();
    mailbox_->actor = nullptr;
    mailbox_->metrics.running.Set(0);
  }

  [[nodiscard]] Executor& executor() const { return mailbox_->executor; }
  [[nodiscard]] absl::Time Now() const { return mailbox_->executor.Now(); }

  // Handles `message` after what is posted already, if the actor is still
  // there then.
  template <typename M>
  void TellSelf(M message) {
    executor().Post([box = mailbox_, m = std::move(message)]() mutable {
      if (box->actor != nullptr) box->actor->Handle(std::move(m));
    });
  }

  // Handles `message` at `when`, if the actor is still there then.
  template <typename M>
  void TellAt(absl::Time when, M message) {
    executor().PostAt(when, [box = mailbox_, m = std::move(message)]() mutable {
      if (box->actor != nullptr) {
        box->actor->Handle(std::move(m));
      }
    });
  }

 private:
  struct Mailbox;

  // Implements Deliver for each message by recursion over the list.
  template <typename Self, typename Base, typename... Rest>
  struct Deliverer;
  template <typename Self, typename Base>
  struct Deliverer<Self, Base> : public Base {};
  template <typename Self, typename Base, typename M, typename... Rest>
  struct Deliverer<Self, Base, M, Rest...>
      : public Deliverer<Self, Base, Rest...> {
    using Deliverer<Self, Base, Rest...>::Deliver;
    void Deliver(M message) override {
      static_cast<Self*>(this)->Enqueue(std::move(message));
    }
  };

  struct Mailbox final : public Deliverer<Mailbox, Receiver<Ms...>, Ms...>,
                         public std::enable_shared_from_this<Mailbox> {
    Mailbox(Executor& e, const std::string& name)
        : executor(e), metrics(name) {}

    // What is not taken is destroyed after the lock: its reply may be answered
    // by a message to this same actor.
    template <typename M>
    void Enqueue(M message) {
      Executor::Task task;
      absl::MutexLock lock(&mutex);
      if (!open) return;
      metrics.mailbox.Add(1);
      task = [box = this->shared_from_this(), sent = executor.Now(),
              m = std::move(message)]() mutable {
        box->metrics.mailbox.Add(-1);
        const absl::Time start = box->executor.Now();
        box->metrics.wait_seconds.Observe(absl::ToDoubleSeconds(start - sent));
        if (box->actor != nullptr) box->actor->Handle(std::move(m));
        box->metrics.handle_seconds.Observe(
            absl::ToDoubleSeconds(box->executor.Now() - start));
      };
      executor.Post(std::move(task));
    }

    // From here on the executor may go.
    void Close() {
      absl::MutexLock lock(&mutex);
      open = false;
    }

    Executor& executor;
    Derived* actor = nullptr;  // owner thread
    absl::Mutex mutex;         // held while something is posted for the actor
    bool open ABSL_GUARDED_BY(mutex) = true;
    ActorMetrics metrics;
  };

  std::shared_ptr<Mailbox> mailbox_;
};

}  // namespace baton
