// SPDX-License-Identifier: Apache-2.0
// README.md says which options of UCX were found to work, and why they are set.
#include "runtime/transport/ucx_worker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/statvfs.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "runtime/base/fnv.h"

namespace baton {
namespace {

constexpr std::string_view kAddressMagic = "UCX1";
constexpr size_t kAddressPrefix = 8;  // magic and checksum

Status UcxError(std::string_view call, ucs_status_t status) {
  return Internal("{}: {}", call, ucs_status_string(status));
}

uint32_t Checksum(std::string_view bytes) {
  Fnv1a<uint32_t> hash;
  hash.Add(bytes);
  return hash.value();
}

std::string WrapAddress(std::string_view worker) {
  const uint32_t sum = Checksum(worker);
  std::string address(kAddressMagic);
  for (int i = 0; i < 4; ++i) {
    address.push_back(static_cast<char>((sum >> (8 * i)) & 0xff));
  }
  return address.append(worker);
}

// Segments that do not fit are the usual reason that a worker cannot start.
std::string SharedMemoryState() {
  struct statvfs shm = {};
  if (statvfs("/dev/shm", &shm) != 0) return "/dev/shm is missing";
  return fmt::format("/dev/shm has {} MiB free",
                     (shm.f_bavail * shm.f_frsize) >> 20);
}

bool MayUse(std::string_view transports,
            std::initializer_list<std::string_view> names) {
  if (transports.empty()) return true;
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    return transports.find(name) != std::string_view::npos;
  });
}

Status Modify(ucp_config_t* config, const char* name, const char* value) {
  const ucs_status_t status = ucp_config_modify(config, name, value);
  if (status == UCS_OK) return OkStatus();
  return UcxError(fmt::format("ucp_config_modify {}={}", name, value), status);
}

Status Configure(ucp_config_t* config, const UcxOptions& options) {
  if (!options.transports.empty()) {
    BATON_RETURN_IF_ERROR(Modify(config, "TLS", options.transports.c_str()));
  }
  if (MayUse(options.transports, {"shm", "sm", "mm", "posix", "sysv", "all"})) {
    // Off by default, and then no link that reports lost peers may use it.
    BATON_RETURN_IF_ERROR(Modify(config, "MM_ERROR_HANDLING", "y"));
    // A fragment in one element, and more elements than all peers may fill.
    BATON_RETURN_IF_ERROR(Modify(config, "MM_SEG_SIZE", "16896"));
    BATON_RETURN_IF_ERROR(Modify(config, "MM_FIFO_SIZE", "512"));
  }
  if (MayUse(options.transports, {"tcp", "all"})) {
    BATON_RETURN_IF_ERROR(Modify(config, "TX_SEG_SIZE", "32k"));
  }
  // Every message is one copied fragment: UCX 1.13 aborts in zero-copy TCP
  // sends to a peer that dies, and a rendezvous with one is never cancelled.
  BATON_RETURN_IF_ERROR(Modify(config, "ZCOPY_THRESH", "inf"));
  BATON_RETURN_IF_ERROR(Modify(config, "RNDV_THRESH", "inf"));
  // A peer without a socket is found dead by looking whether it lives.
  return Modify(config, "KEEPALIVE_INTERVAL", "500ms");
}

}  // namespace

StatusOr<std::string_view> UnwrapUcxAddress(std::string_view address) {
  if (address.size() <= kAddressPrefix ||
      WrapAddress(address.substr(kAddressPrefix)) != address) {
    return InvalidArgument("{} bytes that are not the address of a UCX end",
                           address.size());
  }
  return address.substr(kAddressPrefix);
}

StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(
    const UcxOptions& options) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker);
  worker->interrupt_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (worker->interrupt_fd_ < 0) {
    return ResourceExhausted("eventfd: {}", std::strerror(errno));
  }
  BATON_RETURN_IF_ERROR(worker->Reopen(options));
  return worker;
}

UcxWorker::~UcxWorker() {
  Close();
  if (interrupt_fd_ >= 0) close(interrupt_fd_);
}

void UcxWorker::Close() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
  worker_ = nullptr;
  context_ = nullptr;
}

Status UcxWorker::Reopen(const UcxOptions& options) {
  Close();
  BATON_RETURN_IF_ERROR(OpenContext(options));
  BATON_RETURN_IF_ERROR(OpenWorker(options));
  return ReadAddress();
}

Status UcxWorker::OpenContext(const UcxOptions& options) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return UcxError("ucp_config_read", status);
  const Status configured = Configure(config, options);
  if (configured.ok()) {
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    status = ucp_init(&params, config, &context_);
  }
  ucp_config_release(config);
  BATON_RETURN_IF_ERROR(configured);
  if (status == UCS_OK) return OkStatus();
  return UcxError(fmt::format("ucp_init transports='{}'", options.transports),
                  status);
}

Status UcxWorker::OpenWorker(const UcxOptions& options) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // It may be made on another thread than the one that owns it later.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucp_worker_create(context_, &params, &worker_);
  if (status != UCS_OK) {
    return UcxError(fmt::format("ucp_worker_create transports='{}' ({})",
                                options.transports, SharedMemoryState()),
                    status);
  }
  status = ucp_worker_get_efd(worker_, &events_fd_);
  if (status == UCS_OK) return OkStatus();
  return UcxError("ucp_worker_get_efd", status);
}

Status UcxWorker::ReadAddress() {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  const ucs_status_t status = ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return UcxError("ucp_worker_get_address", status);
  address_ = WrapAddress({reinterpret_cast<const char*>(address), bytes});
  ucp_worker_release_address(worker_, address);
  return OkStatus();
}

bool UcxWorker::Progress() { return ucp_worker_progress(worker_) != 0; }

void UcxWorker::Interrupt() {
  if (interrupted_.exchange(true)) return;
  const uint64_t one = 1;
  (void)!write(interrupt_fd_, &one, sizeof(one));
}

void UcxWorker::DrainInterrupt() {
  uint64_t count = 0;
  (void)!read(interrupt_fd_, &count, sizeof(count));
  interrupted_.store(false);
}

bool UcxWorker::TakeInterrupt() {
  if (!interrupted_.load(std::memory_order_relaxed)) return false;
  DrainInterrupt();
  return true;
}

void UcxWorker::Sleep(absl::Duration timeout) {
  if (timeout <= absl::ZeroDuration()) return;
  // Busy: something arrived in between, for Progress() to look at.
  if (ucp_worker_arm(worker_) != UCS_OK) return;
  pollfd events[] = {{events_fd_, POLLIN, 0}, {interrupt_fd_, POLLIN, 0}};
  const timespec limit = absl::ToTimespec(std::min(timeout, absl::Hours(1)));
  const int ready = ppoll(events, 2, &limit, nullptr);
  // By the descriptor, not the flag: an Interrupt() whose flag was already
  // taken may write only now, and would end every later sleep.
  if (ready > 0 && events[1].revents != 0) DrainInterrupt();
}

}  // namespace baton
