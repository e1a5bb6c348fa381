// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "runtime/transport/session_plane.h"

namespace baton {
namespace {

// Where others put what they send to one end. Shared: by the end that reads it,
// and by every end that has a link to it and may outlive it. Thread: any.
class Mailbox {
 public:
  struct Item {
    WirePacket wire;
    Tensor payload;
  };

  // False: its end is gone.
  bool Put(Item item) {
    absl::MutexLock lock(&mu_);
    if (closed_) return false;
    items_.push_back(std::move(item));
    changed_.Signal();
    return true;
  }
  [[nodiscard]] std::deque<Item> TakeAll() {
    absl::MutexLock lock(&mu_);
    return std::exchange(items_, {});
  }
  void Interrupt() {
    absl::MutexLock lock(&mu_);
    interrupted_ = true;
    changed_.Signal();
  }
  void Sleep(absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    absl::MutexLock lock(&mu_);
    while (items_.empty() && !interrupted_ &&
           !changed_.WaitWithDeadline(&mu_, deadline)) {
    }
    interrupted_ = false;
  }
  void Close() {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    items_.clear();
  }
  [[nodiscard]] bool closed() const {
    absl::MutexLock lock(&mu_);
    return closed_;
  }

 private:
  mutable absl::Mutex mu_;
  absl::CondVar changed_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

// The address book of one process. Thread: any.
class InprocNetwork {
 public:
  [[nodiscard]] std::string Add(const std::shared_ptr<Mailbox>& mailbox) {
    absl::MutexLock lock(&mu_);
    std::string address = fmt::format("inproc:{}", next_++);
    ends_[address] = mailbox;
    return address;
  }
  [[nodiscard]] std::shared_ptr<Mailbox> Find(const std::string& address) {
    absl::MutexLock lock(&mu_);
    const auto found = ends_.find(address);
    return found == ends_.end() ? nullptr : found->second;
  }
  // Closes the end and wakes all others, which then see it closed.
  void Remove(const std::string& address) {
    std::vector<std::shared_ptr<Mailbox>> others;
    {
      absl::MutexLock lock(&mu_);
      ends_[address]->Close();
      ends_.erase(address);
      for (const auto& end : ends_) others.push_back(end.second);
    }
    for (const auto& other : others) other->Interrupt();
  }

 private:
  absl::Mutex mu_;
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, std::shared_ptr<Mailbox>> ends_
      ABSL_GUARDED_BY(mu_);
};

namespace {

// An end whose peers live in the same process; payloads are moved, not copied.
class InprocPlane final : public SessionPlane {
 public:
  InprocPlane(std::shared_ptr<InprocNetwork> network, DataPlaneEvents events)
      : SessionPlane(std::move(events)),
        network_(std::move(network)),
        mailbox_(std::make_shared<Mailbox>()),
        address_(network_->Add(mailbox_)) {}
  ~InprocPlane() override {
    EndSession();
    network_->Remove(address_);
  }

  std::string Address() const override { return address_; }
  void Interrupt() override { mailbox_->Interrupt(); }

 private:
  struct Link {
    StageId peer;
    std::shared_ptr<Mailbox> mailbox;  // null: dropped
  };

  Status OpenLink(StageId peer, const std::string& address) override {
    std::shared_ptr<Mailbox> mailbox = network_->Find(address);
    if (mailbox == nullptr) {
      return Unavailable("no end at address '{}'", address);
    }
    links_.push_back({peer, std::move(mailbox)});
    return OkStatus();
  }

  void DropLink(StageId peer) override {
    for (Link& link : links_) {
      if (link.peer == peer) link.mailbox = nullptr;
    }
  }

  void CloseLinks() override { links_.clear(); }

  void Transmit(StageId to, const WirePacket& wire, Tensor payload) override {
    for (Link& link : links_) {
      if (link.peer != to || link.mailbox == nullptr) continue;
      if (!link.mailbox->Put({wire, std::move(payload)})) ReportGone(to);
      return;
    }
  }

  bool Poll() override {
    // Asked before the mailbox is read: what a closed end had sent comes first.
    std::vector<StageId> gone;
    for (const Link& link : links_) {
      if (link.mailbox != nullptr && link.mailbox->closed()) {
        gone.push_back(link.peer);
      }
    }
    std::deque<Mailbox::Item> items = mailbox_->TakeAll();
    for (Mailbox::Item& item : items) {
      if (Admit(item.wire) == Admission::kReceive) {
        Deliver(item.wire, std::move(item.payload));
      }
    }
    for (StageId peer : gone) ReportGone(peer);
    return !items.empty() || !gone.empty();
  }

  void Sleep(absl::Duration timeout) override { mailbox_->Sleep(timeout); }

  void ReportGone(StageId peer) {
    LinkLost(peer, Unavailable("stage {} is gone", peer.value()));
  }

  std::shared_ptr<InprocNetwork> network_;
  std::shared_ptr<Mailbox> mailbox_;
  std::string address_;
  std::vector<Link> links_;
};

}  // namespace

std::shared_ptr<InprocNetwork> NewInprocNetwork() {
  return std::make_shared<InprocNetwork>();
}

std::unique_ptr<DataPlane> NewInprocDataPlane(
    std::shared_ptr<InprocNetwork> network, DataPlaneEvents events) {
  return std::make_unique<InprocPlane>(std::move(network), std::move(events));
}

}  // namespace baton
