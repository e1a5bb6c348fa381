// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/read_probe.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/thread_pool.h"

namespace baton {
namespace {

constexpr int64_t kChunk = int64_t{1} << 20;
constexpr int64_t kHugePage = int64_t{2} << 20;

// Sums a chunk through four streams, so that the sum depends on every load.
__attribute__((target("avx512f"))) uint64_t ReadAvx512(const std::byte* data) {
  __m512i sum[4] = {};
  for (int64_t i = 0; i < kChunk / 4; i += 64) {
    for (int64_t s = 0; s < 4; ++s) {
      sum[s] = _mm512_add_epi64(sum[s],
                                _mm512_load_si512(data + s * (kChunk / 4) + i));
    }
  }
  uint64_t lanes[8];
  _mm512_storeu_si512(lanes,
                      _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]),
                                       _mm512_add_epi64(sum[2], sum[3])));
  uint64_t total = 0;
  for (uint64_t lane : lanes) total += lane;
  return total;
}

uint64_t ReadPlain(const std::byte* data) {
  uint64_t sum[8] = {};
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  for (int64_t i = 0; i < kChunk / 8; i += 8) {
    for (int64_t s = 0; s < 8; ++s) sum[s] += words[i + s];
  }
  return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

}  // namespace

void ReadProbe::Free::operator()(std::byte* data) const { std::free(data); }

ReadProbe::ReadProbe(int64_t bytes)
    : bytes_((bytes + kHugePage - 1) / kHugePage * kHugePage),
      data_(static_cast<std::byte*>(
          std::aligned_alloc(kHugePage, static_cast<size_t>(bytes_)))) {
  BATON_CHECK(data_ != nullptr);
  madvise(data_.get(), static_cast<size_t>(bytes_), MADV_HUGEPAGE);
  std::memset(data_.get(), 1, static_cast<size_t>(bytes_));
}

double ReadProbe::Run(ThreadPool& pool) const {
  const bool wide = __builtin_cpu_supports("avx512f") != 0;
  const auto start = std::chrono::steady_clock::now();
  pool.ParallelFor(bytes_ / kChunk, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t c = begin; c < end; ++c) {
      const std::byte* chunk = data_.get() + c * kChunk;
      const uint64_t sum = wide ? ReadAvx512(chunk) : ReadPlain(chunk);
      asm volatile("" : : "r"(sum));
    }
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace baton
