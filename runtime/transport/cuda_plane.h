// SPDX-License-Identifier: Apache-2.0
// The data plane of a stage on a GPU: payloads go from GPU to GPU where there
// is a way, beside a plane between hosts that carries everything else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "runtime/base/status.h"
#include "runtime/tensor/device.h"
#include "runtime/transport/channel.h"

namespace baton {

struct CudaPlaneOptions {
  // Paths this end may take; with neither, payloads go through host memory.
  bool direct = true;
  bool nccl = true;
  // Payloads a sender may have in the receiver's memory; at most 32.
  int slots = 4;
  // Of a ring of slots; payloads that its slots cannot hold go through host
  // memory.
  int64_t max_ring_bytes = int64_t{512} << 20;
  // The longest that a stream waits for a peer. Above what a step may take: the
  // wait begins when the sender has submitted its work, not when that is done.
  absl::Duration deadline = absl::Seconds(30);
};

// Makes the plane between hosts, whose events come here first.
using HostPlaneFactory =
    std::function<StatusOr<std::unique_ptr<DataPlane>>(DataPlaneEvents)>;

// `device` is a GPU and `stream` the stage's; both outlive the plane, and
// tensors that the plane delivered may outlive neither. Payloads may be given
// in host memory too, and arrive in host memory where the path is that one. A
// slot goes back to its sender when the tensor over it is gone and what was
// submitted to `stream` until then is done; Consume() is about credits alone.
// Internal: CUDA failed.
[[nodiscard]] StatusOr<std::unique_ptr<DataPlane>> NewCudaDataPlane(
    const HostPlaneFactory& host_plane, Device* device, Stream* stream,
    const CudaPlaneOptions& options, DataPlaneEvents events);

}  // namespace baton
