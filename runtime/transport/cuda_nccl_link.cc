// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/cuda_nccl.h"

#ifdef BATON_WITH_NCCL

#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "absl/time/clock.h"
#include "runtime/tensor/cuda_device.h"
#include "runtime/transport/cuda_ring.h"

namespace baton {
namespace {

constexpr int64_t kFirstBytes = 16;

Status NcclError(ncclResult_t result, std::string_view what) {
  return Internal("{}: {}", what, ncclGetErrorString(result));
}

// Two ranks have no use for NVLink multicast, and a host that does not offer it
// should not be asked. Without effect where the variable is set.
void SetEnvironment() {
  static std::once_flag once;
  std::call_once(once, [] { setenv("NCCL_NVLS_ENABLE", "0", 0); });
}

class Link final : public NcclLink {
 public:
  Link(NcclRole role, absl::Duration deadline)
      : role_(role), deadline_(deadline), ready_by_(absl::Now() + deadline) {}
  ~Link() override {
    Abort();
    if (stream_ != nullptr) (void)stream_->Synchronize();
  }

  Status Open(const NcclId& id, Device& device) {
    BATON_ASSIGN_OR_RETURN(stream_, device.NewStream());
    // Not of the device's cache, whose blocks belong to the stage's stream.
    BATON_ASSIGN_OR_RETURN(first_, PeerMemory::Allocate(CudaOrdinalOf(*stream_),
                                                        kFirstBytes, *stream_));
    ncclUniqueId unique;
    static_assert(sizeof(unique) == sizeof(id));
    std::memcpy(&unique, id.data(), sizeof(unique));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    (void)CudaStreamOf(*stream_);  // makes its GPU the current one
    const ncclResult_t result = ncclCommInitRankConfig(
        &comm_, 2, unique, role_ == NcclRole::kSender ? 0 : 1, &config);
    if (result == ncclSuccess || result == ncclInProgress) return OkStatus();
    return NcclError(result, "ncclCommInitRankConfig");
  }

  // NCCL connects two ranks when they first exchange something, for which it
  // needs both of them: that happens here.
  StatusOr<bool> Ready() override {
    if (ready_) return true;
    BATON_ASSIGN_OR_RETURN(const bool idle, Idle());
    if (!idle) {
      if (absl::Now() < ready_by_) return false;
      return DeadlineExceeded("nccl: not connected after {}",
                              absl::FormatDuration(deadline_));
    }
    if (!std::exchange(first_sent_, true)) {
      BATON_RETURN_IF_ERROR(Issue(first_->data(), kFirstBytes));
      return false;
    }
    ready_ = true;
    return true;
  }

  Status Send(const std::byte* data, int64_t bytes) override {
    return Transfer(const_cast<std::byte*>(data), bytes);  // NOLINT
  }
  Status Receive(std::byte* data, int64_t bytes) override {
    return Transfer(data, bytes);
  }
  Status Check() override { return Idle().status(); }
  void Abort() override {
    if (comm_ == nullptr) return;
    (void)CudaStreamOf(*stream_);
    ncclCommAbort(std::exchange(comm_, nullptr));
  }
  Stream& stream() override { return *stream_; }

 private:
  // Whether NCCL has done what it was asked to do on the host.
  StatusOr<bool> Idle() {
    if (comm_ == nullptr) return Unavailable("nccl: aborted");
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
    if (result != ncclSuccess) return NcclError(result, "nccl state");
    if (state == ncclInProgress) return false;
    if (state != ncclSuccess) return NcclError(state, "nccl");
    return true;
  }

  Status Issue(std::byte* data, int64_t bytes) {
    CUstream_st* const stream = CudaStreamOf(*stream_);
    const auto count = static_cast<size_t>(bytes);
    const ncclResult_t result =
        role_ == NcclRole::kSender
            ? ncclSend(data, count, ncclInt8, 1, comm_, stream)
            : ncclRecv(data, count, ncclInt8, 0, comm_, stream);
    if (result == ncclSuccess || result == ncclInProgress) return OkStatus();
    return NcclError(result, "nccl transfer");
  }

  // Returns when the transfer is in the stream.
  Status Transfer(std::byte* data, int64_t bytes) {
    if (comm_ == nullptr) return Unavailable("nccl: aborted");
    if (bytes == 0) return OkStatus();
    BATON_RETURN_IF_ERROR(Issue(data, bytes));
    const absl::Time by = absl::Now() + deadline_;
    while (true) {
      BATON_ASSIGN_OR_RETURN(const bool idle, Idle());
      if (idle) return OkStatus();
      if (absl::Now() > by) return DeadlineExceeded("nccl: still in progress");
      std::this_thread::yield();
    }
  }

  NcclRole role_;
  absl::Duration deadline_;
  absl::Time ready_by_;
  std::unique_ptr<Stream> stream_;
  std::shared_ptr<PeerMemory> first_;
  ncclComm_t comm_ = nullptr;
  bool first_sent_ = false;
  bool ready_ = false;
};

}  // namespace

bool HaveNccl() { return true; }

StatusOr<NcclId> NewNcclId() {
  SetEnvironment();
  ncclUniqueId unique;
  const ncclResult_t result = ncclGetUniqueId(&unique);
  if (result != ncclSuccess) {
    return Unavailable("ncclGetUniqueId: {}", ncclGetErrorString(result));
  }
  NcclId id;
  std::memcpy(id.data(), &unique, sizeof(unique));
  return id;
}

StatusOr<std::unique_ptr<NcclLink>> StartNcclLink(const NcclId& id,
                                                  NcclRole role, Device& device,
                                                  absl::Duration deadline) {
  SetEnvironment();
  auto link = std::make_unique<Link>(role, deadline);
  BATON_RETURN_IF_ERROR(link->Open(id, device));
  return std::unique_ptr<NcclLink>(std::move(link));
}

}  // namespace baton

#else

namespace baton {

bool HaveNccl() { return false; }

StatusOr<NcclId> NewNcclId() { return Unimplemented("built without NCCL"); }

StatusOr<std::unique_ptr<NcclLink>> StartNcclLink(const NcclId&, NcclRole,
                                                  Device&, absl::Duration) {
  return Unimplemented("built without NCCL");
}

}  // namespace baton

#endif
