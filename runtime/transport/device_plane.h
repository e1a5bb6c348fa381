// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "runtime/tensor/device.h"
#include "runtime/transport/channel.h"

namespace baton {

// How payloads go from GPU to GPU.
enum class GpuPath {
  kBest,  // the first of the others that works
  kDirect,
  kNccl,
  kHost,  // through host memory
};
// best, direct, nccl, host. InvalidArgument: another name.
[[nodiscard]] StatusOr<GpuPath> ParseGpuPath(const std::string& name);

// The data plane of a stage on `device`, around one between hosts: that one
// itself on a CPU. `device` and `stream` outlive it. Internal: CUDA failed.
[[nodiscard]] StatusOr<std::unique_ptr<DataPlane>> NewDevicePlane(
    const std::function<StatusOr<std::unique_ptr<DataPlane>>(DataPlaneEvents)>&
        host_plane,
    Device* device, Stream* stream, GpuPath path, DataPlaneEvents events);

}  // namespace baton
