// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "actors/grpc/rpc_server.h"
#include "actors/messages.h"

namespace baton {

struct ControllerServiceOptions {
  ControllerRef controller;
  absl::Duration lease = absl::Seconds(3);
  absl::Duration load_deadline = absl::Minutes(30);
};

// Where stage hosts join, renew their leases and take leave: turns calls into
// messages for a RegistrarActor of its own, which has its own thread.
[[nodiscard]] std::unique_ptr<RpcService> NewControllerService(
    const ControllerServiceOptions& options);

}  // namespace baton
