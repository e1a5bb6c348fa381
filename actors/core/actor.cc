// SPDX-License-Identifier: Apache-2.0
#include "actors/core/actor.h"

namespace baton {

ActorMetrics::ActorMetrics(const std::string& actor)
    : mailbox("baton_actor_mailbox_messages", "Messages waiting",
              {{"actor", actor}}),
      wait_seconds("baton_actor_mailbox_wait_seconds",
                   "From Tell to the start of the handler", {{"actor", actor}}),
      handle_seconds("baton_actor_handle_seconds", "Time in a handler",
                     {{"actor", actor}}),
      running("baton_actor_running", "1 while the actor lives",
              {{"actor", actor}}) {}

}  // namespace baton
