// SPDX-License-Identifier: Apache-2.0
// TFLOP/s of the products of mixtures of experts, beside cuBLASLt's of one
// matrix with as many rows and columns.
#pragma once

#include "kernels/cuda/grouped_sort.h"
#include "kernels/cuda/lt_matmul.h"
#include "tests/device/attention_bench.cuh"
#include "tests/device/check_experts.cuh"

namespace baton::check {

struct ExpertsBench {
  const char* name;
  int64_t experts, top, hidden, ffn;
};

// Microseconds of one call, median of 5; for what cannot be captured or keeps
// to a stream of its own.
inline double TimeOn(cudaStream_t stream, const std::function<void()>& submit) {
  cudaEvent_t begin;
  cudaEvent_t end;
  CUDA_OK(cudaEventCreate(&begin));
  CUDA_OK(cudaEventCreate(&end));
  constexpr int kCalls = 4;
  std::vector<float> times;
  for (int i = 0; i < 6; ++i) {
    CUDA_OK(cudaEventRecord(begin, stream));
    for (int call = 0; call < kCalls; ++call) submit();
    CUDA_OK(cudaEventRecord(end, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    float ms = 0;
    CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 1) times.push_back(ms * 1000.0f / kCalls);
  }
  CUDA_OK(cudaEventDestroy(begin));
  CUDA_OK(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

inline double TimeLt(const cuda::LtMatmul::Args& args) {
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreate(&stream));
  double us = 0;
  if (const auto lt = cuda::LtMatmul::Create(stream);
      lt != nullptr &&
      lt->Prepare(args.weight, args.out_type) == CUBLAS_STATUS_SUCCESS) {
    us = TimeOn(stream, [&] {
      if (lt->Run(args) != CUBLAS_STATUS_SUCCESS) std::exit(2);
    });
  }
  CUDA_OK(cudaStreamDestroy(stream));
  return us;
}

// Memory of all cases of one model, random where it is read.
struct ExpertsMemory {
  explicit ExpertsMemory(const ExpertsBench& m, int64_t tokens)
      : w(2 * m.experts * m.ffn * m.hidden),
        x(tokens * std::max(m.hidden, m.top * m.ffn)),
        out(tokens * m.top * std::max(m.hidden, 2 * m.ffn)),
        plan(cuda::GroupedPlanBytes(tokens * m.top)) {
    Randomize(w.data(), w.count() * 2);
    Randomize(x.data(), x.count() * 2);
  }
  Device<Bf16> w, x, out;
  Device<char> plan;
};

// Random experts, distinct of a token.
inline std::vector<int32_t> RandomExperts(const GroupedCase& c) {
  std::vector<int32_t> order(c.experts);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(11);
  std::vector<int32_t> experts;
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t s = 0; s < c.top; ++s) {
      const auto left = static_cast<uint32_t>(c.experts - s);
      std::swap(order[s], order[s + random() % left]);
      experts.push_back(order[s]);
    }
  }
  return experts;
}

inline void BenchProduct(const char* name, const ExpertsMemory& memory,
                         const GroupedCase& c) {
  const ExpertsOnDevice weights(memory.w.data(), c.experts, c.n, c.k, c.k,
                                c.halves);
  const Device<char> scratch(
      cuda::GroupedPromptScratchBytes(weights.weights()));
  const Device<int32_t> experts(RandomExperts(c));
  const cuda::GroupedArgs args = {memory.x.data(),
                                  c.rows(),
                                  c.k,
                                  experts.data(),
                                  c.tokens,
                                  c.top,
                                  c.top,
                                  memory.out.data(),
                                  c.n,
                                  cuda::SkinnyOut::kBf16,
                                  memory.plan.data(),
                                  scratch.data()};
  const double us = TimeEach(4, [&](int, cudaStream_t stream) {
    CUDA_OK(cuda::GroupedPromptMatmul(weights.weights(), args, stream));
  });
  const cuda::GroupedPlan plan =
      cuda::GroupedScratch(memory.plan.data()).TakePlan(c.slots());
  const double sort_us = TimeEach(4, [&](int, cudaStream_t stream) {
    CUDA_OK(cuda::SortSlots(args, c.experts, 128, plan, stream));
  });
  const double lt_us = TimeLt({.weight = {memory.w.data(), c.n, c.k, c.k},
                               .x = memory.x.data(),
                               .m = std::min(c.slots(), memory.x.count() / c.k),
                               .ldx = c.k,
                               .out = memory.out.data(),
                               .ldo = c.n});
  const double flop = 2.0 * static_cast<double>(c.n * c.k);
  const double m = static_cast<double>(c.slots());
  std::printf(
      "%-24s %5d rows %8.1f us (sort %5.1f) %5.0f TFLOP/s, W %5.0f GB/s; "
      "cuBLASLt, one matrix %5.0f TFLOP/s\n",
      name, static_cast<int>(c.tokens), us, sort_us, m * flop / us / 1e6,
      static_cast<double>(c.experts) * flop / us / 1e3,
      lt_us > 0
          ? static_cast<double>(std::min(c.slots(), memory.x.count() / c.k)) *
                flop / lt_us / 1e6
          : 0.0);
  std::fflush(stdout);
}

// One token, whose shared expert is multiplied behind the chosen ones, then
// beside them. Launches take turns with experts, so that L2 does not hold them.
inline void BenchToken(const char* name, const ExpertsMemory& memory,
                       const GroupedCase& c,
                       cuda::SkinnyActivation activation) {
  constexpr int kLaunches = 4;
  const ExpertsOnDevice weights(memory.w.data(), c.experts, c.n, c.k, c.k, 0);
  GroupedCase chosen = c;
  chosen.tokens = kLaunches;
  chosen.experts = c.experts - kLaunches;  // the last ones are shared
  const Device<int32_t> experts(RandomExperts(chosen));
  const auto args = [&](int i) {
    return cuda::GroupedArgs{.x = memory.x.data(),
                             .rows = c.rows(),
                             .ldx = c.k,
                             .experts = experts.data() + i * c.top,
                             .tokens = 1,
                             .top = c.top,
                             .ld_experts = c.top,
                             .out = memory.out.data(),
                             .ldo = c.n,
                             .out_type = cuda::SkinnyOut::kBf16,
                             .plan = memory.plan.data(),
                             .activation = activation};
  };
  const cuda::SkinnyArgs shared_args = {.x = memory.x.data(),
                                        .m = 1,
                                        .ldx = c.k,
                                        .out = memory.out.data() + c.top * c.n,
                                        .ldo = c.n,
                                        .activation = activation};
  const auto shared = [&](int i) { return weights[c.experts - 1 - i]; };
  const double apart = TimeEach(kLaunches, [&](int i, cudaStream_t stream) {
    CUDA_OK(cuda::SkinnyMatmul(shared(i), shared_args, stream));
    CUDA_OK(cuda::GroupedMatmul(weights.weights(), args(i), stream));
  });
  const double joined = TimeEach(kLaunches, [&](int i, cudaStream_t stream) {
    CUDA_OK(cuda::GroupedAndSharedMatmul(weights.weights(), args(i), shared(i),
                                         shared_args, stream));
  });
  std::printf(
      "%-18s one token and its shared expert %6.1f us, joined %6.1f us\n", name,
      apart, joined);
}

inline void BenchExperts() {
  for (const ExpertsBench& m :
       {ExpertsBench{"Mixtral", 8, 2, 4096, 14336},
        ExpertsBench{"Kimi-Linear", 256, 8, 2304, 1024}}) {
    const ExpertsMemory memory(m, 8192);
    const std::string gate_up = std::string(m.name) + " gate|up";
    const std::string down = std::string(m.name) + " down";
    const std::string halves = down + ", halves";
    for (const int64_t tokens : {8192, 2048, 1024, 128}) {
      BenchProduct(gate_up.c_str(), memory,
                   {m.experts, tokens, m.top, 2 * m.ffn, m.hidden, false});
      BenchProduct(down.c_str(), memory,
                   {m.experts, tokens, m.top, m.hidden, m.ffn, true});
      BenchProduct(halves.c_str(), memory,
                   {m.experts, tokens, m.top, m.hidden, m.ffn, true, 2});
    }
    if (m.experts < 256) continue;  // there is no shared one
    BenchToken(gate_up.c_str(), memory,
               {m.experts, 1, m.top, 2 * m.ffn, m.hidden, false},
               cuda::SkinnyActivation::kSiluMul);
    BenchToken(down.c_str(), memory,
               {m.experts, 1, m.top, m.hidden, m.ffn, true},
               cuda::SkinnyActivation::kNone);
  }
}

}  // namespace baton::check
