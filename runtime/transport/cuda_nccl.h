// SPDX-License-Identifier: Apache-2.0
// One direction between two stages over NCCL: a communicator of two ranks with
// a stream of its own, so that no send ever holds up a stage's stream. Names
// nothing of NCCL's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "runtime/base/status.h"
#include "runtime/tensor/device.h"

namespace baton {

using NcclId = std::array<std::byte, 128>;
enum class NcclRole { kSender, kReceiver };

// Whether NCCL was found when this was built.
[[nodiscard]] bool HaveNccl();
// Made by one of the two ends. Unavailable: NCCL cannot start here.
[[nodiscard]] StatusOr<NcclId> NewNcclId();

// Lifecycle: Start -> Ready() until true -> Send or Receive* -> Abort or
// destroy. Owner thread: the stage's. No call blocks for longer than the
// deadline; after a failure only Abort helps.
class NcclLink {
 public:
  virtual ~NcclLink() = default;
  // Connects the two ends, a step at a time. DeadlineExceeded, Internal.
  [[nodiscard]] virtual StatusOr<bool> Ready() = 0;
  // In the order of stream(). Sender only; receiver only.
  virtual Status Send(const std::byte* data, int64_t bytes) = 0;
  virtual Status Receive(std::byte* data, int64_t bytes) = 0;
  // Internal: the communicator has failed.
  [[nodiscard]] virtual Status Check() = 0;
  // What is in flight ends, with data of no meaning. May block while stream()
  // waits for another.
  virtual void Abort() = 0;
  [[nodiscard]] virtual Stream& stream() = 0;
};

// Unimplemented: built without NCCL.
[[nodiscard]] StatusOr<std::unique_ptr<NcclLink>> StartNcclLink(
    const NcclId& id, NcclRole role, Device& device, absl::Duration deadline);

}  // namespace baton
