// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "actors/registrar_actor.h"

namespace baton {

struct StagePeerOptions {
  ControllerRef controller;  // gets what comes up the Run stream
  absl::Duration load_deadline;
  absl::Duration connect_deadline = absl::Seconds(60);
};

// Dials the Stage service of a host that offered to join, and opens its Run
// stream. Messages to the peer's ref become calls; a broken stream is a lost
// stage, at once. Events come from gRPC's threads.
[[nodiscard]] std::shared_ptr<StagePeer> DialStage(
    const StagePeerOptions& options, const JoinOffer& offer, PeerEvents events);

}  // namespace baton
