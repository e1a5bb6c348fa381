// SPDX-License-Identifier: Apache-2.0
// Which instruction sets this machine runs, and the table of each.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "kernels/cpu/inner.h"
#include "kernels/registry.h"

namespace baton {
namespace {

constexpr CpuIsa kAll[] = {CpuIsa::kReference, CpuIsa::kAvx2, CpuIsa::kAvx512,
                           CpuIsa::kAmx};

// CPUID leaf 7: AMX-BF16 and AMX-TILE in EDX, AVX512-BF16 in EAX of subleaf 1.
struct Leaf7 {
  unsigned edx = 0;
  unsigned sub1_eax = 0;
};

void Cpuid(unsigned leaf, unsigned subleaf, unsigned (&out)[4]) {
  asm volatile("cpuid"
               : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3])
               : "a"(leaf), "c"(subleaf));
}

Leaf7 ReadLeaf7() {
  unsigned r[4];
  Cpuid(0, 0, r);
  if (r[0] < 7) return {};
  Leaf7 leaf;
  Cpuid(7, 0, r);
  leaf.edx = r[3];
  if (r[0] >= 1) {
    Cpuid(7, 1, r);
    leaf.sub1_eax = r[0];
  }
  return leaf;
}

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") &&
         (ReadLeaf7().sub1_eax & (1u << 5)) != 0;
}

// The kernel hands out the tile registers on request, once per process.
bool RequestTiles() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool HasAmx() {
  const unsigned edx = ReadLeaf7().edx;
  const bool tiles = (edx & (1u << 22)) != 0 && (edx & (1u << 24)) != 0;
  return tiles && HasAvx512() && RequestTiles();
}

}  // namespace

std::string_view Name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kReference:
      return "reference";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAmx:
      return "amx";
  }
  return "?";
}

bool IsSupported(CpuIsa isa) {
  static const bool avx2 = HasAvx2();
  static const bool avx512 = HasAvx512();
  static const bool amx = HasAmx();
  switch (isa) {
    case CpuIsa::kReference:
      return true;
    case CpuIsa::kAvx2:
      return avx2;
    case CpuIsa::kAvx512:
      return avx512;
    case CpuIsa::kAmx:
      return amx;
  }
  return false;
}

StatusOr<CpuIsa> DetectCpuIsa() {
  const char* asked = std::getenv("BATON_CPU_ISA");
  if (asked == nullptr || *asked == '\0') {
    CpuIsa best = CpuIsa::kReference;
    for (CpuIsa isa : kAll) {
      if (IsSupported(isa)) best = isa;
    }
    return best;
  }
  for (CpuIsa isa : kAll) {
    if (Name(isa) != asked) continue;
    if (IsSupported(isa)) return isa;
    return InvalidArgument(
        "BATON_CPU_ISA={}: this machine has no such "
        "instructions",
        asked);
  }
  return InvalidArgument(
      "BATON_CPU_ISA={}: expected reference, avx2, avx512 or amx", asked);
}

namespace cpu {

bool FetchesPages() {
  static const bool intel = __builtin_cpu_is("intel") != 0;
  return intel;
}

template <>
const InnerLoops<float>& LoopsOf<float>(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kReference:
      return kReferenceF32;
    case CpuIsa::kAvx2:
      return kAvx2F32;
    case CpuIsa::kAvx512:
    case CpuIsa::kAmx:
      return kAvx512F32;
  }
  return kReferenceF32;
}

template <>
const InnerLoops<bf16>& LoopsOf<bf16>(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kReference:
      return kReferenceBF16;
    case CpuIsa::kAvx2:
      return kAvx2BF16;
    case CpuIsa::kAvx512:
    case CpuIsa::kAmx:
      return kAvx512BF16;
  }
  return kReferenceBF16;
}

}  // namespace cpu
}  // namespace baton
