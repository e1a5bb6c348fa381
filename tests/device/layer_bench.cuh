// SPDX-License-Identifier: Apache-2.0
// A layer of a small decoder at one row behind 1k of context, as a step runs
// it: what each of its savings brings, in one chain of dependent launches.
#pragma once

#include "kernels/cuda/skinny_matmul.h"
#include "tests/device/attention_bench.cuh"

namespace baton::check {

struct LayerShape {
  const char* name;
  int64_t hidden, ffn, q_heads, kv_heads, head_dim;
  bool gated;
  bool post_norm;  // else each norm is of the sum

  [[nodiscard]] int64_t Width() const { return q_heads * head_dim; }
  [[nodiscard]] int64_t QkvRows() const {
    return Width() + 2 * kv_heads * head_dim;
  }
  [[nodiscard]] int64_t UpRows() const { return gated ? 2 * ffn : ffn; }
  [[nodiscard]] int64_t WeightElements() const {
    return QkvRows() * hidden + hidden * Width() + UpRows() * hidden +
           hidden * ffn;
  }
};
inline constexpr LayerShape kLayerShapes[] = {
    {"EXAONE 4.0 1.2B", 2048, 4096, 32, 8, 64, true, true},
    {"Spark X2.5 4B", 2560, 10240, 16, 4, 256, true, false},
    {"AFM 4.5B", 2560, 18432, 20, 4, 128, false, false},
    {"Nanbeige 4.2 3B", 3072, 10752, 48, 8, 128, true, false},
    {"Apertus 8B", 4096, 21504, 32, 8, 128, false, false},
};

// Which savings a layer has.
struct LayerSavings {
  bool joined_norm = true;    // a post-norm with its sum
  bool fused_gates = true;    // in the epilogue
  bool one_attention = true;  // with rotation and store in one kernel
  bool reads_pages = true;    // else: ahead of the wait
  // What is left out, to see what it takes.
  bool attends = true;
  bool joins = true;
  // Layouts of QKV, O, up and down; none: the default.
  std::array<cuda::SkinnyTuning, 4> layouts = {};
};
// What a block of one of the matmuls may look like; stages are chosen apart.
inline constexpr cuda::SkinnyTuning kLayouts[] = {
    {8, 1, 0, 1}, {4, 1, 0, 1}, {4, 1, 0, 2}, {8, 2, 0, 1}, {4, 2, 0, 1},
    {4, 2, 0, 2}, {4, 4, 0, 1}, {4, 4, 0, 2}, {2, 4, 0, 2}, {2, 8, 0, 2},
};

// The layers' weights and pages, and memory for what goes between.
class LayerChain {
 public:
  static constexpr int kContext = 1056;

  LayerChain(const LayerShape& shape, const Device<char>& memory)
      : shape_(shape),
        page_bytes_(2 * shape.kv_heads * shape.head_dim * 16 * 2),
        table_(kContext / 16),
        freq_(shape.head_dim / 2),
        position_(std::vector<int32_t>{kContext - 1}),
        sequence_(std::vector<int32_t>{0}),
        sequences_(std::vector<SequenceRows>{
            {.rows = 1, .first_position = kContext - 1}}),
        scratch_(cuda::DecodeScratchBytes(1, shape.q_heads, shape.kv_heads,
                                          shape.head_dim, kSpans)),
        counters_(cuda::DecodeCounters(1, shape.q_heads, shape.kv_heads)),
        rows_(kBuffers * kBufferElements) {
    std::vector<int32_t> table(table_.count());
    std::iota(table.begin(), table.end(), 0);
    table_.Upload(table);
    freq_.Upload(std::vector<float>(freq_.count(), 0.01f));
    counters_.Zero();
    rows_.Zero();
    const int64_t layer_bytes =
        2 * shape.WeightElements() + kContext / 16 * page_bytes_;
    layers_ = std::min<int64_t>(16, memory.count() / layer_bytes);
    char* at = memory.data();
    const auto take = [&](int64_t n, int64_t k) {
      cuda::SkinnyWeight weight;
      CUDA_OK(cuda::MakeSkinnyWeight(at, n, k, k, &weight));
      at += 2 * n * k;
      weights_.push_back(weight);
    };
    for (int64_t i = 0; i < layers_; ++i) {
      take(shape.QkvRows(), shape.hidden);
      take(shape.hidden, shape.Width());
      take(shape.UpRows(), shape.hidden);
      take(shape.hidden, shape.ffn);
      pools_.push_back(at);
      at += kContext / 16 * page_bytes_;
    }
  }

  // Of a block, for one row, at most.
  [[nodiscard]] int64_t SharedBytes(const cuda::SkinnyTuning& t) const {
    const int64_t stages = t.teams * t.slots;
    const int64_t x = 2 * std::max(shape_.hidden, shape_.ffn) + 2048;
    return t.row_tiles <= 2 ? stages * (t.row_tiles * 2048 + 8) + x
                            : stages * (t.row_tiles * 2048 + 1024 + 8);
  }

  // Microseconds of a layer.
  [[nodiscard]] double Time(const LayerSavings& savings) const {
    return TimeEach(static_cast<int>(layers_), [&](int i, cudaStream_t stream) {
      Submit(i, savings, stream);
    });
  }

 private:
  static constexpr int64_t kSpans = 4;  // room for 2k
  static constexpr int64_t kBuffers = 6;
  static constexpr int64_t kBufferElements = 65536;

  [[nodiscard]] Bf16* Buffer(int i) const {
    return rows_.data() + i * kBufferElements;
  }

  // Weight `number` of all, in order.
  void Multiply(int64_t number, const Bf16* x, Bf16* out,
                cuda::SkinnyActivation activation, const LayerSavings& savings,
                cudaStream_t stream) const {
    const cuda::SkinnyWeight& weight = weights_[number];
    CUDA_OK(cuda::SkinnyMatmul(weight,
                               {.x = x,
                                .m = 1,
                                .ldx = weight.k,
                                .out = out,
                                .ldo = weight.n,
                                .activation = activation,
                                .tuning = savings.layouts[number % 4]},
                               stream));
  }

  void Attend(int i, Bf16* qkv, Bf16* heads, const LayerSavings& savings,
              cudaStream_t stream) const {
    const int64_t width = shape_.Width();
    const int64_t keys = shape_.kv_heads * shape_.head_dim;
    const cuda::KvPages pages = {pools_[i],       page_bytes_,
                                 table_.data(),   table_.count(),
                                 shape_.kv_heads, shape_.head_dim};
    const cuda::RotateAndStoreArgs entry = {.q = qkv,
                                            .k = qkv + width,
                                            .v = qkv + width + keys,
                                            .row_stride = shape_.QkvRows(),
                                            .rows = 1,
                                            .q_heads = shape_.q_heads,
                                            .q_norm = nullptr,
                                            .k_norm = nullptr,
                                            .eps = 1e-5f,
                                            .inv_freq = freq_.data(),
                                            .num_freqs = freq_.count(),
                                            .amplitude = 1,
                                            .positions = position_.data(),
                                            .row_sequence = sequence_.data(),
                                            .pages = pages};
    const cuda::DecodeAttentionArgs attention = {
        .q = qkv,
        .q_stride = shape_.QkvRows(),
        .out = heads,
        .out_stride = width,
        .rows = 1,
        .q_heads = shape_.q_heads,
        .positions = position_.data(),
        .row_sequence = sequence_.data(),
        .sequences = savings.reads_pages ? sequences_.data() : nullptr,
        .pages = pages,
        .scale = 0.1f,
        .max_spans = kSpans,
        .scratch = scratch_.data(),
        .counters = counters_.data()};
    if (savings.one_attention) {
      CUDA_OK(cuda::RotateAndAttend(entry, attention, stream));
    } else {
      CUDA_OK(cuda::RotateAndStore(entry, stream));
      CUDA_OK(cuda::DecodeAttention(attention, stream));
    }
  }

  // What a sublayer made joins the stream; the next one reads `x`.
  void Join(Bf16* update, Bf16* x, const LayerSavings& savings,
            cudaStream_t stream) const {
    Bf16* const residual = Buffer(0);
    const Bf16* const weight = Buffer(5);
    const int64_t n = shape_.hidden;
    if (!savings.joins) return;
    if (!shape_.post_norm) {
      CUDA_OK(cuda::AddRmsNormRows(
          {residual, n, update, n, weight, x, n, 1, n, 1e-5f}, stream));
    } else if (savings.joined_norm) {
      CUDA_OK(cuda::RmsNormAddRows(
          {update, n, weight, residual, n, 1, n, 1e-5f}, stream));
    } else {
      CUDA_OK(cuda::RmsNormRows({update, n, weight, update, n, 1, n, 1e-5f},
                                stream));
      CUDA_OK(cuda::AddRows({residual, n, update, n, 1, n}, stream));
    }
  }

  void Submit(int i, const LayerSavings& savings, cudaStream_t stream) const {
    using enum cuda::SkinnyActivation;
    Bf16* const x = shape_.post_norm ? Buffer(0) : Buffer(1);
    Bf16* const wide = Buffer(2);
    Bf16* const inner = Buffer(3);
    Bf16* const update = Buffer(4);
    Multiply(4 * i, x, wide, kNone, savings, stream);
    if (savings.attends) Attend(i, wide, inner, savings, stream);
    Multiply(4 * i + 1, inner, update, kNone, savings, stream);
    Join(update, x, savings, stream);
    const bool apart = shape_.gated && !savings.fused_gates;
    Multiply(4 * i + 2, x, apart ? wide : inner,
             apart          ? kNone
             : shape_.gated ? kSiluMul
                            : kRelu2,
             savings, stream);
    if (apart) {
      CUDA_OK(cuda::SiluMulRows(
          {wide, 2 * shape_.ffn, inner, shape_.ffn, 1, shape_.ffn}, stream));
    }
    Multiply(4 * i + 3, inner, update, kNone, savings, stream);
    Join(update, x, savings, stream);
  }

  LayerShape shape_;
  int64_t page_bytes_, layers_;
  Device<int32_t> table_;
  Device<float> freq_;
  const Device<int32_t> position_, sequence_;
  const Device<SequenceRows> sequences_;
  const Device<char> scratch_;
  Device<int32_t> counters_;
  Device<Bf16> rows_;
  std::vector<cuda::SkinnyWeight> weights_;
  std::vector<char*> pools_;
};

// The best layouts of the chain's matmuls: from `start`, or the best one for
// all of them, one is changed at a time, twice over all. `limit`: bytes of
// shared memory that a block may have.
inline void BenchLayouts(const LayerChain& chain, double floor,
                         LayerSavings best, int limit) {
  constexpr const char* kNames[] = {"QKV", "O", "up", "down"};
  double least = chain.Time(best);
  const auto improve =
      [&](const std::function<void(LayerSavings&, const cuda::SkinnyTuning&)>&
              put) {
        for (cuda::SkinnyTuning layout : kLayouts) {
          for (int stages = 1; stages <= 8; ++stages) {
            layout.slots = stages;
            if (chain.SharedBytes(layout) > limit) continue;
            LayerSavings tried = best;
            put(tried, layout);
            const double us = chain.Time(tried);
            if (us >= 0.997 * least) continue;
            least = us;
            best = tried;
          }
        }
      };
  const auto print = [&](const char* name, const cuda::SkinnyTuning& t) {
    std::printf("  %-5s %dx%d, %d stages, cluster %d: %7.2f us, %.3f\n", name,
                t.teams, t.row_tiles, t.slots, t.blocks, least, floor / least);
  };
  print("start", best.layouts[0]);
  improve(
      [](LayerSavings& s, const cuda::SkinnyTuning& t) { s.layouts.fill(t); });
  print("all", best.layouts[0]);
  for (size_t i = 0; i < 12; ++i) {
    improve([&](LayerSavings& s, const cuda::SkinnyTuning& t) {
      s.layouts[i % 4] = t;
    });
    print(kNames[i % 4], best.layouts[i % 4]);
  }
  best.attends = best.joins = false;
  std::printf("  matmuls alone %.2f us\n", chain.Time(best));
}

inline void BenchLayers(const Device<char>& memory, double read_rate) {
  for (const LayerShape& shape : kLayerShapes) {
    const LayerChain chain(shape, memory);
    const double floor =
        2 * static_cast<double>(shape.WeightElements()) / read_rate;
    const auto print = [&](const char* what, const LayerSavings& savings) {
      const double us = chain.Time(savings);
      std::printf("  %-40s %7.2f us a layer, %.3f of a read\n", what, us,
                  floor / us);
    };
    std::printf("%s, one row, context %d: %.2f us at the rate of a read\n",
                shape.name, int{LayerChain::kContext}, floor);
    print("all", {});
    if (shape.post_norm) print("norm and sum apart", {.joined_norm = false});
    if (shape.gated) print("activation apart", {.fused_gates = false});
    print("rotation apart", {.one_attention = false});
    print("rotation apart, pages after the wait",
          {.one_attention = false, .reads_pages = false});
    print("without attention", {.attends = false});
    print("without norms and sums", {.joins = false});
    print("matmuls alone", {.attends = false, .joins = false});
    BenchLayouts(chain, floor, {}, 227 * 1024);
    std::printf("  room for two blocks\n");
    const LayerSavings room = {
        .layouts = {{{4, 2, 5, 1}, {4, 2, 4, 2}, {4, 4, 3, 1}, {4, 2, 5, 2}}}};
    BenchLayouts(chain, floor, room, 113 * 1024 - 1024);
  }
}

// What a step of one row waits for.
inline void BenchLatency() {
  const Device<char> memory(int64_t{7} << 29);  // 3.5 GB
  Randomize(memory.data(), memory.count());
  const double read_rate = ReadRate(memory);
  std::printf("read stream %.0f GB/s\n", read_rate / 1e3);
  BenchLayers(memory, read_rate);
  BenchFewRows(memory, 64, 8, 4);
  BenchFewRows(memory, 128, 8, 4);
  BenchFewRows(memory, 256, 4, 4);
}

}  // namespace baton::check
