// SPDX-License-Identifier: Apache-2.0
// Times on the device: medians of replayed graphs, each of many launches that
// follow each other as programmatic dependents.
#pragma once

#include <functional>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/prompt_attention.h"
#include "kernels/cuda/rotate_and_store.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/cuda/sample.h"
#include "tests/device/check_attention.cuh"
#include "tests/device/check_sample.cuh"

namespace baton::check {

static __global__ void FillRandom(uint32_t* to, int64_t words, uint32_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < words; i += step) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x = (x ^ (x >> 15)) * 0x2c1b3c6du;
    x ^= x >> 13;
    // Two bf16 of magnitude 0.5 to 2, either sign.
    to[i] = (x & 0x80ff80ffu) | 0x3f003f00u;
  }
}

static __global__ void __launch_bounds__(512)
    ReadAll(const uint4* from, int64_t count, uint32_t* sink) {
  constexpr int kLoads = 8;
  uint32_t sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * 512 * kLoads;
  for (int64_t i =
           static_cast<int64_t>(blockIdx.x) * 512 * kLoads + threadIdx.x;
       i + 512 * (kLoads - 1) < count; i += step) {
    uint4 x[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) x[j] = __ldcs(from + i + j * 512);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) sum ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
  }
  if (sum == 0x12345678u) *sink = sum;
}

// Microseconds of one of `launches` calls of submit(i, stream), median of 7.
inline double TimeEach(int launches,
                       const std::function<void(int, cudaStream_t)>& submit) {
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) submit(i, stream);
  cudaGraph_t graph;
  cudaGraphExec_t run;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&run, graph, 0));
  cudaEvent_t begin;
  cudaEvent_t end;
  CUDA_OK(cudaEventCreate(&begin));
  CUDA_OK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    CUDA_OK(cudaEventRecord(begin, stream));
    CUDA_OK(cudaGraphLaunch(run, stream));
    CUDA_OK(cudaEventRecord(end, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    float ms = 0;
    CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms * 1000.0f / static_cast<float>(launches));
  }
  CUDA_OK(cudaGraphExecDestroy(run));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaEventDestroy(begin));
  CUDA_OK(cudaEventDestroy(end));
  CUDA_OK(cudaStreamDestroy(stream));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

inline void Randomize(void* to, int64_t bytes) {
  FillRandom<<<1024, 256>>>(static_cast<uint32_t*>(to), bytes / 4, 17);
  CUDA_OK(cudaDeviceSynchronize());
}

// Bytes per microsecond of a plain read.
inline double ReadRate(const Device<char>& memory) {
  const Device<uint32_t> sink(1);
  const double us = TimeEach(4, [&](int, cudaStream_t stream) {
    ReadAll<<<132 * 4, 512, 0, stream>>>(
        reinterpret_cast<const uint4*>(memory.data()), memory.count() / 16,
        sink.data());
  });
  return static_cast<double>(memory.count()) / us;
}

// Where the keys and values of rows are that generate, all at one context.
struct DecodeCase {
  int64_t head_dim, kv_heads, group, rows, context;
  int window = 0;
  bool reads_ahead = true;  // pages, while the launch before runs

  [[nodiscard]] int64_t PageBytes() const {
    return 2 * kv_heads * head_dim * 16 * 2;
  }
  [[nodiscard]] int64_t Bytes() const {
    return rows * context / 16 * PageBytes();
  }
  // Launches take turns with memory, so that L2 does not hold it.
  [[nodiscard]] int64_t Layers(const Device<char>& memory) const {
    return std::max<int64_t>(1,
                             std::min<int64_t>(16, memory.count() / Bytes()));
  }
};

// Microseconds of a launch.
inline double TimeDecode(const Device<char>& memory, const DecodeCase& c) {
  const int64_t row_pages = c.context / 16;
  std::vector<int32_t> table(c.rows * row_pages);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(3));
  std::vector<int32_t> sequence(c.rows);
  std::iota(sequence.begin(), sequence.end(), 0);
  const Device<int32_t> dtable(table);
  const Device<int32_t> dsequence(sequence);
  std::vector<SequenceRows> sequences(c.rows);
  for (int64_t i = 0; i < c.rows; ++i) {
    sequences[i] = {.first_row = static_cast<int32_t>(i),
                    .rows = 1,
                    .first_position = static_cast<int32_t>(c.context - 1)};
  }
  const Device<SequenceRows> dsequences(sequences);
  const Device<int32_t> positions(
      std::vector<int32_t>(c.rows, static_cast<int32_t>(c.context - 1)));
  const int64_t q_heads = c.kv_heads * c.group;
  const int64_t width = q_heads * c.head_dim;
  const Device<Bf16> q(RandomBf16(c.rows * width, 5));
  const Device<Bf16> out(c.rows * width);
  const int64_t max_spans = cuda::DecodeSpans(c.context, c.window);
  const Device<char> scratch(cuda::DecodeScratchBytes(
      c.rows, q_heads, c.kv_heads, c.head_dim, max_spans));
  Device<int32_t> counters(cuda::DecodeCounters(c.rows, q_heads, c.kv_heads));
  counters.Zero();
  const int64_t layers = c.Layers(memory);
  return TimeEach(32, [&](int i, cudaStream_t stream) {
    CUDA_OK(cuda::DecodeAttention(
        {.q = q.data(),
         .q_stride = width,
         .out = out.data(),
         .out_stride = width,
         .rows = c.rows,
         .q_heads = q_heads,
         .positions = positions.data(),
         .row_sequence = dsequence.data(),
         .sequences = c.reads_ahead ? dsequences.data() : nullptr,
         .pages = {memory.data() + i % layers * c.Bytes(), c.PageBytes(),
                   dtable.data(), row_pages, c.kv_heads, c.head_dim, c.window},
         .scale = 0.088f,
         .max_spans = max_spans,
         .scratch = scratch.data(),
         .counters = counters.data()},
        stream));
  });
}

// Few rows: with pages read ahead of the launch before, and without.
inline void BenchFewRows(const Device<char>& memory, int64_t head_dim,
                         int64_t kv_heads, int64_t group) {
  for (const int64_t context : {1024, 4096}) {
    for (const int64_t rows : {1, 2, 4, 8}) {
      DecodeCase c = {head_dim, kv_heads, group, rows, context};
      const double ahead = TimeDecode(memory, c);
      c.reads_ahead = false;
      std::printf(
          "decode d%-3d %2dx%d rows %2d context %5d  %8.2f us, pages after the "
          "wait %8.2f us\n",
          int(head_dim), int(kv_heads), int(group), int(rows), int(context),
          ahead, TimeDecode(memory, c));
    }
  }
}

inline void BenchDecode(const Device<char>& memory, double read_rate,
                        int64_t head_dim, int64_t kv_heads, int64_t group) {
  for (const int64_t context : {1024, 8192}) {
    for (const int64_t rows : {1, 8, 16, 32, 64}) {
      const DecodeCase c = {head_dim, kv_heads, group, rows, context};
      const double us = TimeDecode(memory, c);
      const double rate = static_cast<double>(c.Bytes()) / us;
      std::printf(
          "decode d%-3d %2dx%d rows %2d context %5d  %8.1f us %7.0f GB/s "
          "%5.2f of read%s\n",
          int(head_dim), int(kv_heads), int(group), int(rows), int(context), us,
          rate / 1e3, rate / read_rate,
          c.Bytes() * c.Layers(memory) < 120'000'000 ? " (in L2)" : "");
    }
  }
}

// A window of 512 at 4k of context, beside all positions of 512 and of 4k.
inline void BenchWindow(const Device<char>& memory, int64_t head_dim,
                        int64_t kv_heads, int64_t group) {
  for (const int64_t rows : {1, 8, 32, 64}) {
    DecodeCase c = {head_dim, kv_heads, group, rows, 4096};
    const double all = TimeDecode(memory, c);
    c.window = 512;
    const double window = TimeDecode(memory, c);
    c.window = 0;
    c.context = 512;
    const double few = TimeDecode(memory, c);
    std::printf(
        "decode d%-3d %2dx%d rows %2d  context 4096 %8.1f us, in a window of "
        "512 %8.1f us, context 512 %8.1f us\n",
        int(head_dim), int(kv_heads), int(group), int(rows), all, window, few);
  }
}

inline void BenchPrompt(const Device<char>& memory, int64_t head_dim,
                        int64_t kv_heads, int64_t group, int64_t context,
                        int window = 0) {
  const int64_t q_heads = kv_heads * group;
  const int64_t width = q_heads * head_dim;
  const int64_t page_bytes = 2 * kv_heads * head_dim * 16 * 2;
  std::vector<int32_t> table(context / 16);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(3));
  const Device<int32_t> dtable(table);
  const std::vector<cuda::PromptTile> tiles =
      TilesOf({static_cast<int>(context)}, 0, 1 << 20, 128);
  const Device<cuda::PromptTile> dtiles(tiles);
  const Device<Bf16> q(context * width);
  const Device<Bf16> out(context * width);
  Randomize(q.data(), context * width * 2);
  const double us = TimeEach(context > 10000 ? 2 : 8, [&](int,
                                                          cudaStream_t stream) {
    CUDA_OK(cuda::PromptAttention({q.data(),
                                   width,
                                   out.data(),
                                   width,
                                   q_heads,
                                   dtiles.data(),
                                   static_cast<int64_t>(tiles.size()),
                                   {memory.data(), page_bytes, dtable.data(),
                                    context / 16, kv_heads, head_dim, window},
                                   0.088f},
                                  stream));
  });
  // Keys that rows see: less those before their windows.
  const double past = window > 0 ? double(context - window) : 0;
  const double keys =
      double(context) * double(context + 1) / 2 - past * (past + 1) / 2;
  const double flops = 4.0 * double(width) * keys;
  std::printf(
      "prompt d%-3d %2dx%d context %5d window %4d  %9.1f us %6.1f TFLOP/s\n",
      int(head_dim), int(kv_heads), int(group), int(context), window, us,
      flops / us / 1e6);
}

inline void BenchRows(const Device<char>& memory, int64_t rows) {
  constexpr int64_t kHidden = 4096;
  auto* data = reinterpret_cast<Bf16*>(memory.data());
  Bf16* residual = data;
  Bf16* update = data + rows * kHidden;
  Bf16* weight = update + rows * kHidden;
  const double norm = TimeEach(64, [&](int, cudaStream_t stream) {
    CUDA_OK(cuda::AddRmsNormRows({residual, kHidden, update, kHidden, weight,
                                  update, kHidden, rows, kHidden, 1e-5f},
                                 stream));
  });
  const int64_t stride = 48 * 128;
  Bf16* qkv = weight + kHidden;
  auto* pool = memory.data() + (int64_t{1} << 30);
  std::vector<int32_t> positions(rows);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<int32_t> table((rows + 15) / 16);
  std::iota(table.begin(), table.end(), 0);
  std::vector<float> freq(64);
  for (int i = 0; i < 64; ++i) {
    freq[i] = static_cast<float>(std::pow(5e5, -i / 64.0));
  }
  const Device<int32_t> dpositions(positions);
  const Device<int32_t> dsequence(std::vector<int32_t>(rows, 0));
  const Device<int32_t> dtable(table);
  const Device<float> dfreq(freq);
  const double rotate = TimeEach(64, [&](int, cudaStream_t stream) {
    CUDA_OK(cuda::RotateAndStore({qkv,
                                  qkv + 32 * 128,
                                  qkv + 40 * 128,
                                  stride,
                                  rows,
                                  32,
                                  weight,
                                  weight,
                                  1e-5f,
                                  dfreq.data(),
                                  64,
                                  1.0f,
                                  dpositions.data(),
                                  dsequence.data(),
                                  {pool, 2 * 8 * 128 * 16 * 2, dtable.data(),
                                   int64_t(table.size()), 8, 128}},
                                 stream));
  });
  const double silu = TimeEach(64, [&](int, cudaStream_t stream) {
    CUDA_OK(cuda::SiluMulRows(
        {data, 2 * 14336, reinterpret_cast<Bf16*>(pool), 14336, rows, 14336},
        stream));
  });
  std::printf(
      "rows %5d  add_rms_norm 4096 %8.2f us  rotate 32/8x128 %8.2f us  "
      "silu_mul 14336 %8.2f us\n",
      int(rows), norm, rotate, silu);
}

inline void BenchSample(int64_t rows) {
  constexpr int kVocab = 131072;
  std::vector<float> logits(rows * kVocab);
  Parallel(rows, [&](int64_t i) {
    FillLogits(Logits::kPeaked, logits.data() + i * kVocab, kVocab, 7 + i);
  });
  const Device<float> dlogits(logits);
  const Device<cuda::SampleOut> out(rows);
  const Device<cuda::SampleOuts> outs({{out.data(), rows}});
  const Device<char> scratch(cuda::SampleScratchBytes(rows, kVocab));
  const auto time = [&](cuda::SampleRow how) {
    const Device<cuda::SampleRow> dhow(std::vector<cuda::SampleRow>(rows, how));
    return TimeEach(32, [&](int, cudaStream_t stream) {
      CUDA_OK(
          cuda::SampleRows({dlogits.data(), kVocab, rows, kVocab, dhow.data(),
                            outs.data(), nullptr, scratch.data()},
                           stream));
    });
  };
  const double greedy = time({});
  const double top = time({.top_logprobs = 20});
  const double plain = time({.temperature = 1});
  const double nucleus = time({.temperature = 1, .top_k = 50, .top_p = 0.95f});
  const double share = time({.temperature = 0.8f, .top_p = 0.95f});
  const double searched = time({.temperature = 20, .top_p = 0.95f});
  std::printf(
      "sample %2d x 131072 us: greedy %.1f, with 20 logprobs %.1f, drawn %.1f, "
      "top-k+p %.1f, top-p %.1f, flat top-p %.1f\n",
      int(rows), greedy, top, plain, nucleus, share, searched);
}

inline void Bench() {
  const Device<char> memory(int64_t{9} << 29);  // 4.5 GB
  Randomize(memory.data(), memory.count());
  const double read_rate = ReadRate(memory);
  std::printf("read stream %.0f GB/s\n", read_rate / 1e3);
  BenchDecode(memory, read_rate, 128, 8, 4);
  BenchDecode(memory, read_rate, 64, 8, 4);
  BenchDecode(memory, read_rate, 256, 4, 5);
  for (const int64_t context : {2048, 8192, 32768}) {
    BenchPrompt(memory, 128, 8, 4, context);
  }
  BenchPrompt(memory, 64, 8, 4, 8192);
  BenchPrompt(memory, 256, 4, 4, 8192);
  BenchWindow(memory, 256, 4, 4);
  BenchWindow(memory, 128, 8, 5);
  BenchPrompt(memory, 256, 4, 4, 8192, 512);
  BenchPrompt(memory, 128, 8, 5, 8192, 4096);
  for (const int64_t rows : {1, 16, 64, 2048, 8192}) BenchRows(memory, rows);
  for (const int64_t rows : {1, 16, 64}) BenchSample(rows);
}

}  // namespace baton::check
