// SPDX-License-Identifier: Apache-2.0
// What a stage host asks its controller. Blocking; each call has a deadline.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "actors/registrar_actor.h"
#include "runtime/base/status.h"

namespace baton {

// Thread: any.
class ControllerClient {
 public:
  [[nodiscard]] static std::unique_ptr<ControllerClient> New(
      const std::string& address);
  virtual ~ControllerClient() = default;

  // The lease. Codes as in proto/controller.proto.
  [[nodiscard]] virtual StatusOr<absl::Duration> Join(
      const JoinOffer& offer, absl::Duration timeout) = 0;
  virtual Status Heartbeat(const std::string& name, uint64_t incarnation,
                           absl::Duration timeout) = 0;
  virtual Status Leave(const std::string& name, uint64_t incarnation,
                       absl::Duration timeout) = 0;
};

}  // namespace baton
