// SPDX-License-Identifier: Apache-2.0
#include "kernels/devices/devices.h"

#include <gtest/gtest.h>

#include "kernels/ops/matmul.h"

namespace baton {
namespace {

TEST(DevicesTest, KnowsDevicesByName) {
  EXPECT_EQ(ParseDeviceKind("cpu").value(), DeviceKind::kCpu);
  EXPECT_EQ(ParseDeviceKind("cuda").value(), DeviceKind::kCuda);
  EXPECT_EQ(ParseDeviceKind("cuda:3").value(), DeviceKind::kCuda);
  EXPECT_EQ(ParseDeviceKind("cuda:3+5").value(), DeviceKind::kCuda);
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda1",
                           "cuda:0+", "cuda:+1", "cuda:0+x"}) {
    EXPECT_EQ(ParseDeviceKind(name).status().code(),
              StatusCode::kInvalidArgument)
        << name;
    EXPECT_EQ(OpenDevices(name, 1).status().code(),
              StatusCode::kInvalidArgument)
        << name;
  }
}

TEST(DevicesTest, OpensTheCpu) {
  const auto devices = OpenDevices("cpu", 2).value();
  ASSERT_EQ(devices.size(), 1);
  EXPECT_EQ(devices[0]->kind(), DeviceKind::kCpu);
}

// No machine has this many GPUs, and a build may have no CUDA at all.
TEST(DevicesTest, SaysThatAGpuIsMissing) {
  const StatusCode code = OpenDevices("cuda:4096", 1).status().code();
  EXPECT_TRUE(code == StatusCode::kUnavailable ||
              code == StatusCode::kUnimplemented);
}

TEST(DevicesTest, RegistersTheCpusKernels) {
  KernelRegistry registry;
  ASSERT_TRUE(RegisterKernels(registry).ok());
  EXPECT_TRUE(registry.Find<Matmul>(DeviceKind::kCpu, DType::kBF16).ok());
}

}  // namespace
}  // namespace baton
