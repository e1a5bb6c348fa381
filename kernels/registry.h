// SPDX-License-Identifier: Apache-2.0
// Typed lookup of kernels by op, device and dtype. Filled by explicit lists
// (kernels/cpu/register.cc), looked up when a model is built: a missing kernel
// fails the build of a stage, never a step.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/dtype.h"

namespace baton {

// A kernel of op `Op`: submits its work to the stream. InvalidArgument: shapes
// or dtypes of the arguments do not fit together. Internal: the device failed.
template <typename Op>
using KernelFn = Status (*)(const typename Op::Args&, Stream&);

class KernelRegistry {
 public:
  // CHECKs that nothing is registered under the same key.
  template <typename Op>
  void Add(DeviceKind device, DType dtype, KernelFn<Op> fn) {
    const bool added =
        kernels_
            .emplace(Key(Op::kName, device, dtype), reinterpret_cast<Any>(fn))
            .second;
    BATON_CHECK(added);
  }

  // Unimplemented: there is none; the message names op, device and dtype.
  template <typename Op>
  [[nodiscard]] StatusOr<KernelFn<Op>> Find(DeviceKind device,
                                            DType dtype) const {
    auto found = kernels_.find(Key(Op::kName, device, dtype));
    if (found == kernels_.end()) {
      return Unimplemented("no kernel {} for {} {}", Op::kName, Name(device),
                           Name(dtype));
    }
    return reinterpret_cast<KernelFn<Op>>(found->second);
  }

 private:
  using Any = void (*)();
  using Key = std::tuple<std::string_view, DeviceKind, DType>;
  std::map<Key, Any> kernels_;
};

// The CPU instruction sets with kernels of their own. Each gives the same bits
// on every machine that has it; two of them may differ.
enum class CpuIsa : uint8_t {
  kReference,  // plain loops, the definition
  kAvx2,       // AVX2 + FMA + F16C
  kAvx512,     // AVX512 F/BW/DQ/VL + BF16
  kAmx,        // as kAvx512, with AMX-BF16 tiles for matmul
};
[[nodiscard]] std::string_view Name(CpuIsa isa);
// The best one this machine runs; BATON_CPU_ISA=reference|avx2|avx512|amx in
// the environment asks for a lesser one (InvalidArgument: unknown name or not
// supported here).
[[nodiscard]] StatusOr<CpuIsa> DetectCpuIsa();
[[nodiscard]] bool IsSupported(CpuIsa isa);

// Registers every op for the CPU, f32 and bf16, with the kernels of `isa`
// (the next lesser set where an op has none of its own).
void RegisterCpuKernels(KernelRegistry& registry, CpuIsa isa);

}  // namespace baton
