// SPDX-License-Identifier: Apache-2.0
// RotateAndAttend against the two kernels that it stands for: outputs, pages
// and nothing else, bit for bit.
#pragma once

#include "kernels/cuda/rotate_and_store.h"
#include "tests/device/check_attention.cuh"

namespace baton::check {

struct EnterCase {
  int64_t head_dim, group, kv_heads;
  int64_t num_freqs;
  bool has_norm;
  int window;
};

// Rows of sequences of some lengths, of which each is the last token, and the
// device's memory of one run.
class EnterRun {
 public:
  EnterRun(const EnterCase& c, const Cache& cache, const std::vector<int>& pick)
      : c_(c),
        rows_(static_cast<int64_t>(pick.size())),
        width_(c.group * c.kv_heads * c.head_dim),
        stride_(width_ + 2 * c.kv_heads * c.head_dim + 8),
        qkv_(QkvOf(pick)),
        pool_(PoolOf(c, cache)),
        table_(cache.table()),
        positions_(PositionsOf(cache, pick)),
        sequence_(pick),
        q_norm_(RandomBf16(c.head_dim, 61)),
        k_norm_(RandomBf16(c.head_dim, 62)),
        freq_(FreqOf(c)),
        out_(rows_ * (width_ + 2)),
        max_spans_(cuda::DecodeSpans(Longest(cache), c.window)),
        scratch_(cuda::DecodeScratchBytes(rows_, c.group * c.kv_heads,
                                          c.kv_heads, c.head_dim, max_spans_)),
        counters_(
            cuda::DecodeCounters(rows_, c.group * c.kv_heads, c.kv_heads)),
        pages_(cache.View(pool_, table_)) {
    counters_.Zero();
  }

  void Apart() {
    CUDA_OK(cuda::RotateAndStore(Entry(), nullptr));
    CUDA_OK(cuda::DecodeAttention(Attention(), nullptr));
    CUDA_OK(cudaDeviceSynchronize());
  }
  void Joined() {
    CUDA_OK(cuda::RotateAndAttend(Entry(), Attention(), nullptr));
    CUDA_OK(cudaDeviceSynchronize());
  }
  // While the projection is still being written.
  void JoinedLate() {
    const Device<Bf16> from(qkv_.Download());
    qkv_.Poison();
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cuda::Launch(&CopyLate, dim3(16), 256, 0, nullptr, from.data(),
                         qkv_.data(), from.count()));
    CUDA_OK(cuda::RotateAndAttend(Entry(), Attention(), nullptr));
    CUDA_OK(cudaDeviceSynchronize());
  }

  [[nodiscard]] std::vector<Bf16> Out() const { return out_.Download(); }
  [[nodiscard]] std::vector<Bf16> Pool() const { return pool_.Download(); }
  [[nodiscard]] std::vector<Bf16> Qkv() const { return qkv_.Download(); }
  [[nodiscard]] int64_t width() const { return width_; }
  [[nodiscard]] bool GuardsHold() const {
    return out_.GuardsHold() && pool_.GuardsHold() && qkv_.GuardsHold();
  }

 private:
  [[nodiscard]] static int Longest(const Cache& cache) {
    return *std::max_element(cache.lengths().begin(), cache.lengths().end());
  }
  [[nodiscard]] static std::vector<float> FreqOf(const EnterCase& c) {
    std::vector<float> freq(std::max<int64_t>(c.num_freqs, 1));
    for (size_t i = 0; i < freq.size(); ++i) {
      freq[i] = static_cast<float>(std::pow(1e4, -1.0 * double(i) / 32));
    }
    return freq;
  }
  // Of each sequence the same row, whoever is beside it.
  [[nodiscard]] std::vector<Bf16> QkvOf(const std::vector<int>& pick) const {
    std::vector<Bf16> qkv;
    for (const int s : pick) {
      const std::vector<Bf16> row =
          RandomBf16(stride_, 63 + static_cast<uint32_t>(s + 1), 2.0f);
      qkv.insert(qkv.end(), row.begin(), row.end());
    }
    return qkv;
  }
  // All tokens but the last of each sequence.
  [[nodiscard]] static std::vector<Bf16> PoolOf(const EnterCase& c,
                                                const Cache& cache) {
    std::vector<Bf16> pool = cache.full();
    for (size_t s = 0; s < cache.lengths().size(); ++s) {
      const int last = cache.lengths()[s] - 1;
      for (int64_t h = 0; h < c.kv_heads; ++h) {
        for (int64_t d = 0; d < c.head_dim; ++d) {
          pool[cache.KeyAt(s, last, h, d)] = 0xffff;
          pool[cache.ValueAt(s, last, h, d)] = 0xffff;
        }
      }
    }
    return pool;
  }
  [[nodiscard]] static std::vector<int32_t> PositionsOf(
      const Cache& cache, const std::vector<int>& pick) {
    std::vector<int32_t> positions;
    for (const int s : pick) {
      positions.push_back(s < 0 ? 0 : cache.lengths()[s] - 1);
    }
    return positions;
  }

  [[nodiscard]] cuda::RotateAndStoreArgs Entry() const {
    const int64_t keys = c_.kv_heads * c_.head_dim;
    return {.q = qkv_.data(),
            .k = qkv_.data() + width_,
            .v = qkv_.data() + width_ + keys,
            .row_stride = stride_,
            .rows = rows_,
            .q_heads = c_.group * c_.kv_heads,
            .q_norm = c_.has_norm ? q_norm_.data() : nullptr,
            .k_norm = c_.has_norm ? k_norm_.data() : nullptr,
            .eps = 1e-6f,
            .inv_freq = freq_.data(),
            .num_freqs = c_.num_freqs,
            .amplitude = 0.9f,
            .positions = positions_.data(),
            .row_sequence = sequence_.data(),
            .pages = pages_};
  }
  [[nodiscard]] cuda::DecodeAttentionArgs Attention() const {
    return {.q = qkv_.data(),
            .q_stride = stride_,
            .out = out_.data(),
            .out_stride = width_ + 2,
            .rows = rows_,
            .q_heads = c_.group * c_.kv_heads,
            .positions = positions_.data(),
            .row_sequence = sequence_.data(),
            .sequences = nullptr,
            .pages = pages_,
            .scale = 0.1f,
            .max_spans = max_spans_,
            .scratch = scratch_.data(),
            .counters = counters_.data()};
  }

  EnterCase c_;
  int64_t rows_, width_, stride_;
  Device<Bf16> qkv_;
  const Device<Bf16> pool_;
  const Device<int32_t> table_, positions_, sequence_;
  const Device<Bf16> q_norm_, k_norm_;
  const Device<float> freq_;
  const Device<Bf16> out_;
  int64_t max_spans_;
  const Device<char> scratch_;
  Device<int32_t> counters_;
  cuda::KvPages pages_;
};

inline void CheckEnterCase(const EnterCase& c) {
  const std::string what =
      Name("enter dim %d group %d kv %d freqs %d norm %d window %d",
           int(c.head_dim), int(c.group), int(c.kv_heads), int(c.num_freqs),
           c.has_norm ? 1 : 0, c.window);
  const std::vector<int> lengths = {1, 16, 17, 130, 513, 800, 1030, 1500};
  const Cache cache(c.kv_heads, c.head_dim, lengths, 64, 1.0f, c.window);
  std::vector<int> all(lengths.size());
  std::iota(all.begin(), all.end(), 0);
  EnterRun apart(c, cache, all);
  apart.Apart();
  EnterRun joined(c, cache, all);
  const std::vector<Bf16> qkv = joined.Qkv();
  joined.Joined();
  const std::vector<Bf16> want = apart.Out();
  const int64_t stride = joined.width() + 2;
  Expect(SameBits(joined.Out(), 0, want, 0, apart.Out().size()),
         what + " output");
  Expect(joined.Pool() == apart.Pool(), what + " pages");
  Expect(joined.Qkv() == qkv && joined.GuardsHold(), what + " the rest");
  for (const int s : all) {
    EnterRun alone(c, cache, {s});
    alone.JoinedLate();
    Expect(SameBits(alone.Out(), 0, want, s * stride, joined.width()),
           what + Name(" alone, of %d", lengths[s]));
  }
  EnterRun skipping(c, cache, {5, -1, 3});
  skipping.Joined();
  const std::vector<Bf16> skipped = skipping.Out();
  Expect(SameBits(skipped, 0, want, 5 * stride, joined.width()) &&
             IsPoison(skipped, stride, stride) &&
             SameBits(skipped, 2 * stride, want, 3 * stride, joined.width()),
         what + " skipped row");
}

inline void CheckEnter() {
  for (const int64_t group : {1, 3, 4, 5, 8, 12}) {
    CheckEnterCase({64, group, 2, 32, group % 2 == 0, 0});
    CheckEnterCase({128, group, 1, 64, group % 2 == 1, 0});
    CheckEnterCase({256, group, 2, 32, group % 2 == 0, 0});
  }
  CheckEnterCase({64, 4, 8, 0, true, 0});  // no rotation
  CheckEnterCase({256, 4, 4, 128, true, 0});
  CheckEnterCase({256, 4, 4, 128, false, 512});
  CheckEnterCase({128, 6, 8, 64, false, 100});
  CheckEnterCase({64, 4, 8, 8, true, 13});
}

}  // namespace baton::check
