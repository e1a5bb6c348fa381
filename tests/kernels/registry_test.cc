// SPDX-License-Identifier: Apache-2.0
#include "kernels/registry.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/delta_attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/latent_attention.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/sample.h"
#include "tests/kernels/kernel_testing.h"

namespace baton {
namespace {

template <typename... Ops>
struct OpList {
  static void ExpectFound(const KernelRegistry& registry, DType dtype) {
    const auto expect = [](std::string_view name, bool found) {
      EXPECT_TRUE(found) << name;
    };
    (expect(Ops::kName, registry.Find<Ops>(DeviceKind::kCpu, dtype).ok()), ...);
  }
};
using AllOps =
    OpList<PackMatrix, Matmul, RmsNorm, AddRmsNorm, RmsNormAdd,
           AllReduceAddRmsNorm, Add, SiluMul, GeluMul, GateHeads, Relu2, Xielu,
           Embedding, Rope, KvWrite, RotateAndStore, PagedAttention,
           RotateAndAttend, Sample, RouteTopK, RouteGrouped, GroupedMatmul,
           GroupedAndSharedMatmul, CombineExperts, HeadMatmul, LatentWrite,
           LatentAttention, ShortConv, ShortConvAndHeadMatmul, DeltaRule,
           GatedRmsNorm, DeltaRuleNormed>;

TEST(KernelRegistryTest, HasEveryOpForEachTypeAndInstructionSet) {
  for (const CpuIsa isa :
       {CpuIsa::kReference, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx}) {
    KernelRegistry registry;
    RegisterCpuKernels(registry, isa);
    for (const DType dtype : kFloatTypes) {
      AllOps::ExpectFound(registry, dtype);
    }
  }
}

TEST(KernelRegistryTest, NamesTheKernelItLacks) {
  const KernelRegistry registry;
  const Status status =
      registry.Find<Rope>(DeviceKind::kCuda, DType::kBF16).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Message(status), ::testing::HasSubstr("rope for cuda bf16"));
}

TEST(KernelRegistryDeathTest, ChecksThatNothingIsRegisteredTwice) {
  KernelRegistry registry;
  RegisterCpuKernels(registry, CpuIsa::kReference);
  EXPECT_DEATH(RegisterCpuKernels(registry, CpuIsa::kReference), "added");
}

class DetectCpuIsaTest : public ::testing::Test {
 protected:
  ~DetectCpuIsaTest() override { unsetenv("BATON_CPU_ISA"); }
};

TEST_F(DetectCpuIsaTest, FindsOneThatIsSupported) {
  unsetenv("BATON_CPU_ISA");
  const StatusOr<CpuIsa> isa = DetectCpuIsa();
  ASSERT_TRUE(isa.ok());
  EXPECT_TRUE(IsSupported(*isa));
}

TEST_F(DetectCpuIsaTest, TakesTheOneThatIsAskedFor) {
  setenv("BATON_CPU_ISA", "reference", 1);
  EXPECT_EQ(DetectCpuIsa().value(), CpuIsa::kReference);
}

TEST_F(DetectCpuIsaTest, RefusesAnUnknownName) {
  setenv("BATON_CPU_ISA", "sse9", 1);
  EXPECT_EQ(DetectCpuIsa().status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
