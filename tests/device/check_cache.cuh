// SPDX-License-Identifier: Apache-2.0
// A paged cache on the host and the device, and attention on it in double.
#pragma once

#include <numeric>

#include "kernels/cuda/kv_pages.h"
#include "tests/device/check_support.cuh"

namespace baton::check {

// Keys and values of sequences of given lengths, in pages of random order; what
// no token has written is NaN. Rows see a window of positions, or all (0).
class Cache {
 public:
  Cache(int64_t kv_heads, int64_t head_dim, std::vector<int> lengths,
        uint32_t seed, float scale = 1.0f, int window = 0)
      : kv_heads_(kv_heads),
        head_dim_(head_dim),
        lengths_(std::move(lengths)),
        window_(window) {
    int64_t most = 1;
    int64_t total = 3;  // some that belong to nobody
    for (const int length : lengths_) {
      most = std::max<int64_t>(most, (length + 15) / 16);
      total += (length + 15) / 16;
    }
    page_stride_ = most + 1;
    std::vector<int32_t> free(total);
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), std::mt19937(seed));
    table_.assign(lengths_.size() * page_stride_, -1);
    pool_.assign(total * PageElements(), 0xffff);
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int page = 0; page < (lengths_[s] + 15) / 16; ++page) {
        table_[s * page_stride_ + page] = free.back();
        free.pop_back();
      }
    }
    full_ = pool_;
    std::mt19937 random(seed + 1);
    std::normal_distribution<float> normal(0.0f, scale);
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int t = 0; t < lengths_[s]; ++t) {
        for (int64_t h = 0; h < kv_heads_; ++h) {
          for (int64_t d = 0; d < head_dim_; ++d) {
            full_[KeyAt(s, t, h, d)] = ToBf16(normal(random));
            full_[ValueAt(s, t, h, d)] = ToBf16(normal(random));
          }
        }
      }
    }
  }

  [[nodiscard]] int64_t PageElements() const {
    return 2 * kv_heads_ * head_dim_ * 16;
  }
  [[nodiscard]] size_t KeyAt(size_t s, int t, int64_t h, int64_t d) const {
    return PageOf(s, t) + (h * 16 + t % 16) * head_dim_ + d;
  }
  [[nodiscard]] size_t ValueAt(size_t s, int t, int64_t h, int64_t d) const {
    return PageOf(s, t) + ((kv_heads_ + h) * head_dim_ + d) * 16 + t % 16;
  }
  // The first position that a row sees.
  [[nodiscard]] int FirstSeen(int position) const {
    return window_ > 0 ? std::max(0, position - window_ + 1) : 0;
  }
  // The pool with all tokens; and with those of positions below `end` only, and
  // without the pages that no row from `next` of its sequence on sees.
  [[nodiscard]] const std::vector<Bf16>& full() const { return full_; }
  [[nodiscard]] std::vector<Bf16> Held(const std::vector<int>& next,
                                       int end) const {
    std::vector<Bf16> pool = pool_;
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int t = FirstSeen(next[s]) / 16 * 16; t < std::min(end, lengths_[s]);
           ++t) {
        for (int64_t h = 0; h < kv_heads_; ++h) {
          for (int64_t d = 0; d < head_dim_; ++d) {
            pool[KeyAt(s, t, h, d)] = full_[KeyAt(s, t, h, d)];
            pool[ValueAt(s, t, h, d)] = full_[ValueAt(s, t, h, d)];
          }
        }
      }
    }
    return pool;
  }
  [[nodiscard]] const std::vector<int32_t>& table() const { return table_; }
  [[nodiscard]] int64_t page_stride() const { return page_stride_; }
  [[nodiscard]] const std::vector<int>& lengths() const { return lengths_; }
  [[nodiscard]] cuda::KvPages View(const Device<Bf16>& pool,
                                   const Device<int32_t>& table) const {
    return {pool.data(), PageElements() * 2, table.data(), page_stride_,
            kv_heads_,   head_dim_,          window_};
  }

  // Attention of one query vector at a position; also the sum of |weight value|
  // per dim, which scales the tolerance.
  void Attend(const Bf16* q, size_t s, int position, int64_t kv_head,
              double scale, double* out, double* magnitude) const {
    std::vector<double> weight(position + 1);
    double largest = -1e300;
    const int first = FirstSeen(position);
    for (int t = first; t <= position; ++t) {
      double dot = 0;
      const Bf16* key = full_.data() + KeyAt(s, t, kv_head, 0);
      for (int64_t d = 0; d < head_dim_; ++d) {
        dot += double(ToFloat(q[d])) * ToFloat(key[d]);
      }
      weight[t] = dot * scale;
      largest = std::max(largest, weight[t]);
    }
    double sum = 0;
    for (int t = first; t <= position; ++t) {
      sum += weight[t] = std::exp(weight[t] - largest);
    }
    std::fill_n(out, head_dim_, 0.0);
    std::fill_n(magnitude, head_dim_, 0.0);
    for (int t = first; t <= position; ++t) {
      for (int64_t d = 0; d < head_dim_; ++d) {
        const double x =
            weight[t] / sum * ToFloat(full_[ValueAt(s, t, kv_head, d)]);
        out[d] += x;
        magnitude[d] += std::abs(x);
      }
    }
  }

 private:
  [[nodiscard]] size_t PageOf(size_t s, int t) const {
    return static_cast<size_t>(table_[s * page_stride_ + t / 16]) *
           PageElements();
  }

  int64_t kv_heads_, head_dim_;
  std::vector<int> lengths_;
  int window_;
  int64_t page_stride_;
  std::vector<int32_t> table_;
  std::vector<Bf16> pool_;  // nothing written
  std::vector<Bf16> full_;
};

// Rows of queries: row r is at positions[r] of sequence[r].
struct Queries {
  int64_t q_heads, head_dim, stride;
  std::vector<int32_t> positions, sequence;
  std::vector<Bf16> values;  // [rows, stride]

  [[nodiscard]] int64_t rows() const {
    return static_cast<int64_t>(positions.size());
  }
  [[nodiscard]] int64_t width() const { return q_heads * head_dim; }
};

// Compares attention outputs (padded rows of out_stride) with the reference.
inline void ExpectAttention(const std::string& what, const Cache& cache,
                            const Queries& queries, int64_t kv_heads,
                            double scale, const std::vector<Bf16>& got,
                            int64_t out_stride) {
  const int64_t width = queries.width();
  std::vector<double> want(queries.rows() * width);
  std::vector<double> tolerance(want.size());
  std::vector<Bf16> dense(want.size());
  Parallel(queries.rows() * queries.q_heads, [&](int64_t i) {
    const int64_t row = i / queries.q_heads;
    const int64_t head = i % queries.q_heads;
    const int64_t at = row * width + head * queries.head_dim;
    cache.Attend(
        queries.values.data() + row * queries.stride + head * queries.head_dim,
        queries.sequence[row], queries.positions[row],
        head / (queries.q_heads / kv_heads), scale, want.data() + at,
        tolerance.data() + at);
    for (int64_t d = 0; d < queries.head_dim; ++d) {
      // The result is rounded to bf16, and so is each weight for the product
      // with the values. The rest is fp32.
      tolerance[at + d] =
          kHalfUlp * (std::abs(want[at + d]) + tolerance[at + d]) + 1e-5;
      dense[at + d] = got[row * out_stride + head * queries.head_dim + d];
    }
  });
  ExpectClose(what, dense, want, tolerance);
  bool padding = true;
  for (int64_t row = 0; row < queries.rows(); ++row) {
    padding &= IsPoison(got, row * out_stride + width, out_stride - width);
  }
  Expect(padding, what + " padding");
}

}  // namespace baton::check
