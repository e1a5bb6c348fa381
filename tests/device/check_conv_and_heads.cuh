// SPDX-License-Identifier: Apache-2.0
// ShortConvAndHeadMatmul against the two kernels that it stands for: outputs
// and slots, bit for bit.
#pragma once

#include "kernels/cuda/conv_and_heads.h"
#include "tests/device/check_conv.cuh"

namespace baton::check {

struct ConvAndHeadsCase {
  ConvCase conv;
  int64_t heads, n, k;
  std::vector<int> lengths;
  int chunk;  // rows of a sequence at a time
};

struct ConvAndHeadsResult {
  std::vector<Bf16> conv, heads;  // heads: of every visit, behind each other
  std::vector<char> slots;

  bool operator==(const ConvAndHeadsResult&) const = default;
};

// Visits of all chunks, then one as a recorded visit has it, from slots of
// zeros. `submit` computes one.
using SubmitBoth =
    std::function<void(const cuda::ShortConvArgs&, const cuda::HeadWeights&,
                       const cuda::HeadMatmulArgs&)>;
inline ConvAndHeadsResult RunBoth(const ConvAndHeadsCase& c, ConvRun& run,
                                  const SubmitBoth& submit) {
  const int64_t most = 64;
  const int64_t ldx = c.heads * c.k + 8;
  const int64_t ldo = c.heads * c.n + 2;
  const Device<Bf16> x(RandomBf16(most * ldx, 31));
  const Device<Bf16> w(RandomBf16(c.heads * c.n * c.k, 32));
  std::vector<const void*> pointers;
  for (int64_t h = 0; h < c.heads; ++h) {
    pointers.push_back(w.data() + h * c.n * c.k);
  }
  const Device<const void*> dpointers(pointers);
  Device<Bf16> out(most * ldo);
  ConvAndHeadsResult result;
  const auto visit = [&](const cuda::Sequences& sequences, int64_t rows) {
    out.Poison();
    submit(run.Args(sequences, rows),
           {dpointers.data(), c.heads, c.n, c.k, c.k},
           {x.data(), ldx, c.k, out.data(), ldo, rows});
    CUDA_OK(cudaDeviceSynchronize());
    const std::vector<Bf16> got = out.Download();
    result.heads.insert(result.heads.end(), got.begin(), got.end());
    Expect(out.GuardsHold(), "short_conv_and_head_matmul guards");
  };
  run.slots.Zero();
  run.out.Poison();
  InChunks(run.set, c.chunk, visit);
  const std::vector<cuda::SequenceRows> part = RecordedPart(run.set);
  const Device<cuda::SequenceRows> dpart(part);
  visit({dpart.data(), static_cast<int64_t>(part.size())}, RowsOf(part));
  result.conv = run.out.Download();
  result.slots = run.slots.Download();
  return result;
}

inline void CheckConvAndHeadsCase(const ConvAndHeadsCase& c) {
  const std::string what = Name(
      "short_conv_and_head_matmul channels %d heads %d n %d k %d "
      "sequences %d",
      static_cast<int>(c.conv.channels), static_cast<int>(c.heads),
      static_cast<int>(c.n), static_cast<int>(c.k),
      static_cast<int>(c.lengths.size()));
  const SequenceSet set(c.lengths);
  ConvRun run(c.conv, set);
  run.weight.Upload(RandomTaps(c.conv));
  const ConvAndHeadsResult apart = RunBoth(
      c, run, [](const auto& conv, const auto& weights, const auto& heads) {
        CUDA_OK(cuda::ShortConvRows(conv, nullptr));
        CUDA_OK(cuda::HeadMatmul(weights, heads, nullptr));
      });
  const ConvAndHeadsResult joined = RunBoth(
      c, run, [](const auto& conv, const auto& weights, const auto& heads) {
        CUDA_OK(cuda::ShortConvAndHeadMatmul(conv, weights, heads, nullptr));
      });
  Expect(joined.conv == apart.conv, what + " conv");
  Expect(joined.heads == apart.heads, what + " heads");
  Expect(joined.slots == apart.slots, what + " slots");
  Expect(run.out.GuardsHold() && run.slots.GuardsHold(), what + " guards");
}

inline void CheckConvAndHeads() {
  CheckConvAndHeadsCase({{12288, 4, 8}, 2, 4096, 128, {9}, 1});
  CheckConvAndHeadsCase({{12288, 4, 8}, 2, 4096, 128, SetLengths(), 1});
  CheckConvAndHeadsCase(
      {{6144, 4, 8}, 2, 2048, 128, std::vector<int>(62, 2), 1});
  CheckConvAndHeadsCase({{1032, 3, 8}, 2, 344, 72, {1, 9, 35}, 7});
  CheckConvAndHeadsCase({{8, 1, 0}, 3, 34, 8, {40, 5}, 32});
  // More rows, and channels that are no multiples of 8, have no kernel for
  // both.
  Expect(cuda::ShortConvAndHeadMatmul(
             {.rows = 65, .channels = 64, .taps = 4},
             {.pointers = nullptr, .heads = 2, .n = 64, .k = 64, .ldw = 64},
             {.ldx = 64, .head_stride = 64, .ldo = 64, .rows = 65},
             nullptr) == cudaErrorNotSupported,
         "short_conv_and_head_matmul of 65 rows");
  Expect(cuda::ShortConvAndHeadMatmul(
             {.rows = 2, .channels = 60, .taps = 4},
             {.pointers = nullptr, .heads = 2, .n = 64, .k = 64, .ldw = 64},
             {.ldx = 64, .head_stride = 64, .ldo = 64, .rows = 2},
             nullptr) == cudaErrorNotSupported,
         "short_conv_and_head_matmul of odd channels");
}

}  // namespace baton::check
