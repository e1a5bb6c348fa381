// SPDX-License-Identifier: Apache-2.0
// Checks the row, expert, attention, state and sampling kernels on a device
// against plain loops, and times them. Exits non-zero when a check fails.
//
//   attention_check [check|bench|rows|experts|delta|latent|rotate|decode|
//                    prompt|sample|fetch|experts_bench|kimi_bench|latency_bench|
//                    sanitize_(rows|attention|enter|experts|kimi)]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/device/attention_bench.cuh"
#include "tests/device/check_attention.cuh"
#include "tests/device/check_delta.cuh"
#include "tests/device/check_enter.cuh"
#include "tests/device/check_experts.cuh"
#include "tests/device/check_fetch.cuh"
#include "tests/device/check_grouped_prompt.cuh"
#include "tests/device/check_halves.cuh"
#include "tests/device/check_latent.cuh"
#include "tests/device/check_rotate.cuh"
#include "tests/device/check_rows.cuh"
#include "tests/device/check_sample.cuh"
#include "tests/device/check_shared_expert.cuh"
#include "tests/device/experts_bench.cuh"
#include "tests/device/kimi_bench.cuh"
#include "tests/device/layer_bench.cuh"

// ---- Every kernel on few shapes, for compute-sanitizer ---------------------

namespace baton::check {
namespace {

void FewRows() {
  for (const int64_t hidden : {100, 4096}) {
    CheckNorms(3, hidden, 8);
    CheckNormAdds(3, hidden, 8);
    CheckActivations(3, hidden, 8);
    CheckLookUp(3, hidden, 8);
    CheckWideStream(3, hidden, 8);
  }
  CheckGateHeads(3, 16, 256, 0);
  CheckGateHeads(3, 5, 10, 1);
  for (const int rows : {9, 200}) {
    CheckRotateCase({4, 2, 128, 64, true, rows, 1.0f, 8});
    CheckRotateCase({3, 1, 48, 24, false, rows, 0.8f, 2});
    CheckRotateCase({5, 1, 24, 12, false, rows, 1.0f, 5});
  }
  CheckSampleCase(Logits::kPeaked, 1003, 1003);
  CheckSampleCase(Logits::kFlat, 8192, 8196);
  CheckSampleOuts();
  CheckFetchCase(256 * 16 + 16, 2);
}

void FewAttention() {
  for (const int64_t head_dim : {64, 128, 256, 48}) {
    CheckDecodeCase(head_dim, 4, 1);
    CheckPromptCase(head_dim, 4, 1, false);
  }
  for (const int64_t head_dim : {128, 48}) {
    CheckDecodeCase(head_dim, 4, 1, 100);
    CheckPromptCase(head_dim, 4, 1, false, 100);
  }
  CheckDecodeAhead(64, 300, 1, 0);
  CheckDecodeAhead(256, 530, 1, 0);
  CheckDecodeCase(128, 1, 2);  // fewer heads than warps that combine
}

void FewEnter() {
  CheckEnterCase({64, 3, 2, 32, true, 0});
  CheckEnterCase({256, 4, 1, 32, false, 100});
}

// As many groups of K for all teams of a block (matmul_skinny_check.cu says
// why), or the plain kernels.
void FewExperts() {
  using enum cuda::SkinnyActivation;
  CheckRouteCase(5, 40, 8);
  CheckRouteGroupedCase({9, 40, 4, 4, 2});
  CheckCombineCase(3, 2, 100, 4);
  CheckGroupedCase<Bf16>({8, 9, 2, 100, 1100, false});
  CheckGroupedCase<Bf16>({8, 9, 2, 100, 1024, false});
  CheckGroupedCase<Bf16>({8, 9, 2, 100, 1024, false}, kSiluMul);
  CheckGroupedCase<Bf16>({8, 1, 5, 100, 1024, true}, kSiluMul);
  CheckGroupedCase<Bf16>({8, 1, 5, 100, 1024, false});
  CheckGroupedCase<Bf16>({4, 40, 2, 50, 77, true});
  CheckSharedExpertCase<Bf16>(
      {{8, 1, 5, 100, 1024, false}, 140, 1024, kSiluMul});
  CheckGroupedPromptCase({{3, 90, 2, 264, 456, false}, Deal::kMixed});
  CheckGroupedPromptCase({{3, 70, 1, 40, 72, true}, Deal::kEnds});
  CheckGroupedPromptCase({{3, 70, 1, 264, 192, true, 2}, Deal::kEnds});
  CheckGroupedPromptCase({{3, 70, 1, 40, 256, true, 2}, Deal::kEnds});
  CheckGroupedCase<Bf16>({8, 9, 2, 100, 1008, false, 2});
  CheckGroupedCase<Bf16>({8, 1, 5, 100, 1008, true, 2});
  CheckGroupedHalves(&cuda::GroupedMatmul, {4, 9, 2, 50, 96, true},
                     GroupedPath::kPlain);
}

// The delta rule's sequences have two chunks of tokens at the most: from the
// third one on racecheck of CUDA 13.0 reports what is read before a bar.arrive
// as racing with what is written behind the bar.sync that waits for it.
void FewKimi() {
  CheckConvCase({40, 4, 8}, {1, 9, 35});
  CheckConvAndHeadsCase({{40, 4, 8}, 2, 40, 72, {1, 9, 35}, 7});
  CheckDeltaCase({128, 1, 8}, {1, 9, 16});
  CheckDeltaCase({20, 2, 5}, {1, 9, 20});
  CheckGatedNormCase(3, 2, 128, 8);
  CheckDeltaNormedCase({128, 2, 8}, {1, 3, 2});
  CheckHeadCase({2, 40, 72, 8});
  CheckHeadCase({2, 28, 20, 0});
  CheckLatentWriteCase(512, 64, 8);
  CheckLatentDecodeCase({512, 64, 5, 8}, {1, 65, 200});
  CheckLatentPromptCase({512, 64, 5, 8}, {65});
  CheckLatentDecodeCase({24, 6, 2, 4}, {1, 65, 200});
}

// In processes of their own, side by side.
struct FewPart {
  const char* name;
  void (*run)();
};
constexpr FewPart kFewParts[] = {{"sanitize_rows", &FewRows},
                                 {"sanitize_attention", &FewAttention},
                                 {"sanitize_enter", &FewEnter},
                                 {"sanitize_experts", &FewExperts},
                                 {"sanitize_kimi", &FewKimi}};

}  // namespace
}  // namespace baton::check

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  // Else the first launch of a kernel, inside a capture, would load it.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const std::string filter = argc > 1 ? argv[1] : "";
  cudaDeviceProp device;
  CUDA_OK(cudaGetDeviceProperties(&device, 0));
  std::printf("%s, %d multiprocessors, sm_%d%d\n", device.name,
              device.multiProcessorCount, device.major, device.minor);
  const auto wants = [&](const char* suite) {
    return filter.empty() || filter == "check" || filter == suite;
  };
  const auto run = [&](const char* suite, void (*check)()) {
    if (!wants(suite)) return;
    const auto begin = Clock::now();
    check();
    CUDA_OK(cudaDeviceSynchronize());
    const std::chrono::duration<double> took = Clock::now() - begin;
    baton::check::Section(suite);
    std::printf("   %.1f s, %d checks\n", took.count(),
                baton::check::TheResults().checks);
    std::fflush(stdout);
  };
  for (const baton::check::FewPart& part : baton::check::kFewParts) {
    if (filter == part.name) part.run();
  }
  run("rows", &baton::check::CheckRows);
  run("experts", &baton::check::CheckExperts);
  run("experts", &baton::check::CheckSharedExperts);
  run("experts", &baton::check::CheckGroupedPrompts);
  run("experts", &baton::check::CheckExpertsByHalves);
  run("delta", &baton::check::CheckDelta);
  run("latent", &baton::check::CheckLatent);
  run("rotate", &baton::check::CheckRotate);
  run("decode", &baton::check::CheckDecode);
  run("decode", &baton::check::CheckEnter);
  run("prompt", &baton::check::CheckPrompt);
  run("sample", &baton::check::CheckSample);
  run("fetch", &baton::check::CheckFetch);
  if (filter.empty() || filter == "bench") baton::check::Bench();
  if (filter.empty() || filter == "experts_bench") baton::check::BenchExperts();
  if (filter == "latency_bench") baton::check::BenchLatency();
  if (filter.empty() || filter == "kimi_bench") baton::check::BenchKimi();
  const baton::check::Results& results = baton::check::TheResults();
  if (results.checks == 0 && !filter.ends_with("bench")) {
    std::printf("no suite is called %s\n", filter.c_str());
    return 1;
  }
  std::printf("%d checks, %d failed\n", results.checks, results.failures);
  return results.failures == 0 ? 0 : 1;
}
