// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/device_plane.h"

#include <utility>

#ifdef BATON_WITH_CUDA
#include "runtime/transport/cuda_plane.h"
#endif

namespace baton {

StatusOr<GpuPath> ParseGpuPath(const std::string& name) {
  if (name == "best") return GpuPath::kBest;
  if (name == "direct") return GpuPath::kDirect;
  if (name == "nccl") return GpuPath::kNccl;
  if (name == "host") return GpuPath::kHost;
  return InvalidArgument("GPU path {}: expected best, direct, nccl or host",
                         name);
}

StatusOr<std::unique_ptr<DataPlane>> NewDevicePlane(
    const std::function<StatusOr<std::unique_ptr<DataPlane>>(DataPlaneEvents)>&
        host_plane,
    Device* device, Stream* stream, GpuPath path, DataPlaneEvents events) {
#ifdef BATON_WITH_CUDA
  if (device->kind() == DeviceKind::kCuda) {
    CudaPlaneOptions options;
    options.direct = path == GpuPath::kBest || path == GpuPath::kDirect;
    options.nccl = path == GpuPath::kBest || path == GpuPath::kNccl;
    return NewCudaDataPlane(host_plane, device, stream, options,
                            std::move(events));
  }
#endif
  return host_plane(std::move(events));
}

}  // namespace baton
