// SPDX-License-Identifier: Apache-2.0
#include "kernels/devices/devices.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"
#include "runtime/transport/inproc_collective.h"

#ifdef BATON_WITH_CUDA
#include "kernels/cuda/rank_group.h"
#include "kernels/cuda/register.h"
#include "runtime/tensor/cuda_device.h"
#endif

namespace baton {
namespace {

constexpr std::string_view kCudaPrefix = "cuda:";

// The GPUs' numbers in "cuda", "cuda:N" or "cuda:N+M".
StatusOr<std::vector<int>> CudaOrdinals(const std::string& name) {
  if (name == "cuda") return std::vector<int>{0};
  std::vector<int> ordinals;
  const std::vector<std::string> parts =
      absl::StrSplit(name.substr(kCudaPrefix.size()), '+');
  for (const std::string& part : parts) {
    int ordinal = 0;
    const char* end = part.data() + part.size();
    const auto [at, error] = std::from_chars(part.data(), end, ordinal);
    if (error != std::errc() || at != end || ordinal < 0) {
      return InvalidArgument("device {}: {} is no number of a GPU", name,
                             part.empty() ? "nothing" : part.c_str());
    }
    ordinals.push_back(ordinal);
  }
  return ordinals;
}

}  // namespace

StatusOr<DeviceKind> ParseDeviceKind(const std::string& name) {
  if (name == "cpu") return DeviceKind::kCpu;
  if (name != "cuda" && name.rfind(kCudaPrefix, 0) != 0) {
    return InvalidArgument("device {}: expected cpu, cuda, cuda:N or cuda:N+M",
                           name);
  }
  BATON_RETURN_IF_ERROR(CudaOrdinals(name).status());
  return DeviceKind::kCuda;
}

StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices(
    const std::string& name, int threads) {
  BATON_ASSIGN_OR_RETURN(const DeviceKind kind, ParseDeviceKind(name));
  std::vector<std::unique_ptr<Device>> devices;
  if (kind == DeviceKind::kCpu) {
    devices.push_back(NewCpuDevice(threads));
    return devices;
  }
#ifdef BATON_WITH_CUDA
  BATON_ASSIGN_OR_RETURN(const std::vector<int> ordinals, CudaOrdinals(name));
  for (const int ordinal : ordinals) {
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                           NewCudaDevice(ordinal));
    devices.push_back(std::move(device));
  }
  return devices;
#else
  return Unimplemented("device {}: this build has no CUDA", name);
#endif
}

StatusOr<std::unique_ptr<RankGroup>> NewRankGroup(
    std::span<Device* const> devices, absl::Duration patience) {
#ifdef BATON_WITH_CUDA
  if (devices[0]->kind() == DeviceKind::kCuda) {
    return NewCudaRanks(devices, patience);
  }
#endif
  return std::unique_ptr<RankGroup>(
      new InprocRanks(static_cast<int>(devices.size()), patience));
}

Status RegisterKernels(KernelRegistry& registry) {
  BATON_ASSIGN_OR_RETURN(const CpuIsa isa, DetectCpuIsa());
  RegisterCpuKernels(registry, isa);
#ifdef BATON_WITH_CUDA
  RegisterCudaKernels(registry);
#endif
  return OkStatus();
}

}  // namespace baton
