// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/prompt_attention.h"
#include "tests/device/check_cache.cuh"

namespace baton::check {

// ---- Generated tokens ------------------------------------------------------

// A visit's writes, which are under way when attention is submitted.
struct LateWrites {
  const SequenceRows* sequences;  // what they are of, on the device
  std::function<void()> submit;
};

// Rows of `queries` picked by `pick`, through DecodeAttention with fresh,
// poisoned scratch. Output rows padded by 2.
inline std::vector<Bf16> RunDecode(const Queries& queries,
                                   const std::vector<int>& pick,
                                   const cuda::KvPages& pages, float scale,
                                   int64_t max_spans, const std::string& what,
                                   const LateWrites& writes = {}) {
  const auto rows = static_cast<int64_t>(pick.size());
  std::vector<Bf16> q;
  std::vector<int32_t> positions;
  std::vector<int32_t> sequence;
  for (const int row : pick) {
    const auto from = queries.values.begin() + row * queries.stride;
    q.insert(q.end(), from, from + queries.stride);
    positions.push_back(queries.positions[row]);
    sequence.push_back(queries.sequence[row]);
  }
  const int64_t out_stride = queries.width() + 2;
  const Device<Bf16> dq(q);
  const Device<int32_t> dpositions(positions);
  const Device<int32_t> dsequence(sequence);
  const Device<Bf16> out(rows * out_stride);
  const Device<char> scratch(cuda::DecodeScratchBytes(
      rows, queries.q_heads, pages.kv_heads, pages.head_dim, max_spans));
  Device<int32_t> counters(
      cuda::DecodeCounters(rows, queries.q_heads, pages.kv_heads));
  counters.Zero();
  const cuda::DecodeAttentionArgs args = {.q = dq.data(),
                                          .q_stride = queries.stride,
                                          .out = out.data(),
                                          .out_stride = out_stride,
                                          .rows = rows,
                                          .q_heads = queries.q_heads,
                                          .positions = dpositions.data(),
                                          .row_sequence = dsequence.data(),
                                          .sequences = writes.sequences,
                                          .pages = pages,
                                          .scale = scale,
                                          .max_spans = max_spans,
                                          .scratch = scratch.data(),
                                          .counters = counters.data()};
  CUDA_OK(cudaDeviceSynchronize());
  if (writes.submit) writes.submit();
  CUDA_OK(cuda::DecodeAttention(args, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  const std::vector<int32_t> left = counters.Download();
  Expect(std::all_of(left.begin(), left.end(), [](int c) { return c == 0; }),
         what + " counters");
  Expect(out.GuardsHold() && scratch.GuardsHold() && counters.GuardsHold(),
         what + " guards");
  return out.Download();
}

// With a window, pages before those of every row are NaN.
inline void CheckDecodeCase(int64_t head_dim, int64_t group, int64_t kv_heads,
                            int window = 0) {
  const std::string what =
      Name("decode dim %d group %d kv %d window %d", static_cast<int>(head_dim),
           static_cast<int>(group), static_cast<int>(kv_heads), window);
  const std::vector<int> lengths = {1,   2,   15,  16,  17,   100,  127,  129,
                                    511, 512, 513, 640, 1000, 1025, 1500, 2000};
  const Cache cache(kv_heads, head_dim, lengths, 11, 1.0f, window);
  std::vector<int> next;  // of each sequence
  Queries queries = {
      kv_heads * group, head_dim, kv_heads * group * head_dim + 8, {}, {}, {}};
  for (size_t s = 0; s < lengths.size(); ++s) {
    queries.positions.push_back(lengths[s] - 1);
    queries.sequence.push_back(static_cast<int>(s));
    next.push_back(lengths[s] - 1);
  }
  // Earlier positions of the same sequences: the tail is hidden from them.
  for (const int s : {5, 9, 12, 15}) {
    queries.positions.push_back(lengths[s] / 2);
    queries.sequence.push_back(s);
    next[s] = lengths[s] / 2;
  }
  queries.values = RandomBf16(queries.rows() * queries.stride, 12, 2.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const Device<Bf16> pool(cache.Held(next, lengths.back()));
  const Device<int32_t> table(cache.table());
  const cuda::KvPages pages = cache.View(pool, table);
  const int64_t max_spans = cuda::DecodeSpans(lengths.back(), window);

  std::vector<int> all(queries.rows());
  std::iota(all.begin(), all.end(), 0);
  const int64_t out_stride = queries.width() + 2;
  const std::vector<Bf16> got =
      RunDecode(queries, all, pages, scale, max_spans, what);
  ExpectAttention(what, cache, queries, kv_heads, scale, got, out_stride);
  const auto expect_same = [&](const std::vector<int>& pick, int64_t spans,
                               const char* how) {
    const std::vector<Bf16> again =
        RunDecode(queries, pick, pages, scale, spans, what + how);
    bool same = true;
    for (size_t i = 0; i < pick.size(); ++i) {
      same &= SameBits(again, i * out_stride, got, pick[i] * out_stride,
                       queries.width());
    }
    Expect(same, what + how);
  };
  for (const int row : all) expect_same({row}, max_spans + 3, " alone");
  std::vector<int> many(64);
  for (size_t i = 0; i < many.size(); ++i) {
    many[i] = static_cast<int>(i * 7 % all.size());
  }
  expect_same(many, max_spans, " among 64");
  many.resize(700);
  for (size_t i = 0; i < many.size(); ++i) {
    many[i] = static_cast<int>(i * 3 % all.size());
  }
  if (group == 4) expect_same(many, max_spans, " among 700");

  // A skipped row is left alone.
  Queries skipping = queries;
  skipping.sequence[3] = -1;
  const std::vector<Bf16> skipped =
      RunDecode(skipping, {2, 3, 4}, pages, scale, max_spans, what + " skip");
  Expect(SameBits(skipped, 0, got, 2 * out_stride, queries.width()) &&
             IsPoison(skipped, out_stride, out_stride) &&
             SameBits(skipped, 2 * out_stride, got, 4 * out_stride,
                      queries.width()),
         what + " skipped row");
  RunDecode(queries, {}, pages, scale, max_spans, what + " no rows");
  if (window > 0) return;
  // A window that holds all is none.
  cuda::KvPages wide = pages;
  wide.window = lengths.back();
  Expect(RunDecode(queries, all, wide, scale, max_spans, what) == got,
         what + " in a wide window");
}

// 4k of context and a window: what came before costs no span.
inline void CheckDecodeFar(int64_t head_dim, int window) {
  const std::string what =
      Name("decode far dim %d window %d", static_cast<int>(head_dim), window);
  const std::vector<int> lengths = {4096, 4097, 4111, 4112, 4350, 4609};
  const Cache cache(2, head_dim, lengths, 13, 1.0f, window);
  Queries queries = {8, head_dim, 8 * head_dim, {}, {}, {}};
  std::vector<int> all, next;
  for (size_t s = 0; s < lengths.size(); ++s) {
    all.push_back(static_cast<int>(s));
    next.push_back(lengths[s] - 1);
    queries.positions.push_back(lengths[s] - 1);
    queries.sequence.push_back(static_cast<int>(s));
  }
  queries.values = RandomBf16(queries.rows() * queries.stride, 14, 2.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const Device<Bf16> pool(cache.Held(next, lengths.back()));
  const Device<int32_t> table(cache.table());
  const int64_t spans = cuda::DecodeSpans(lengths.back(), window);
  Expect(spans == cuda::DecodeSpans(1 << 20, window), what + " spans");
  const std::vector<Bf16> got =
      RunDecode(queries, all, cache.View(pool, table), scale, spans, what);
  ExpectAttention(what, cache, queries, 2, scale, got, queries.width() + 2);
}

// Copies what differs, but not soon.
static __global__ void CopyLate(const Bf16* from, Bf16* to, int64_t count) {
  cuda::EnterKernel();
  const long long begin = clock64();
  while (clock64() - begin < 50'000) {
  }
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < count; i += step) {
    if (to[i] != from[i]) to[i] = from[i];
  }
}

// The last `rows` tokens of a sequence come from the grid ahead: pages before
// them may be read while it runs, theirs may not.
inline void CheckDecodeAhead(int64_t head_dim, int length, int rows,
                             int window) {
  const std::string what =
      Name("decode ahead dim %d length %d rows %d window %d",
           static_cast<int>(head_dim), length, rows, window);
  const Cache cache(2, head_dim, {length}, 15, 1.0f, window);
  Queries queries = {6, head_dim, 6 * head_dim, {}, {}, {}};
  std::vector<int> all;
  for (int i = 0; i < rows; ++i) {
    all.push_back(i);
    queries.positions.push_back(length - rows + i);
    queries.sequence.push_back(0);
  }
  queries.values = RandomBf16(queries.rows() * queries.stride, 16, 2.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const int first = length - rows;
  const Device<int32_t> table(cache.table());
  const Device<Bf16> full(cache.full());
  const Device<Bf16> pool(cache.Held({first}, first));
  const Device<SequenceRows> sequences(std::vector<SequenceRows>{
      {.first_row = 0, .rows = rows, .first_position = first}});
  const LateWrites writes = {
      .sequences = sequences.data(), .submit = [&] {
        CUDA_OK(cuda::Launch(&CopyLate, dim3(16), 256, 0, nullptr, full.data(),
                             pool.data(), pool.count()));
      }};
  const std::vector<Bf16> got =
      RunDecode(queries, all, cache.View(pool, table), scale,
                cuda::DecodeSpans(length, window), what, writes);
  ExpectAttention(what, cache, queries, 2, scale, got, queries.width() + 2);
}

inline void CheckDecode() {
  for (const int64_t head_dim : {64, 128, 256, 48, 80, 6}) {
    for (const int64_t group : {1, 3, 4, 5, 6, 8, 12}) {
      CheckDecodeCase(head_dim, group, group == 4 ? 3 : 1);
    }
    for (const int window : {1, 13, 16, 100, 512, 700, 1300}) {
      CheckDecodeCase(head_dim, window == 512 ? 4 : 5, window == 512 ? 2 : 1,
                      window);
    }
    CheckDecodeFar(head_dim, 512);
    for (const int length : {1, 16, 17, 300, 600, 1024, 1030, 2300}) {
      CheckDecodeAhead(head_dim, length, 1, 0);
      CheckDecodeAhead(head_dim, length, std::min(length, 6), 0);
      CheckDecodeAhead(head_dim, length, 1, 100);
    }
  }
}

// ---- Prompts ---------------------------------------------------------------

// Rows [begin, end) of every sequence, as far as it goes, in tiles of up to
// tile_rows; the most keys first.
inline std::vector<cuda::PromptTile> TilesOf(const std::vector<int>& lengths,
                                             int begin, int end,
                                             int tile_rows) {
  std::vector<cuda::PromptTile> tiles;
  int first_row = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int at = begin; at < std::min(end, lengths[s]); at += tile_rows) {
      tiles.push_back({first_row + at,
                       std::min({tile_rows, end - at, lengths[s] - at}), at,
                       static_cast<int>(s)});
    }
    first_row += lengths[s];
  }
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const cuda::PromptTile& a, const cuda::PromptTile& b) {
                     return a.first_position > b.first_position;
                   });
  return tiles;
}

inline void CheckPromptCase(int64_t head_dim, int64_t group, int64_t kv_heads,
                            bool is_thorough, int window = 0) {
  const std::string what =
      Name("prompt dim %d group %d kv %d window %d", static_cast<int>(head_dim),
           static_cast<int>(group), static_cast<int>(kv_heads), window);
  const std::vector<int> lengths = {1, 63, 64, 65, 130, 200, 333, 700};
  const Cache cache(kv_heads, head_dim, lengths, 21, 1.0f, window);
  Queries queries = {
      kv_heads * group, head_dim, kv_heads * group * head_dim + 8, {}, {}, {}};
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int t = 0; t < lengths[s]; ++t) {
      queries.positions.push_back(t);
      queries.sequence.push_back(static_cast<int>(s));
    }
  }
  queries.values = RandomBf16(queries.rows() * queries.stride, 22, 2.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const int64_t out_stride = queries.width() + 2;
  const Device<Bf16> q(queries.values);
  const Device<int32_t> table(cache.table());
  Device<Bf16> pool(cache.full());
  Device<Bf16> out(queries.rows() * out_stride);
  cuda::KvPages pages = cache.View(pool, table);
  const auto run = [&](const std::vector<cuda::PromptTile>& tiles) {
    const Device<cuda::PromptTile> dtiles(tiles);
    CUDA_OK(cuda::PromptAttention(
        {q.data(), queries.stride, out.data(), out_stride, queries.q_heads,
         dtiles.data(), static_cast<int64_t>(tiles.size()), pages, scale},
        nullptr));
    CUDA_OK(cudaDeviceSynchronize());
  };
  run({});
  Expect(IsPoison(out.Download(), 0, out.count()), what + " no tiles");
  run(TilesOf(lengths, 0, 1 << 20, 128));
  const std::vector<Bf16> got = out.Download();
  ExpectAttention(what, cache, queries, kv_heads, scale, got, out_stride);
  Expect(out.GuardsHold() && pool.GuardsHold(), what + " guards");
  for (const int tile_rows : {64, 100, 7, 1}) {
    if (tile_rows < 64 && !is_thorough) continue;
    out.Poison();
    run(TilesOf(lengths, 0, 1 << 20, tile_rows));
    Expect(out.Download() == got, what + Name(" in tiles of %d", tile_rows));
  }
  if (!is_thorough) return;
  // Chunk after chunk, what comes later not written yet, and pages before the
  // window gone.
  for (const int chunk : {64, 7}) {
    out.Poison();
    for (int begin = 0; begin < 700; begin += chunk) {
      pool.Upload(
          cache.Held(std::vector<int>(lengths.size(), begin), begin + chunk));
      run(TilesOf(lengths, begin, begin + chunk, 128));
    }
    Expect(out.Download() == got, what + Name(" in chunks of %d", chunk));
  }
  // One sequence by itself.
  pool.Upload(cache.full());
  out.Poison();
  std::vector<cuda::PromptTile> tiles = TilesOf(lengths, 0, 1 << 20, 128);
  std::erase_if(
      tiles, [](const cuda::PromptTile& tile) { return tile.sequence != 6; });
  run(tiles);
  const int64_t first = (1 + 63 + 64 + 65 + 130 + 200) * out_stride;
  Expect(SameBits(out.Download(), first, got, first, 333 * out_stride),
         what + " one sequence alone");
  if (window > 0) return;
  // A window that holds all is none.
  pages.window = lengths.back();
  out.Poison();
  run(TilesOf(lengths, 0, 1 << 20, 128));
  Expect(out.Download() == got, what + " in a wide window");
}

inline void CheckPrompt() {
  for (const int64_t head_dim : {64, 128, 256, 48, 80}) {
    for (const int64_t group : {1, 3, 4, 5, 6, 8}) {
      CheckPromptCase(head_dim, group, group == 4 ? 2 : 1, group == 4);
    }
    for (const int window : {1, 13, 64, 100, 300}) {
      CheckPromptCase(head_dim, 3, 1, true, window);
    }
  }
}

}  // namespace baton::check
