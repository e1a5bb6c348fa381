// SPDX-License-Identifier: Apache-2.0
// GroupedAndSharedMatmul against the two kernels that it stands for, bit for
// bit; it takes matrices of whole groups of k.
#pragma once

#include "tests/device/check_experts.cuh"

namespace baton::check {

// One token, and a shared matrix of other sizes.
struct SharedExpertCase {
  GroupedCase grouped;  // of one token
  int64_t n, k;
  cuda::SkinnyActivation activation;  // of both
};

template <typename T>
void CheckSharedExpertCase(const SharedExpertCase& c) {
  const GroupedCase& g = c.grouped;
  const std::string what =
      NameOf(sizeof(T) == 4 ? "grouped_and_shared f32" : "grouped_and_shared",
             g) +
      Name(", n %d k %d", static_cast<int>(c.n), static_cast<int>(c.k));
  const Device<Bf16> w(RandomBf16(g.experts * g.n * g.k, 1));
  const Device<Bf16> x(RandomBf16(g.rows() * g.k, 2));
  const ExpertsOnDevice weights(w.data(), g.experts, g.n, g.k, g.k, g.halves);
  const Device<Bf16> shared_w(RandomBf16(c.n * c.k, 3));
  const Device<Bf16> shared_x(RandomBf16(c.k, 4));
  const ExpertsOnDevice shared(shared_w.data(), 1, c.n, c.k, c.k, g.halves);
  const Device<int32_t> experts(ChooseExperts(g));
  const int64_t ldo = g.n + 5;
  Device<T> out(g.slots() * ldo), shared_out(c.n);
  const Device<char> plan(cuda::GroupedPlanBytes(g.slots()));
  const Device<char> scratch(cuda::GroupedScratchBytes(g.slots(), g.k));
  const cuda::GroupedArgs args = {.x = x.data(),
                                  .rows = g.rows(),
                                  .ldx = g.k,
                                  .experts = experts.data(),
                                  .tokens = 1,
                                  .top = g.top,
                                  .ld_experts = g.top,
                                  .out = out.data(),
                                  .ldo = ldo,
                                  .out_type = kOutOf<T>,
                                  .plan = plan.data(),
                                  .scratch = scratch.data(),
                                  .activation = c.activation};
  const cuda::SkinnyArgs shared_args = {.x = shared_x.data(),
                                        .m = 1,
                                        .ldx = c.k,
                                        .out = shared_out.data(),
                                        .ldo = c.n,
                                        .out_type = kOutOf<T>,
                                        .activation = c.activation};
  CUDA_OK(cuda::GroupedMatmul(weights.weights(), args, nullptr));
  CUDA_OK(cuda::SkinnyMatmul(shared[0], shared_args, nullptr));
  const std::vector<T> want = out.Download();
  const std::vector<T> shared_want = shared_out.Download();
  out.Poison();
  shared_out.Poison();
  const cudaError_t error = cuda::GroupedAndSharedMatmul(
      weights.weights(), args, shared[0], shared_args, nullptr);
  if (!cuda::SuitsRow(g.k, g.halves) || !cuda::SuitsRow(c.k, g.halves)) {
    Expect(error == cudaErrorNotSupported, what + " refused");
    return;
  }
  CUDA_OK(error);
  Expect(SameBits(out.Download(), 0, want, 0, g.slots() * ldo),
         what + " experts");
  Expect(SameBits(shared_out.Download(), 0, shared_want, 0, c.n),
         what + " shared");
  Expect(out.GuardsHold() && shared_out.GuardsHold(), what + " guards");
}

inline void CheckSharedExperts() {
  using enum cuda::SkinnyActivation;
  // Kimi-Linear's, of one rank and of two.
  CheckSharedExpertCase<Bf16>(
      {{9, 1, 8, 2048, 2304, false}, 2048, 2304, kSiluMul});
  CheckSharedExpertCase<Bf16>(
      {{9, 1, 8, 2304, 1024, true, 2}, 2304, 1024, kNone});
  CheckSharedExpertCase<Bf16>(
      {{9, 1, 8, 1024, 2304, false}, 1024, 2304, kSiluMul});
  CheckSharedExpertCase<float>(
      {{9, 1, 8, 2304, 512, true, 1}, 2304, 512, kNone});
  // Mixtral's sizes, which are deeper than stages of all teams at once.
  CheckSharedExpertCase<Bf16>({{3, 1, 2, 96, 14336, true, 2}, 64, 4096, kNone});
  // A shared one that is larger, or smaller, and ragged ends.
  CheckSharedExpertCase<Bf16>({{8, 1, 2, 200, 320, false}, 456, 320, kSiluMul});
  CheckSharedExpertCase<Bf16>({{8, 1, 5, 328, 128, true}, 328, 192, kNone});
  CheckSharedExpertCase<Bf16>({{8, 1, 3, 456, 64, false}, 34, 64, kGeluMul});
  CheckSharedExpertCase<float>({{8, 1, 2, 17, 64, true}, 99, 128, kNone});
  // Groups that are not whole, in all or in halves.
  CheckSharedExpertCase<Bf16>({{8, 1, 3, 200, 144, true, 2}, 200, 208, kNone});
  CheckSharedExpertCase<Bf16>({{8, 1, 3, 200, 192, true, 2}, 200, 128, kNone});
  CheckSharedExpertCase<Bf16>({{8, 1, 2, 200, 320, false}, 456, 328, kSiluMul});
  CheckSharedExpertCase<Bf16>({{8, 1, 5, 328, 104, true}, 328, 192, kNone});
}

}  // namespace baton::check
