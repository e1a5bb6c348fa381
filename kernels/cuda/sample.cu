// SPDX-License-Identifier: Apache-2.0
// Two kernels: several blocks a row find the best token, the sum of weights and
// the digest of their chunk; then a block a row puts these together and, unless
// the row is greedy, goes over it again (it is in L2 by then).
#include <cstring>
#include <iterator>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/sample_filter.cuh"
#include "kernels/cuda/sample_row.cuh"

namespace baton::cuda {
namespace {

constexpr int kChunkThreads = 256;
constexpr int kChunkLoads = 2;  // of 4 logits, per thread
constexpr int kChunk = kChunkThreads * kChunkLoads * 4;
constexpr uint64_t kDigestStart = 0xcbf29ce484222325u;
constexpr int kLaneChunks = CeilDiv(kStrip * kMaxStrips, kWarp* kChunk);
constexpr int64_t kMaxRows = 65535;
constexpr float kLog2E = 1.44269504f;

// What one chunk of a row comes to.
struct alignas(16) ChunkResult {
  uint64_t best;  // rank
  float sum;      // of e^(logit - its largest)
  uint32_t unused;
  uint64_t digest;
};

struct SampleWork {
  const float* logits;  // [rows, vocab]
  int64_t stride;
  const SampleRow* how;  // [rows]
  const SampleOuts* outs;
  int32_t* tokens;
  ChunkResult* chunks;  // [rows, num_chunks]
  int vocab, num_chunks;
};

// A struct that is whole vectors.
template <typename T>
__device__ __forceinline__ T LoadAs(const T* from) {
  uint4 words[sizeof(T) / sizeof(uint4)];
  static_assert(sizeof(words) == sizeof(T));
#pragma unroll
  for (size_t i = 0; i < std::size(words); ++i) {
    words[i] = Load16(reinterpret_cast<const uint4*>(from) + i);
  }
  T loaded;
  memcpy(&loaded, words, sizeof(T));
  return loaded;
}

// ---- First kernel ----------------------------------------------------------

// Logits [at, at + 4); NaN past the end.
template <bool kVectors>
__device__ __forceinline__ float4 LoadFour(const float* row, int at, int n) {
  if constexpr (kVectors) {
    if (at < n) return __ldcg(reinterpret_cast<const float4*>(row + at));
    const float none = __uint_as_float(0x7fffffffu);
    return {none, none, none, none};
  } else {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = at + i < n ? __ldcg(row + at + i) : __uint_as_float(0x7fffffffu);
    }
    return {x[0], x[1], x[2], x[3]};
  }
}

template <bool kVectors>
__global__ void __launch_bounds__(kChunkThreads) ChunkKernel(SampleWork work) {
  __shared__ uint64_t ranks[kChunkThreads / kWarp];
  __shared__ uint64_t digests[kChunkThreads / kWarp];
  __shared__ float sums[kChunkThreads / kWarp];
  __shared__ float maxima[kChunkThreads / kWarp];
  AllowNextGrid();
  const int64_t row = blockIdx.y;
  const bool has_digest = LoadInt(&work.how[row].digest) != 0;
  AwaitPreviousGrids();
  const float* logits = work.logits + row * work.stride;
  const int first =
      static_cast<int>(blockIdx.x) * kChunk + static_cast<int>(threadIdx.x) * 4;
  float x[kChunkLoads][4];
#pragma unroll
  for (int i = 0; i < kChunkLoads; ++i) {
    const float4 four =
        LoadFour<kVectors>(logits, first + i * kChunkThreads * 4, work.vocab);
    x[i][0] = four.x;
    x[i][1] = four.y;
    x[i][2] = four.z;
    x[i][3] = four.w;
  }
  // A NaN is passed over by fmaxf, here and below.
  float largest = -kInfinity;
#pragma unroll
  for (int i = 0; i < kChunkLoads; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) largest = fmaxf(largest, x[i][j]);
  }
  largest = BlockMax(largest, maxima);
  const bool is_finite = fabsf(largest) < kInfinity;
  float sum = 0;
  uint64_t best = 0;
#pragma unroll
  for (int i = 0; i < kChunkLoads; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float weight = Exp2((x[i][j] - largest) * kLog2E);
      sum += x[i][j] == largest ? 1.0f : fmaxf(weight, 0.0f);
      if (is_finite && x[i][j] != largest) continue;
      const uint64_t rank = RankOf(x[i][j], first + i * kChunkThreads * 4 + j);
      best = rank > best ? rank : best;
    }
  }
  best = BlockMax(best, ranks);
  sum = BlockSum(sum, sums);
  uint64_t digest = 0;
  if (has_digest) {
#pragma unroll
    for (int i = 0; i < kChunkLoads; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int id = first + i * kChunkThreads * 4 + j;
        if (id >= work.vocab) continue;
        const auto high = static_cast<uint64_t>(id) << 32;
        digest += SampleMix(high | __float_as_uint(x[i][j]));
      }
    }
    digest = BlockSum(digest, digests);
  }
  if (threadIdx.x != 0) return;
  work.chunks[row * work.num_chunks + blockIdx.x] = {best, sum, 0, digest};
}

// ---- Second kernel ---------------------------------------------------------

// First warp: puts the chunks together, in a fixed order.
__device__ void JoinChunks(const ChunkResult* chunks, int count,
                           bool has_digest, SampleShared& shared) {
  const int lane = static_cast<int>(threadIdx.x);
  uint4 mine[kLaneChunks];  // best, then sum
#pragma unroll
  for (int i = 0; i < kLaneChunks; ++i) {
    const int chunk = lane + kWarp * i;
    mine[i] = chunk < count ? Load16(&chunks[chunk]) : uint4{};
  }
  uint64_t ranks[kLaneChunks];
  uint64_t best = 0;
#pragma unroll
  for (int i = 0; i < kLaneChunks; ++i) {
    ranks[i] = uint64_t{mine[i].y} << 32 | mine[i].x;
    best = ranks[i] > best ? ranks[i] : best;
  }
  best = WarpMax(best);
  const float largest = LogitOfRank(best);
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kLaneChunks; ++i) {
    const float part = __uint_as_float(mine[i].z);
    if (!(part > 0)) continue;
    const float shift = LogitOfRank(ranks[i]) - largest;
    // Of equal infinities the shift is NaN.
    sum += LogitOfRank(ranks[i]) == largest ? part : part * exp(double{shift});
  }
  sum = WarpSum(sum);
  uint64_t digest = 0;
  if (has_digest) {
    for (int i = lane; i < count; i += kWarp) {
      digest += __ldcg(
          reinterpret_cast<const unsigned long long*>(&chunks[i].digest));
    }
    digest = kDigestStart + WarpSum(digest);
  }
  if (lane != 0) return;
  shared.best = best;
  shared.log_sum = log(sum);
  shared.digest = digest;
}

__device__ __forceinline__ float LogprobOf(float x, float largest,
                                           double log_sum) {
  return static_cast<float>(static_cast<double>(x) -
                            static_cast<double>(largest) - log_sum);
}

// Writes the best `count` tokens: from the list if it has them, else one after
// the other.
__device__ void WriteTop(const WeighedRow& row, int count, int listed,
                         SampleOut* out, SampleShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  if (listed >= count) {
    if (thread < count) {
      const uint64_t rank = shared.ranks[thread];
      out->top[thread] = {IdOf(rank), LogprobOf(LogitOfRank(rank), row.largest,
                                                shared.log_sum)};
    }
    return;
  }
  uint64_t last = ~uint64_t{0};
  for (int n = 0; n < count; ++n) {
    uint64_t best = 0;
    ForLogits(row, thread, row.vocab, kSampleThreads, [&](float x, int id) {
      const uint64_t rank = RankOf(x, id);
      if (rank < last && rank > best) best = rank;
    });
    last = BlockMax(best, shared.warps);
    __syncthreads();
    if (thread == 0) {
      out->top[n] = {IdOf(last),
                     LogprobOf(LogitOfRank(last), row.largest, shared.log_sum)};
    }
  }
}

// What the row asks for, as every thread sees it.
struct Request {
  Filters filters;
  bool is_drawn;  // neither forced nor greedy
  int top;        // best tokens to report
};

__device__ Request ReadRequest(const SampleRow& how, WeighedRow& row) {
  Request request;
  row.factor = 1.0f / how.temperature;
  request.is_drawn = how.forced < 0 && how.temperature > 0 &&
                     !isinf(row.factor) && row.largest > -kInfinity;
  if (!request.is_drawn) row.factor = 1.0f;
  request.filters.top_k =
      how.top_k > 0 && how.top_k < row.vocab ? how.top_k : 0;
  request.filters.top_p = how.top_p;
  request.filters.min_p = how.min_p;
  request.top = max(0, min(min(how.top_logprobs, kMaxTopLogprobs), row.vocab));
  return request;
}

// Lists what is needed for `request`, writes the best tokens and draws.
__device__ int ListAndDraw(const WeighedRow& row, const Request& request,
                           double u, int best, SampleOut* out,
                           SampleShared& shared) {
  const Filters& filters = request.filters;
  const bool is_filtered = request.is_drawn && filters.Any();
  const ListNeeds needs = {
      .count = max(request.top, is_filtered ? filters.top_k : 0),
      .by_weight = is_filtered && filters.top_k == 0,
      .top_p = filters.top_p,
      .min_p = filters.min_p};
  int listed = 0;
  int kept = 0;
  for (int attempt = 0; attempt < 2; ++attempt) {
    uint64_t total = 0;
    const float scale = attempt == 0 ? 64.0f * row.factor : 16.0f;
    listed = ListBest(row, needs, scale, total, shared);
    kept = is_filtered && listed > 0
               ? KeepListed(row, filters, listed, total, shared)
               : 0;
    if (listed >= request.top && (kept > 0 || !is_filtered)) break;
  }
  WriteTop(row, request.top, listed, out, shared);
  __syncthreads();
  if (!is_filtered) return best;
  return kept > 0 ? DrawListed(row, kept, u, shared)
                  : DrawSearched(row, filters, u, shared);
}

__global__ void __launch_bounds__(kSampleThreads)
    FinishKernel(SampleWork work) {
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<SampleShared*>(memory);
  AllowNextGrid();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t at = blockIdx.x;
  const SampleRow how = LoadAs<SampleRow>(work.how + at);
  const SampleOuts outs = LoadAs<SampleOuts>(work.outs);
  AwaitPreviousGrids();
  if (at >= outs.count) return;
  SampleOut* const out = outs.rows + at;
  if (thread < kWarp) {
    JoinChunks(work.chunks + at * work.num_chunks, work.num_chunks,
               how.digest != 0, shared);
  }
  __syncthreads();
  WeighedRow row = {work.logits + at * work.stride, work.vocab,
                    LogitOfRank(shared.best), 1.0f};
  const Request request = ReadRequest(how, row);
  int token = how.forced >= 0 ? how.forced : IdOf(shared.best);
  const double u = request.is_drawn ? UniformAt(how.seed, how.position) : 0;
  if (request.top > 0 || (request.is_drawn && request.filters.Any())) {
    token = ListAndDraw(row, request, u, token, out, shared);
  }
  if (request.is_drawn && !request.filters.Any()) {
    const auto weight = [&](float x, int) { return row.Fixed(x); };
    const uint64_t total = SumStrips(row, shared, weight);
    token = Locate(row, shared, TargetOf(u, total), weight);
  }
  if (thread >= request.top && thread < kMaxTopLogprobs) {
    out->top[thread] = {0, 0.0f};
  }
  if (thread != 0) return;
  const float logit =
      token == IdOf(shared.best) ? row.largest : row.Logit(token);
  out->token = token;
  out->logprob = LogprobOf(logit, row.largest, shared.log_sum);
  out->digest = shared.digest;
  out->num_top = request.top;
  out->unused = 0;
  if (how.token_slot >= 0) work.tokens[how.token_slot] = token;
}

int64_t NumChunks(int64_t vocab) { return CeilDiv(vocab, kChunk); }

}  // namespace

int64_t SampleScratchBytes(int64_t rows, int64_t vocab) {
  return rows * NumChunks(vocab) * static_cast<int64_t>(sizeof(ChunkResult));
}

cudaError_t SampleRows(const SampleArgs& args, cudaStream_t stream) {
  if (args.vocab <= 0 || args.vocab > int64_t{kStrip} * kMaxStrips ||
      args.rows > kMaxRows || args.outs == nullptr ||
      !IsAligned(args.how, 16) || !IsAligned(args.outs, 16) ||
      !IsAligned(args.scratch, 16)) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const SampleWork work = {
      .logits = args.logits,
      .stride = args.logits_stride,
      .how = args.how,
      .outs = args.outs,
      .tokens = args.tokens,
      .chunks = static_cast<ChunkResult*>(args.scratch),
      .vocab = static_cast<int>(args.vocab),
      .num_chunks = static_cast<int>(NumChunks(args.vocab)),
  };
  const bool vectors = IsAligned(args.logits, 16) &&
                       args.logits_stride % 4 == 0 && args.vocab % 4 == 0;
  const dim3 grid(Blocks(work.num_chunks), Blocks(args.rows));
  const cudaError_t error =
      Launch(vectors ? &ChunkKernel<true> : &ChunkKernel<false>, grid,
             kChunkThreads, 0, stream, work);
  if (error != cudaSuccess) return error;
  return Launch(&FinishKernel, dim3(Blocks(args.rows)), kSampleThreads,
                sizeof(SampleShared), stream, work);
}

}  // namespace baton::cuda
