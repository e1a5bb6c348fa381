// SPDX-License-Identifier: Apache-2.0
// The devices this build knows, by name.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/registry.h"
#include "runtime/base/status.h"
#include "runtime/tensor/device.h"
#include "runtime/transport/collective.h"

namespace baton {

// What a stage runs on: "cpu", "cuda" (the first GPU), "cuda:N", or a GPU for
// each of its ranks, "cuda:N+M", not empty. `threads`: of a CPU.
// InvalidArgument: another name. Unimplemented: a build without CUDA.
// Unavailable: this machine has no such GPU.
[[nodiscard]] StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices(
    const std::string& name, int threads);
// A group of ranks with a device each, which are of one kind. `patience`: how
// long a rank waits for the others. Any Status of NewCudaRanks.
[[nodiscard]] StatusOr<std::unique_ptr<RankGroup>> NewRankGroup(
    std::span<Device* const> devices, absl::Duration patience);
// The kind of a device's name. InvalidArgument: another name.
[[nodiscard]] StatusOr<DeviceKind> ParseDeviceKind(const std::string& name);

// Every kernel of every kind of device. InvalidArgument: BATON_CPU_ISA.
Status RegisterKernels(KernelRegistry& registry);

}  // namespace baton
