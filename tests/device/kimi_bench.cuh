// SPDX-License-Identifier: Apache-2.0
// Times of what Kimi-Linear's layers need beside products, at its sizes.
#pragma once

#include "tests/device/attention_bench.cuh"
#include "tests/device/check_delta.cuh"
#include "tests/device/check_latent.cuh"

namespace baton::check {

// `sequences` of `length` rows each; the states of 16 layers in turn.
inline void BenchDelta(int64_t sequences, int length, double read_rate) {
  constexpr int64_t kHeads = 32, kDim = 128, kWide = kHeads * kDim;
  constexpr int64_t kChannels = 3 * kWide, kSlot = kWide * kDim * 4;
  const int layers = length > 1 ? 2 : 16;
  const int64_t rows = sequences * length;
  const Device<Bf16> in(rows * kChannels), qkv(rows * kChannels);
  const Device<Bf16> decay(rows * kWide), beta(rows * kHeads);
  const Device<Bf16> out(rows * kWide);
  const Device<float> constants(4 * kChannels);
  const Device<char> slots(layers * sequences * kSlot);
  const Device<char> kept(layers * sequences * 3 * kChannels * 2);
  for (const Device<Bf16>* values : {&in, &decay, &beta}) {
    Randomize(values->data(), values->count() * 2);
  }
  CUDA_OK(cudaMemset(constants.data(), 0, 4 * kChannels * 4));
  CUDA_OK(cudaMemset(slots.data(), 0, slots.count()));
  CUDA_OK(cudaMemset(kept.data(), 0, kept.count()));
  std::vector<cuda::SequenceRows> of;
  for (int64_t s = 0; s < sequences; ++s) {
    of.push_back(
        {static_cast<int>(s) * length, length, 1, static_cast<int>(s)});
  }
  const Device<cuda::SequenceRows> on_device(of);
  const cuda::Sequences set = {on_device.data(), sequences};
  const auto conv_of = [&](int i) {
    return cuda::ShortConvArgs{
        in.data(),
        kChannels,
        constants.data(),
        kChannels,
        {kept.data() + i * sequences * 3 * kChannels * 2, 3 * kChannels * 2},
        set,
        qkv.data(),
        kChannels,
        rows,
        kChannels,
        4};
  };
  const Device<Bf16> gates(rows * 2 * kWide), w(2 * kWide * kDim);
  Randomize(w.data(), w.count() * 2);
  const Device<const void*> pointers({w.data(), w.data() + kWide * kDim});
  const cuda::HeadWeights head_weights = {pointers.data(), 2, kWide, kDim,
                                          kDim};
  const cuda::HeadMatmulArgs heads = {in.data(),    kChannels, kDim,
                                      gates.data(), 2 * kWide, rows};
  const double conv = TimeEach(layers, [&](int i, cudaStream_t stream) {
    CUDA_OK(cuda::ShortConvRows(conv_of(i), stream));
    CUDA_OK(cuda::HeadMatmul(head_weights, heads, stream));
  });
  const auto rule_of = [&](int i) {
    const Bf16* q = in.data();
    return cuda::DeltaRuleArgs{{q, kChannels},
                               {q + kWide, kChannels},
                               {q + 2 * kWide, kChannels},
                               {decay.data(), kWide},
                               {beta.data(), kHeads},
                               constants.data(),
                               constants.data(),
                               {slots.data() + i * sequences * kSlot, kSlot},
                               set,
                               out.data(),
                               kWide,
                               rows,
                               kHeads,
                               kDim};
  };
  const cuda::GatedNormArgs norm_of = {
      out.data(), kWide, constants.data(), decay.data(), kWide, out.data(),
      kWide,      rows,  kHeads,           kDim,         1e-5f};
  const double rule = TimeEach(layers, [&](int i, cudaStream_t stream) {
    CUDA_OK(cuda::DeltaRule(rule_of(i), stream));
    CUDA_OK(cuda::GatedNormRows(norm_of, stream));
  });
  std::printf(
      "delta %2ld x %5d: rule and norm %9.1f us (%.3f us a token, states at "
      "%.2f of a read), conv and gates %8.1f us\n",
      static_cast<long>(sequences), length, rule, rule / length,
      2.0 * static_cast<double>(sequences * kSlot) / rule / read_rate, conv);
  if (length > 1) return;
  const double joined = TimeEach(layers, [&](int i, cudaStream_t stream) {
    CUDA_OK(cuda::DeltaRuleNormed(rule_of(i), norm_of, stream));
  });
  const double joined_conv = TimeEach(layers, [&](int i, cudaStream_t stream) {
    CUDA_OK(
        cuda::ShortConvAndHeadMatmul(conv_of(i), head_weights, heads, stream));
  });
  std::printf(
      "  each in one: rule and norm %9.1f us, conv and gates %8.1f us\n",
      joined, joined_conv);
}

inline void BenchLatent(const Device<char>& memory, double read_rate,
                        int64_t rows, int64_t context, bool is_prompt) {
  constexpr int64_t kHeads = 32, kWidth = 576;
  const int64_t sequences = is_prompt ? 1 : rows;
  const int64_t row_pages = context / 16;
  const int64_t bytes = sequences * row_pages * kWidth * 16 * 2;
  const int64_t layers =
      is_prompt
          ? 1
          : std::max<int64_t>(1, std::min<int64_t>(16, memory.count() / bytes));
  std::vector<int32_t> table(sequences * row_pages), positions, sequence;
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(3));
  for (int64_t i = 0; i < rows; ++i) {
    positions.push_back(static_cast<int>(is_prompt ? i : context - 1));
    sequence.push_back(static_cast<int>(is_prompt ? 0 : i));
  }
  const Device<int32_t> dtable(table), dpositions(positions),
      dsequence(sequence);
  const Device<Bf16> q_latent(rows * kHeads * 512), q(rows * kHeads * 192);
  const Device<Bf16> out(rows * kHeads * 512);
  Randomize(q_latent.data(), q_latent.count() * 2);
  Randomize(q.data(), q.count() * 2);
  const int64_t spans = is_prompt ? 0 : cuda::LatentSpans(context);
  const Device<char> scratch(
      std::max<int64_t>(cuda::LatentScratchBytes(rows, kHeads, spans), 16));
  const double us =
      TimeEach(is_prompt ? 1 : 16, [&](int i, cudaStream_t stream) {
        CUDA_OK(cuda::LatentAttention(
            {q_latent.data(),
             kHeads * 512,
             q.data() + 128,
             kHeads * 192,
             192,
             out.data(),
             kHeads * 512,
             rows,
             kHeads,
             dpositions.data(),
             dsequence.data(),
             {memory.data() + i % layers * bytes, kWidth * 16 * 2,
              dtable.data(), row_pages, 512, 64},
             0.07f,
             spans,
             scratch.data()},
            stream));
      });
  if (is_prompt) {
    const double flops = 2.0 * 1088 * kHeads * static_cast<double>(rows) *
                         static_cast<double>(rows) / 2;
    std::printf("latent prompt %6ld rows: %9.1f us, %.0f TFLOP/s\n",
                static_cast<long>(rows), us, flops / us / 1e6);
  } else {
    std::printf(
        "latent decode %2ld rows, context %6ld: %8.1f us, %.2f of a read\n",
        static_cast<long>(rows), static_cast<long>(context), us,
        static_cast<double>(bytes) / us / read_rate);
  }
}

inline void BenchHeads(int64_t rows, int64_t n, int64_t k) {
  constexpr int64_t kHeads = 32;
  const Device<Bf16> x(rows * kHeads * k), w(kHeads * n * k);
  const Device<Bf16> out(rows * kHeads * n);
  Randomize(x.data(), x.count() * 2);
  Randomize(w.data(), w.count() * 2);
  std::vector<const void*> pointers;
  for (int64_t h = 0; h < kHeads; ++h) pointers.push_back(w.data() + h * n * k);
  const Device<const void*> dpointers(pointers);
  const double us = TimeEach(8, [&](int, cudaStream_t stream) {
    CUDA_OK(cuda::HeadMatmul(
        {dpointers.data(), kHeads, n, k, k},
        {x.data(), kHeads * k, k, out.data(), kHeads * n, rows}, stream));
  });
  std::printf("head_matmul n %3ld k %3ld, %5ld rows: %8.1f us, %.0f TFLOP/s\n",
              static_cast<long>(n), static_cast<long>(k),
              static_cast<long>(rows), us,
              2.0 * static_cast<double>(kHeads * rows * n * k) / us / 1e6);
}

inline void BenchKimi() {
  const Device<char> memory(int64_t{4} << 30);
  Randomize(memory.data(), memory.count());
  const double read_rate = ReadRate(memory);
  std::printf("a read: %.0f GB/s\n", read_rate / 1e3);
  for (const int64_t rows : {1, 16, 32, 64}) BenchDelta(rows, 1, read_rate);
  BenchDelta(1, 8192, read_rate);
  BenchDelta(4, 2048, read_rate);
  for (const int64_t context : {1024, 8192, 32768}) {
    for (const int64_t rows : {1, 16, 64}) {
      if (rows * context <= 16 * 32768) {
        BenchLatent(memory, read_rate, rows, context, false);
      }
    }
  }
  for (const int64_t rows : {1024, 8192}) {
    BenchLatent(memory, read_rate, rows, rows, true);
  }
  for (const int64_t rows : {1, 16, 64, 8192}) {
    BenchHeads(rows, 512, 128);
    BenchHeads(rows, 128, 512);
  }
}

}  // namespace baton::check
