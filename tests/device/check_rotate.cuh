// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/rotate_and_store.h"
#include "tests/device/check_cache.cuh"

namespace baton::check {

struct RotateCase {
  int q_heads, kv_heads, head_dim, num_freqs;
  bool has_norm;
  int rows;
  float amplitude;
  int pad;  // of a row; a multiple of 8 suits vectors
};

// The reference for one head vector, and its tolerance.
inline void RotateHead(const RotateCase& c, const Bf16* x,
                       const std::vector<Bf16>& weight, float eps,
                       const std::vector<float>& inv_freq, int position,
                       std::vector<double>& out, std::vector<double>& bound) {
  std::vector<double> v(c.head_dim);
  double sum = 0;
  for (int i = 0; i < c.head_dim; ++i) {
    v[i] = ToFloat(x[i]);
    sum += v[i] * v[i];
  }
  if (c.has_norm) {
    const double factor = 1 / std::sqrt(sum / c.head_dim + eps);
    for (int i = 0; i < c.head_dim; ++i) {
      v[i] = Round(static_cast<float>(v[i] * factor * ToFloat(weight[i])));
    }
  }
  const int half = c.num_freqs;
  for (int i = 0; i < c.head_dim; ++i) {
    out.push_back(v[i]);
    double size = std::abs(v[i]);
    if (i < 2 * half) {
      const int pair = i < half ? i + half : i - half;
      const float angle = static_cast<float>(position) * inv_freq[i % half];
      const double cosine = std::cos(double(angle)) * c.amplitude;
      const double sine = std::sin(double(angle)) * c.amplitude;
      out.back() =
          v[i] * cosine + (i < half ? -v[pair] * sine : v[pair] * sine);
      size = (size + std::abs(v[pair])) * c.amplitude;
    }
    // The result is rounded once. A norm that fp32 rounds the other way than
    // double is a whole unit off before the rotation.
    bound.push_back(kHalfUlp * std::abs(out.back()) +
                    (c.has_norm ? 2 * kHalfUlp * size : 2e-6 * size) + 1e-6);
  }
}

inline void CheckRotateCase(const RotateCase& c) {
  const std::string what = Name(
      "rotate heads %d/%d dim %d freqs %d norm %d rows %d pad %d", c.q_heads,
      c.kv_heads, c.head_dim, c.num_freqs, c.has_norm ? 1 : 0, c.rows, c.pad);
  const int64_t stride = (c.q_heads + 2 * c.kv_heads) * c.head_dim + c.pad;
  // Sequence 0: a chunk of rows; others: one row each, far apart; one skipped.
  std::vector<int32_t> positions(c.rows);
  std::vector<int32_t> sequence(c.rows);
  std::vector<int> lengths = {200};
  for (int row = 0; row < c.rows; ++row) {
    const bool is_chunk = row < c.rows / 2;
    sequence[row] = is_chunk ? 0 : static_cast<int>(lengths.size());
    positions[row] =
        is_chunk ? 13 + row : (row * 7919) % (c.rows > 16 ? 300 : 9000);
    if (!is_chunk) lengths.push_back(positions[row] + 1);
  }
  const int skipped = c.rows > 2 ? c.rows - 1 : -1;
  if (skipped >= 0) sequence[skipped] = -1;
  const Cache cache(c.kv_heads, 2, lengths, 7);  // for its page table
  const int64_t page_elements = int64_t{2} * c.kv_heads * c.head_dim * 16;
  const std::vector<int32_t>& table = cache.table();
  const int64_t pages = *std::max_element(table.begin(), table.end()) + 4;

  const std::vector<Bf16> qkv = RandomBf16(c.rows * stride, 8);
  const std::vector<Bf16> q_norm = RandomBf16(c.head_dim, 9);
  const std::vector<Bf16> k_norm = RandomBf16(c.head_dim, 10);
  std::vector<float> inv_freq(std::max(c.num_freqs, 1));
  for (int i = 0; i < c.num_freqs; ++i) {
    inv_freq[i] = static_cast<float>(std::pow(10000.0, -1.0 * i / c.num_freqs));
  }
  const Device<Bf16> dqkv(qkv);
  const Device<Bf16> dq_norm(q_norm);
  const Device<Bf16> dk_norm(k_norm);
  const Device<float> dfreq(inv_freq);
  const Device<int32_t> dpositions(positions);
  const Device<int32_t> dsequence(sequence);
  const Device<int32_t> dtable(table);
  const Device<Bf16> pool(pages * page_elements);
  Bf16* k = dqkv.data() + c.q_heads * c.head_dim;
  cuda::RotateAndStoreArgs args = {
      dqkv.data(),
      k,
      k + c.kv_heads * c.head_dim,
      stride,
      c.rows,
      c.q_heads,
      c.has_norm ? dq_norm.data() : nullptr,
      c.has_norm ? dk_norm.data() : nullptr,
      1e-6f,
      dfreq.data(),
      c.num_freqs,
      c.amplitude,
      dpositions.data(),
      dsequence.data(),
      {pool.data(), page_elements * 2, dtable.data(), cache.page_stride(),
       c.kv_heads, c.head_dim}};
  CUDA_OK(cuda::RotateAndStore(args, nullptr));
  const std::vector<Bf16> got = dqkv.Download();
  const std::vector<Bf16> stored = pool.Download();
  Expect(dqkv.GuardsHold() && pool.GuardsHold(), what + " guards");

  std::vector<Bf16> want_pool(stored.size(), 0xffff);
  bool values_kept = true;
  for (int row = 0; row < c.rows; ++row) {
    const int64_t at = row * stride;
    if (row == skipped) {
      Expect(SameBits(got, at, qkv, at, stride), what + " skipped row");
      continue;
    }
    std::vector<double> want;
    std::vector<double> bound;
    for (int head = 0; head < c.q_heads + c.kv_heads; ++head) {
      RotateHead(c, qkv.data() + at + head * c.head_dim,
                 head < c.q_heads ? q_norm : k_norm, 1e-6f, inv_freq,
                 positions[row], want, bound);
    }
    ExpectClose(what + Name(" row %d", row),
                {got.begin() + at, got.begin() + at + want.size()}, want,
                bound);
    const int64_t rotated = static_cast<int64_t>(want.size());
    values_kept &=
        SameBits(got, at + rotated, qkv, at + rotated, stride - rotated);
    const int64_t page =
        table[sequence[row] * cache.page_stride() + positions[row] / 16];
    Bf16* to = want_pool.data() + page * page_elements;
    const int slot = positions[row] % 16;
    for (int head = 0; head < c.kv_heads; ++head) {
      for (int d = 0; d < c.head_dim; ++d) {
        const int64_t from = at + (c.q_heads + head) * c.head_dim + d;
        to[(head * 16 + slot) * c.head_dim + d] = got[from];
        to[((c.kv_heads + head) * c.head_dim + d) * 16 + slot] =
            got[from + c.kv_heads * c.head_dim];
      }
    }
  }
  Expect(values_kept, what + " values and padding kept");
  Expect(want_pool == stored, what + " pages");

  // The first row alone, where vectors do not suit it: the same bits, though
  // its heads are dealt out anew.
  std::vector<Bf16> first = {0, 0};
  first.insert(first.end(), qkv.begin(), qkv.begin() + stride);
  const Device<Bf16> one(first);
  args.q = one.data() + 2;
  args.k = one.data() + 2 + c.q_heads * c.head_dim;
  args.v = one.data() + 2 + (c.q_heads + c.kv_heads) * c.head_dim;
  args.rows = 1;
  CUDA_OK(cuda::RotateAndStore(args, nullptr));
  Expect(SameBits(one.Download(), 2, got, 0, stride), what + " alone");
  args.rows = 0;
  CUDA_OK(cuda::RotateAndStore(args, nullptr));
}

inline void CheckRotate() {
  for (const int rows : {1, 9, 64, 200}) {
    for (const int pad : {1, 2, 8}) {
      CheckRotateCase({4, 2, 128, 64, false, rows, 1.0f, pad});
      CheckRotateCase({6, 2, 64, 32, true, rows, 1.0f, pad});
      CheckRotateCase({5, 1, 80, 16, true, rows, 1.25f, pad});
      CheckRotateCase({3, 1, 48, 24, false, rows, 0.8f, pad});
      CheckRotateCase({8, 1, 256, 128, true, rows, 1.0f, pad});
      CheckRotateCase({2, 2, 10, 3, true, rows, 1.0f, pad});
      CheckRotateCase({2, 1, 6, 3, false, rows, 1.0f, pad});
      CheckRotateCase({4, 4, 128, 0, true, rows, 1.0f, pad});
      CheckRotateCase({4, 4, 256, 0, false, rows, 1.0f, pad});
      CheckRotateCase({4, 4, 256, 63, true, rows, 1.0f, pad});
    }
    // Gates of heads behind the values.
    CheckRotateCase({16, 4, 256, 32, false, rows, 1.0f, 16});
    CheckRotateCase({6, 2, 24, 6, false, rows, 1.0f, 6});
    CheckRotateCase({5, 1, 24, 12, false, rows, 1.0f, 5});
  }
}

}  // namespace baton::check
