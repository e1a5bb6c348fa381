// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "runtime/base/status.h"
#include "runtime/transport/channel.h"

struct ucp_context;
struct ucp_worker;

namespace baton {

// One UCX context with one worker, and a way to sleep until either the worker
// has events or another thread interrupts.
//
// Lifecycle: Create -> Progress and Sleep -> destroy, after which no transfer
// touches its buffer. Owner thread: the data plane's, except Interrupt().
// Easily forgotten: Sleep may return early, with nothing to do.
class UcxWorker {
 public:
  // Internal: UCX failed; the message names the call.
  [[nodiscard]] static StatusOr<std::unique_ptr<UcxWorker>> Create(
      const UcxOptions& options);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // Closes everything and starts anew, with another address. Internal: it
  // cannot; then only destroying is left.
  [[nodiscard]] Status Reopen(const UcxOptions& options);

  [[nodiscard]] ucp_worker* handle() const { return worker_; }
  [[nodiscard]] const std::string& address() const { return address_; }

  // False: there was nothing to do.
  bool Progress();
  // Sleeps until an event, an interrupt or the timeout.
  void Sleep(absl::Duration timeout);
  // Whether Interrupt() was called since the last time.
  [[nodiscard]] bool TakeInterrupt();
  // Thread: any.
  void Interrupt();

 private:
  UcxWorker() = default;
  void Close();
  [[nodiscard]] Status OpenContext(const UcxOptions& options);
  [[nodiscard]] Status OpenWorker(const UcxOptions& options);
  [[nodiscard]] Status ReadAddress();
  void DrainInterrupt();

  ucp_context* context_ = nullptr;
  ucp_worker* worker_ = nullptr;
  int events_fd_ = -1;     // the worker's
  int interrupt_fd_ = -1;  // eventfd
  std::atomic<bool> interrupted_{false};
  std::string address_;
};

// The part of an address() that UCX understands. InvalidArgument: it is not
// the address of a UCX end, or did not arrive whole. Thread: any.
[[nodiscard]] StatusOr<std::string_view> UnwrapUcxAddress(
    std::string_view address);

}  // namespace baton
