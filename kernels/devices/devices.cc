// SPDX-License-Identifier: Apache-2.0
#include "kernels/devices/devices.h"

#include <charconv>
#include <string_view>

#ifdef BATON_WITH_CUDA
#include "kernels/cuda/register.h"
#include "runtime/tensor/cuda_device.h"
#endif

namespace baton {
namespace {

constexpr std::string_view kCudaPrefix = "cuda:";

Status UnknownDevice(const std::string& name) {
  return InvalidArgument("device {}: expected cpu, cuda or cuda:N", name);
}

// The GPU's number in "cuda" or "cuda:N".
StatusOr<int> CudaOrdinal(const std::string& name) {
  if (name == "cuda") return 0;
  int ordinal = 0;
  const char* begin = name.data() + kCudaPrefix.size();
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(begin, end, ordinal);
  if (error != std::errc() || at != end || ordinal < 0) {
    return UnknownDevice(name);
  }
  return ordinal;
}

}  // namespace

StatusOr<DeviceKind> ParseDeviceKind(const std::string& name) {
  if (name == "cpu") return DeviceKind::kCpu;
  if (name != "cuda" && name.rfind(kCudaPrefix, 0) != 0) {
    return UnknownDevice(name);
  }
  BATON_RETURN_IF_ERROR(CudaOrdinal(name).status());
  return DeviceKind::kCuda;
}

StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& name,
                                             int threads) {
  BATON_ASSIGN_OR_RETURN(const DeviceKind kind, ParseDeviceKind(name));
  if (kind == DeviceKind::kCpu) return NewCpuDevice(threads);
  BATON_ASSIGN_OR_RETURN([[maybe_unused]] const int ordinal, CudaOrdinal(name));
#ifdef BATON_WITH_CUDA
  return NewCudaDevice(ordinal);
#else
  return Unimplemented("device {}: this build has no CUDA", name);
#endif
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
