// SPDX-License-Identifier: Apache-2.0
// The devices this build knows, by name.
#pragma once

#include <memory>
#include <string>

#include "kernels/registry.h"
#include "runtime/base/status.h"
#include "runtime/tensor/device.h"

namespace baton {

// "cpu", "cuda" (the first GPU) or "cuda:N". `threads`: of a CPU.
// InvalidArgument: another name. Unimplemented: a build without CUDA.
// Unavailable: this machine has no such GPU.
[[nodiscard]] StatusOr<std::unique_ptr<Device>> OpenDevice(
    const std::string& name, int threads);
// The kind of a device's name. InvalidArgument: another name.
[[nodiscard]] StatusOr<DeviceKind> ParseDeviceKind(const std::string& name);

// Every kernel of every kind of device. InvalidArgument: BATON_CPU_ISA.
Status RegisterKernels(KernelRegistry& registry);

}  // namespace baton
