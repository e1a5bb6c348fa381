// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/latent_attention.h"
#include "tests/device/check_heads.cuh"
#include "tests/device/check_support.cuh"

namespace baton::check {

// ---- Pages -----------------------------------------------------------------

// Latents of a few sequences; never written tokens are NaN.
class LatentCache {
 public:
  LatentCache(int64_t latent, int64_t shared, std::vector<int> lengths)
      : latent_(latent), shared_(shared), lengths_(std::move(lengths)) {
    int64_t total = 3;  // some that no sequence has
    int64_t most = 0;
    for (const int length : lengths_) {
      most = std::max<int64_t>(most, (length + 15) / 16);
      total += (length + 15) / 16;
    }
    page_stride_ = most + 1;
    std::vector<int32_t> free(total);
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), std::mt19937(31));
    // What is behind a sequence's pages is one that exists.
    table_.assign(lengths_.size() * page_stride_, free.front());
    empty_.assign(total * 16 * width(), 0xffff);
    full_ = empty_;
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int page = 0; page < (lengths_[s] + 15) / 16; ++page) {
        table_[s * page_stride_ + page] = free.back();
        free.pop_back();
      }
      rows_.push_back(RandomBf16(lengths_[s] * width(), 100 + s));
      Write(s, lengths_[s], full_);
    }
  }

  [[nodiscard]] int64_t width() const { return latent_ + shared_; }
  [[nodiscard]] const std::vector<int>& lengths() const { return lengths_; }
  [[nodiscard]] const std::vector<int32_t>& table() const { return table_; }
  [[nodiscard]] const std::vector<Bf16>& empty() const { return empty_; }
  [[nodiscard]] const std::vector<Bf16>& full() const { return full_; }
  // [tokens, width] of a sequence.
  [[nodiscard]] const std::vector<Bf16>& rows(size_t s) const {
    return rows_[s];
  }
  [[nodiscard]] std::vector<Bf16> Until(int end) const {
    std::vector<Bf16> pool = empty_;
    for (size_t s = 0; s < lengths_.size(); ++s) {
      Write(s, std::min(end, lengths_[s]), pool);
    }
    return pool;
  }
  [[nodiscard]] cuda::LatentPages View(const Device<Bf16>& pool,
                                       const Device<int32_t>& table) const {
    return {pool.data(),  width() * 16 * 2, table.data(),
            page_stride_, latent_,          shared_};
  }

 private:
  void Write(size_t s, int end, std::vector<Bf16>& pool) const {
    for (int t = 0; t < end; ++t) {
      const int64_t page = table_[s * page_stride_ + t / 16];
      for (int64_t d = 0; d < width(); ++d) {
        pool[page * 16 * width() + cuda::LatentAt(width(), t % 16, d)] =
            rows_[s][t * width() + d];
      }
    }
  }

  int64_t latent_, shared_;
  std::vector<int> lengths_;
  int64_t page_stride_ = 0;
  std::vector<int32_t> table_;
  std::vector<std::vector<Bf16>> rows_;
  std::vector<Bf16> empty_, full_;
};

inline void CheckLatentWriteCase(int64_t latent, int64_t shared, int64_t pad) {
  const std::string what =
      Name("latent_write %d + %d pad %d", static_cast<int>(latent),
           static_cast<int>(shared), static_cast<int>(pad));
  const LatentCache cache(latent, shared, {1, 15, 16, 17, 40});
  const int64_t stride = cache.width() + pad;
  std::vector<Bf16> rows;
  std::vector<int32_t> positions, sequence;
  for (size_t s = 0; s < cache.lengths().size(); ++s) {
    for (int t = 0; t < cache.lengths()[s]; ++t) {
      const auto from = cache.rows(s).begin() + t * cache.width();
      rows.insert(rows.end(), from, from + cache.width());
      rows.resize(rows.size() + pad, 0xffff);
      positions.push_back(t);
      sequence.push_back(static_cast<int32_t>(s));
    }
  }
  const Device<Bf16> drows(rows);
  const Device<int32_t> dpositions(positions);
  const Device<int32_t> dsequence(sequence);
  const Device<int32_t> table(cache.table());
  const Device<Bf16> pool(cache.empty());
  CUDA_OK(cuda::LatentWrite(
      {drows.data(), stride, static_cast<int64_t>(positions.size()),
       dpositions.data(), dsequence.data(), cache.View(pool, table)},
      nullptr));
  Expect(pool.Download() == cache.full() && pool.GuardsHold(), what);
}

// ---- Attention -------------------------------------------------------------

struct LatentCase {
  int64_t latent, shared, heads, pad;
};

// Rows of queries, q with 8 columns of each head before the shared ones.
struct LatentRows {
  static constexpr int64_t kOwn = 8;
  const LatentCase& c;
  const LatentCache& cache;
  float scale;
  std::vector<int32_t> positions, sequence;
  std::vector<Bf16> q_latent, q;

  LatentRows(const LatentCase& of, const LatentCache& latents)
      : c(of),
        cache(latents),
        scale(1 / std::sqrt(static_cast<float>(latents.width()))) {}
  [[nodiscard]] int64_t rows() const {
    return static_cast<int64_t>(positions.size());
  }
  [[nodiscard]] int64_t head_stride() const { return kOwn + c.shared; }
  [[nodiscard]] int64_t latent_stride() const {
    return c.heads * c.latent + c.pad;
  }
  [[nodiscard]] int64_t q_stride() const {
    return c.heads * head_stride() + c.pad;
  }
  void Add(int position, size_t s) {
    positions.push_back(position);
    sequence.push_back(static_cast<int32_t>(s));
  }
  void Fill() {
    q_latent = RandomBf16(rows() * latent_stride(), 41, 1.5f);
    q = RandomBf16(rows() * q_stride(), 42, 1.5f);
  }

  // The rows that `pick` names, from a pool and with fresh, poisoned scratch.
  [[nodiscard]] std::vector<Bf16> Run(const std::vector<int>& pick,
                                      const Device<Bf16>& pool,
                                      int64_t max_spans,
                                      const std::string& what) const {
    std::vector<Bf16> own, all;
    std::vector<int32_t> at, of;
    for (const int row : pick) {
      own.insert(own.end(), q_latent.begin() + row * latent_stride(),
                 q_latent.begin() + (row + 1) * latent_stride());
      all.insert(all.end(), q.begin() + row * q_stride(),
                 q.begin() + (row + 1) * q_stride());
      at.push_back(positions[row]);
      of.push_back(sequence[row]);
    }
    const auto count = static_cast<int64_t>(pick.size());
    const Device<Bf16> down(own);
    const Device<Bf16> dq(all);
    const Device<int32_t> dpositions(at);
    const Device<int32_t> dsequence(of);
    const Device<int32_t> table(cache.table());
    const Device<Bf16> out(count * latent_stride());
    const Device<char> scratch(
        cuda::LatentScratchBytes(count, c.heads, max_spans));
    CUDA_OK(cuda::LatentAttention(
        {down.data(), latent_stride(), dq.data() + kOwn, q_stride(),
         head_stride(), out.data(), latent_stride(), count, c.heads,
         dpositions.data(), dsequence.data(), cache.View(pool, table), scale,
         max_spans, scratch.data()},
        nullptr));
    CUDA_OK(cudaDeviceSynchronize());
    Expect(out.GuardsHold() && scratch.GuardsHold() && pool.GuardsHold(),
           what + " guards");
    return out.Download();
  }
  [[nodiscard]] bool SameRow(const std::vector<Bf16>& a, int64_t i,
                             const std::vector<Bf16>& b, int64_t j) const {
    return SameBits(a, i * latent_stride(), b, j * latent_stride(),
                    c.heads * c.latent);
  }
  [[nodiscard]] std::vector<int> All() const {
    std::vector<int> all(rows());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  // One head of a row in double, and the sums of |weight latent|.
  void Attend(int64_t row, int64_t head, double* out, double* magnitude) const {
    const std::vector<Bf16>& tokens = cache.rows(sequence[row]);
    const int64_t width = cache.width();
    const Bf16* own = q_latent.data() + row * latent_stride() + head * c.latent;
    const Bf16* shared =
        q.data() + row * q_stride() + head * head_stride() + kOwn;
    std::vector<double> weight(positions[row] + 1);
    double largest = -1e300;
    for (size_t t = 0; t < weight.size(); ++t) {
      for (int64_t d = 0; d < width; ++d) {
        weight[t] +=
            double(ToFloat(d < c.latent ? own[d] : shared[d - c.latent])) *
            ToFloat(tokens[t * width + d]);
      }
      weight[t] *= scale;
      largest = std::max(largest, weight[t]);
    }
    double sum = 0;
    for (double& w : weight) sum += w = std::exp(w - largest);
    std::fill_n(out, c.latent, 0.0);
    std::fill_n(magnitude, c.latent, 0.0);
    for (size_t t = 0; t < weight.size(); ++t) {
      for (int64_t d = 0; d < c.latent; ++d) {
        const double x = weight[t] / sum * ToFloat(tokens[t * width + d]);
        out[d] += x;
        magnitude[d] += std::abs(x);
      }
    }
  }
  void ExpectValues(const std::string& what,
                    const std::vector<Bf16>& got) const {
    const int64_t wide = c.heads * c.latent;
    std::vector<double> want(rows() * wide);
    std::vector<double> tolerance(want.size());
    std::vector<Bf16> dense(want.size());
    Parallel(rows() * c.heads, [&](int64_t i) {
      const int64_t row = i / c.heads;
      const int64_t at = i * c.latent;
      Attend(row, i % c.heads, want.data() + at, tolerance.data() + at);
      for (int64_t d = 0; d < c.latent; ++d) {
        // The result is rounded to bf16, and so is each weight for the product
        // with the latents. The rest is fp32.
        tolerance[at + d] =
            kHalfUlp * (std::abs(want[at + d]) + tolerance[at + d]) + 1e-5;
        dense[at + d] = got[row * latent_stride() + i % c.heads * c.latent + d];
      }
    });
    ExpectClose(what, dense, want, tolerance);
    bool padding = true;
    for (int64_t row = 0; row < rows(); ++row) {
      padding &= IsPoison(got, row * latent_stride() + wide, c.pad);
    }
    Expect(padding, what + " padding");
  }
};

inline std::string LatentName(const char* kind, const LatentCase& c) {
  return kind + Name(" %d + %d heads %d pad %d", static_cast<int>(c.latent),
                     static_cast<int>(c.shared), static_cast<int>(c.heads),
                     static_cast<int>(c.pad));
}

inline void CheckLatentDecodeCase(const LatentCase& c,
                                  const std::vector<int>& lengths) {
  const std::string what = LatentName("latent decode", c);
  const LatentCache cache(c.latent, c.shared, lengths);
  LatentRows rows(c, cache);
  for (size_t s = 0; s < lengths.size(); ++s) rows.Add(lengths[s] - 1, s);
  // Earlier positions of the same sequences: the tail is hidden from them.
  for (size_t s = 0; s < lengths.size(); s += 3) rows.Add(lengths[s] / 2, s);
  rows.Fill();
  const Device<Bf16> pool(cache.full());
  const int longest = *std::max_element(lengths.begin(), lengths.end());
  const int64_t spans = cuda::LatentSpans(longest);
  const std::vector<Bf16> got = rows.Run(rows.All(), pool, spans, what);
  rows.ExpectValues(what, got);
  for (const int row : rows.All()) {
    for (const int64_t room : {cuda::LatentSpans(rows.positions[row] + 1),
                               int64_t{cuda::kLatentMostSpans}}) {
      const std::vector<Bf16> alone = rows.Run({row}, pool, room, what);
      Expect(rows.SameRow(alone, 0, got, row),
             what + Name(" row %d alone", row));
    }
  }
  std::vector<int> many(64);
  for (size_t i = 0; i < many.size(); ++i) {
    many[i] = static_cast<int>(i * 7 % rows.rows());
  }
  const std::vector<Bf16> among = rows.Run(many, pool, spans, what);
  bool same = true;
  for (size_t i = 0; i < many.size(); ++i) {
    same &= rows.SameRow(among, i, got, many[i]);
  }
  Expect(same, what + " among 64");
  // A row of nobody is left alone, or sees what was never written.
  LatentRows skipping = rows;
  skipping.sequence[1] = -1;
  const std::vector<Bf16> skipped =
      skipping.Run({0, 1, 2}, pool, spans, what + " skip");
  Expect(rows.SameRow(skipped, 0, got, 0) &&
             IsPoison(skipped, rows.latent_stride(), rows.latent_stride()) &&
             rows.SameRow(skipped, 2, got, 2),
         what + " skipped row");
}

inline void CheckLatentPromptCase(const LatentCase& c,
                                  const std::vector<int>& lengths) {
  const std::string what = LatentName("latent prompt", c);
  const LatentCache cache(c.latent, c.shared, lengths);
  LatentRows rows(c, cache);
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int t = 0; t < lengths[s]; ++t) rows.Add(t, s);
  }
  rows.Fill();
  Device<Bf16> pool(cache.full());
  const std::vector<Bf16> got = rows.Run(rows.All(), pool, 0, what);
  rows.ExpectValues(what, got);
  // Chunk after chunk, what comes later not written yet.
  const int longest = *std::max_element(lengths.begin(), lengths.end());
  for (const int chunk : {64, 7}) {
    bool same = true;
    for (int begin = 0; begin < longest; begin += chunk) {
      pool.Upload(cache.Until(begin + chunk));
      std::vector<int> pick;
      for (const int row : rows.All()) {
        if (rows.positions[row] / chunk * chunk == begin) pick.push_back(row);
      }
      const std::vector<Bf16> part = rows.Run(pick, pool, 0, what);
      for (size_t i = 0; i < pick.size(); ++i) {
        same &= rows.SameRow(part, i, got, pick[i]);
      }
    }
    Expect(same, what + Name(" in chunks of %d", chunk));
  }
}

inline void CheckLatent() {
  CheckHeads();
  for (const int64_t pad : {0, 8, 3}) {
    CheckLatentWriteCase(512, 64, pad);
    CheckLatentWriteCase(36, 12, pad);
    CheckLatentWriteCase(24, 6, pad);
    CheckLatentWriteCase(64, 64, pad);
  }
  const std::vector<int> lengths = {1,   2,   15,  16,  17,  63,  64,  65,
                                    127, 128, 129, 200, 500, 513, 1000};
  for (const LatentCase& c :
       {LatentCase{512, 64, 32, 8}, {512, 64, 5, 8}, {512, 64, 40, 8}}) {
    CheckLatentDecodeCase(c, lengths);
    CheckLatentPromptCase(c, {1, 63, 64, 65, 130, 200});
  }
  // More tokens than the shortest spans have room for.
  CheckLatentDecodeCase({512, 64, 32, 8}, {4095, 4096, 4097, 9000});
  for (const LatentCase& c : {LatentCase{512, 64, 3, 3},
                              {36, 12, 3, 8},
                              {24, 6, 5, 4},
                              {64, 64, 2, 8},
                              {8, 0, 2, 8}}) {
    CheckLatentDecodeCase(c, lengths);
    CheckLatentPromptCase(c, {1, 17, 64, 130});
  }
}

}  // namespace baton::check
