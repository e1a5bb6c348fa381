// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/time/time.h"

namespace baton {

// At the end of the process, when its last call has been ended: waits until no
// call has a channel any more, or for so long, and closes them on this thread.
// Calls hold their channel, and gRPC (1.51) joins the threads that run calls'
// callbacks when the last channel goes: from such a thread it would join
// itself, and abort.
void CloseChannels(absl::Duration patience);

}  // namespace baton
