// SPDX-License-Identifier: Apache-2.0
// Ranks that are GPUs, or streams of one, of this process. Kernels meet each
// other on the GPUs. Before and after a call is submitted the ranks' threads
// meet on the host: a rank that still allocates or loads code, which may wait
// for every GPU of the process, must not find another's kernel waiting for its
// own.
#pragma once

#include <memory>
#include <span>

#include "absl/time/time.h"
#include "runtime/base/status.h"
#include "runtime/tensor/device.h"
#include "runtime/transport/collective.h"

namespace baton {

// A group that ended stays so: its ranks' counts of calls may differ by then.
// A rank whose kernel has waited `patience` for the other breaks its GPU's
// context, since results of nothing must not look like results.
// Unimplemented: not two devices, or GPUs that cannot reach each other's
// memory. ResourceExhausted: no memory.
[[nodiscard]] StatusOr<std::unique_ptr<RankGroup>> NewCudaRanks(
    std::span<Device* const> devices, absl::Duration patience);

}  // namespace baton
