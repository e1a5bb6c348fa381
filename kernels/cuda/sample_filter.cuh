// SPDX-License-Identifier: Apache-2.0
// Top-k, top-p and min-p, and the best tokens of a row, without sorting it.
//
// The usual case: a histogram of the logits below the largest tells how many of
// the best bins are needed; these few tokens are listed and sorted. Where they
// are too many (a flat row), a border is searched over the bits of the ranks, a
// pass over the row for three. Both give the same tokens.
#pragma once

#include "kernels/cuda/sample_row.cuh"

namespace baton::cuda {

// Which filters a row has.
struct Filters {
  int top_k;    // 0: none
  float top_p;  // 1: none
  float min_p;  // 0: none

  __device__ __forceinline__ bool Any() const {
    return top_k > 0 || top_p < 1 || min_p > 0;
  }
};

// What a list of the best tokens must hold.
struct ListNeeds {
  int count;       // tokens
  bool by_weight;  // also what filters other than top-k want
  float top_p;     // share of the row's weight, if below 1
  float min_p;     // down to this weight, if above 0
};

// The number of bins [0, n) of the histogram in shared.bins that hold what is
// needed, as far as bounds can tell; shared.sums are its running counts.
__device__ inline int BinsNeeded(const WeighedRow& row, const ListNeeds& needs,
                                 float scale, uint64_t total,
                                 SampleShared& shared) {
  int bins = 1;
  if (needs.count > 0) {
    bins =
        FirstAbove(shared.sums, kBins, uint64_t(needs.count) - 1, shared) + 1;
  }
  if (!needs.by_weight) return min(bins, kBins);
  int weighty = kBins;
  if (needs.top_p < 1) {
    const int b = static_cast<int>(threadIdx.x);
    const float least = expf(-static_cast<float>(b + 1) / scale * row.factor);
    shared.ranks[b] =
        shared.bins[b] * static_cast<uint64_t>(least * 0.999f * 0x1p44f);
    __syncthreads();
    RunningSums(shared.ranks, kBins, shared.warps);
    const double share = needs.top_p * static_cast<double>(total);
    weighty =
        FirstAbove(shared.ranks, kBins, static_cast<uint64_t>(share), shared) +
        1;
  }
  if (needs.min_p > 0) {
    const float end = -logf(needs.min_p) / row.factor * scale + 2.0f;
    if (end < static_cast<float>(weighty)) weighty = static_cast<int>(end);
  }
  return min(max(bins, weighty), kBins);
}

// Lists the best tokens in shared.ranks, best first, and returns how many; 0 if
// not even the best bin fits. They may be fewer than needed. `total` becomes
// the weight of the row.
__device__ inline int ListBest(const WeighedRow& row, const ListNeeds& needs,
                               float scale, uint64_t& total,
                               SampleShared& shared) {
  static_assert(kBins <= kSampleThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const auto bin_of = [&](float x) {
    if (x == row.largest) return 0;
    const float at = (row.largest - x) * scale;
    return at < static_cast<float>(kBins) ? static_cast<int>(at) : kBins;
  };
  if (thread < kBins) shared.bins[thread] = 0;
  __syncthreads();
  total = SumStrips(row, shared, [&](float x, int) {
    const int bin = bin_of(x);
    if (bin < kBins) atomicAdd(&shared.bins[bin], 1u);
    return row.Fixed(x);
  });
  if (thread < kBins) shared.sums[thread] = shared.bins[thread];
  __syncthreads();
  RunningSums(shared.sums, kBins, shared.warps);
  const int fitting = FirstAbove(shared.sums, kBins, kMaxListed, shared);
  const int take = min(fitting, BinsNeeded(row, needs, scale, total, shared));
  if (take == 0) return 0;
  const int count = static_cast<int>(shared.sums[take - 1]);
  const int size = PowerOfTwo(count);
  if (thread == 0) shared.count = 0;
  __syncthreads();
  ForLogits(row, thread, row.vocab, kSampleThreads, [&](float x, int id) {
    if (bin_of(x) >= take) return;
    shared.ranks[atomicAdd(&shared.count, 1)] = RankOf(x, id);
  });
  for (int i = count + thread; i < size; i += kSampleThreads) {
    shared.ranks[i] = 0;
  }
  __syncthreads();
  SortDescending(shared.ranks, size);
  return count;
}

// How many of a list of `count` the filters keep; 0 if the list is too short to
// tell.
__device__ inline int KeepListed(const WeighedRow& row, const Filters& filters,
                                 int count, uint64_t total,
                                 SampleShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool is_all = count == row.vocab;
  int kept = count;
  if (filters.top_k > 0) {
    if (count < filters.top_k && !is_all) return 0;
    kept = min(filters.top_k, count);
  }
  bool is_enough = filters.top_k > 0 || is_all;
  for (int i = thread; i < kept; i += kSampleThreads) {
    shared.sums[i] = row.Fixed(LogitOfRank(shared.ranks[i]));
  }
  __syncthreads();
  const int limit = kept;
  if (filters.top_p < 1) {
    RunningSums(shared.sums, kept, shared.warps);
    if (filters.top_k > 0) total = shared.sums[kept - 1];
    const double share = filters.top_p * static_cast<double>(total);
    const auto border = static_cast<uint64_t>(ceil(share));
    const int last =
        FirstAbove(shared.sums, kept, border > 0 ? border - 1 : 0, shared);
    if (last < kept) {
      is_enough = true;
      kept = last + 1;
    }
  }
  if (filters.min_p > 0) {
    if (thread == 0) shared.count = limit;
    __syncthreads();
    for (int i = thread; i < limit; i += kSampleThreads) {
      const float weight = row.Weight(LogitOfRank(shared.ranks[i]));
      if (i > 0 && weight < filters.min_p) atomicMin(&shared.count, i);
    }
    __syncthreads();
    if (shared.count < limit) is_enough = true;
    kept = min(kept, shared.count);
    __syncthreads();
  }
  return is_enough ? kept : 0;
}

// Draws from the first `kept` of the list, in order of id. Destroys the list.
__device__ inline int DrawListed(const WeighedRow& row, int kept, double u,
                                 SampleShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int size = PowerOfTwo(kept);
  for (int i = thread; i < size; i += kSampleThreads) {
    const uint64_t rank = shared.ranks[i];
    shared.ranks[i] = i < kept ? rank << 32 | rank >> 32 : 0;
  }
  __syncthreads();
  SortDescending(shared.ranks, size);  // by ~id: lowest id first
  for (int i = thread; i < kept; i += kSampleThreads) {
    shared.sums[i] = row.Fixed(LogitOf(static_cast<uint32_t>(shared.ranks[i])));
  }
  __syncthreads();
  RunningSums(shared.sums, kept, shared.warps);
  const uint64_t target = TargetOf(u, shared.sums[kept - 1]);
  const int at = FirstAbove(shared.sums, kept, target, shared);
  return static_cast<int>(~static_cast<uint32_t>(shared.ranks[at] >> 32));
}

// The sums over the block of each of a thread's seven. Ends with a barrier.
__device__ inline void SumSeven(uint64_t (&sums)[7], SampleShared& shared) {
  static_assert(kSampleWarps == kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  uint64_t* parts = shared.sums;                // [7][warps]
  uint64_t* totals = parts + 7 * kSampleWarps;  // [7]
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    const uint64_t sum = WarpSum(sums[i]);
    if (lane == 0) parts[i * kSampleWarps + warp] = sum;
  }
  __syncthreads();
  if (warp < 7) {
    const uint64_t sum = WarpSum(parts[warp * kSampleWarps + lane]);
    if (lane == 0) totals[warp] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 7; ++i) sums[i] = totals[i];
}

// The largest rank such that measure(rank of it and better ones) adds up to at
// least `goal`, which the whole row reaches. Three bits of it a pass, over the
// ranks that share the bits above with it. Overwrites shared.sums.
template <typename Measure>
__device__ inline uint64_t FindBorder(const WeighedRow& row, uint64_t goal,
                                      SampleShared& shared,
                                      const Measure& measure) {
  constexpr int kIdBits = 18;  // above them every ~id has ones
  uint64_t border = 0;
  uint64_t better = 0;  // what ranks with better bits above add up to
  for (int shift = 61; shift >= 0; shift -= 3) {
    if (shift < 31 && shift >= kIdBits) {
      border |= (uint64_t{1} << 31) - (uint64_t{1} << kIdBits);
      shift = kIdBits;
      continue;
    }
    uint64_t sums[7] = {};  // of ranks whose three bits are above i
    ForLogits(row, static_cast<int>(threadIdx.x), row.vocab, kSampleThreads,
              [&](float x, int id) {
                const uint64_t rank = RankOf(x, id);
                if (((rank ^ border) >> shift >> 3) != 0) return;
                const auto bits = static_cast<int>(rank >> shift & 7);
                const uint64_t value = measure(x, id);
#pragma unroll
                for (int i = 0; i < 7; ++i) sums[i] += bits > i ? value : 0;
              });
    SumSeven(sums, shared);
    uint64_t digit = 0;
    uint64_t passed = sums[0];  // of bits above `digit`
#pragma unroll
    for (int i = 0; i < 7; ++i) {
      if (better + sums[i] < goal) break;
      digit = static_cast<uint64_t>(i) + 1;
      passed = i < 6 ? sums[i < 6 ? i + 1 : i] : 0;
    }
    border |= digit << shift;
    better += passed;
  }
  return border;
}

// Filters and draws whatever the row.
__device__ inline int DrawSearched(const WeighedRow& row,
                                   const Filters& filters, double u,
                                   SampleShared& shared) {
  uint64_t border = 0;
  if (filters.top_k > 0) {
    border = FindBorder(row, static_cast<uint64_t>(filters.top_k), shared,
                        [](float, int) { return uint64_t{1}; });
  }
  if (filters.top_p < 1) {
    const auto weight = [&](float x, int id) {
      return RankOf(x, id) >= border ? row.Fixed(x) : uint64_t{0};
    };
    const uint64_t total = SumStrips(row, shared, weight);
    __syncthreads();
    const double share = filters.top_p * static_cast<double>(total);
    const auto goal = static_cast<uint64_t>(ceil(share));
    border = FindBorder(row, goal > 0 ? goal : 1, shared, weight);
  }
  const auto weight = [&](float x, int id) {
    const uint64_t rank = RankOf(x, id);
    const bool is_kept = rank >= border && (row.Weight(x) >= filters.min_p ||
                                            rank == shared.best);
    return is_kept ? row.Fixed(x) : uint64_t{0};
  };
  const uint64_t total = SumStrips(row, shared, weight);
  return Locate(row, shared, TargetOf(u, total), weight);
}

}  // namespace baton::cuda
