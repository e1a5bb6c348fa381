// SPDX-License-Identifier: Apache-2.0
// Checks and measures the matrix products of kernels/cuda on a device.
//   matmul_check [check|bench|lt]...   (all of them without arguments)
//   matmul_check small                 (bandwidth of small models)
//   matmul_check sanitize              (few shapes, for compute-sanitizer)
// Exits with 1 if a check failed, with 2 if the device did.
#include <chrono>
#include <cstring>

#include "tests/device/device_test.cuh"
#include "tests/device/matmul_check.h"

namespace {

// Runs one part and prints how long it took.
template <typename Part>
auto Timed(const char* name, Part part) {
  const auto start = std::chrono::steady_clock::now();
  struct Report {
    ~Report() {
      const std::chrono::duration<double> taken =
          std::chrono::steady_clock::now() - start;
      std::printf("[%s: %.1f s]\n", name, taken.count());
      std::fflush(stdout);
    }
    const char* name;
    std::chrono::steady_clock::time_point start;
  } report{name, start};
  return part();
}

}  // namespace

int main(int argc, char** argv) {
  auto asked = [&](const char* part) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], part) == 0) return true;
    }
    return argc == 1;
  };
  cudaDeviceProp properties = {};
  CHECK_CUDA(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d multiprocessors, cuBLASLt and CUDA %d\n", properties.name,
              properties.multiProcessorCount, CUDART_VERSION);
  int failures = 0;
  if (argc > 1 && asked("sanitize")) {
    failures += Timed("skinny, few", baton::test::CheckSkinnyFew);
    failures += Timed("halves, few", baton::test::CheckHalvesFew);
  }
  if (asked("check")) failures += Timed("skinny", baton::test::CheckSkinny);
  if (asked("check")) failures += Timed("halves", baton::test::CheckHalves);
  if (asked("lt")) failures += Timed("lt", baton::test::CheckLt);
  if (asked("lt")) Timed("lt bench", baton::test::BenchLt);
  if (asked("bench")) Timed("skinny bench", baton::test::BenchSkinny);
  if (argc > 1 && asked("small")) Timed("small", baton::test::BenchSmall);
  std::printf("%s: %d failures\n", failures == 0 ? "PASS" : "FAIL", failures);
  return failures == 0 ? 0 : 1;
}
