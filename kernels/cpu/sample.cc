// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/inner.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/philox.h"
#include "runtime/base/thread_pool.h"
#include "runtime/tensor/shape_match.h"

namespace baton::cpu {
namespace {

// Sums over the vocabulary run in pieces of this many, added in order.
constexpr int64_t kPiece = 4096;

// Better first: the larger logit, then the lower id. A NaN is the worst.
struct Better {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits[a];
    const float y = logits[b];
    if (x > y || (!std::isnan(x) && std::isnan(y))) return true;
    if (x == y || (std::isnan(x) && std::isnan(y))) return a < b;
    return false;
  }
};

class Row {
 public:
  Row(const float* logits, int64_t vocab, const InnerLoops<float>& loops)
      : logits_(logits), vocab_(vocab), loops_(loops) {
    largest_ = loops_.max(logits_, vocab_);
  }

  [[nodiscard]] int32_t Best() const {
    for (int64_t i = 0; i < vocab_; ++i) {
      if (logits_[i] == largest_) return static_cast<int32_t>(i);
    }
    return 0;
  }

  // Sum of e^((logit - largest) * factor) over the vocabulary.
  [[nodiscard]] double SumExp(float factor) const {
    double sum = 0;
    for (int64_t i = 0; i < vocab_; i += kPiece) {
      sum += loops_.sum_exp(logits_ + i, largest_, factor,
                            std::min(kPiece, vocab_ - i));
    }
    return sum;
  }

  [[nodiscard]] double Weight(int32_t token, float factor) const {
    return std::exp(static_cast<double>((logits_[token] - largest_) * factor));
  }

  // The `count` best tokens, best first.
  [[nodiscard]] std::vector<int32_t> Top(int64_t count) const {
    std::vector<int32_t> ids(static_cast<size_t>(vocab_));
    std::iota(ids.begin(), ids.end(), 0);
    const auto end = ids.begin() + std::min(count, vocab_);
    if (end != ids.end()) {
      std::nth_element(ids.begin(), end, ids.end(), Better{logits_});
    }
    ids.erase(end, ids.end());
    std::sort(ids.begin(), ids.end(), Better{logits_});
    return ids;
  }

  [[nodiscard]] int32_t Choose(const SamplingRow& how) const;
  [[nodiscard]] uint64_t Digest() const;
  [[nodiscard]] float largest() const { return largest_; }
  [[nodiscard]] float operator[](int32_t token) const { return logits_[token]; }
  [[nodiscard]] int64_t vocab() const { return vocab_; }

 private:
  [[nodiscard]] std::vector<int32_t> Kept(const SamplingRow& how,
                                          float factor) const;
  [[nodiscard]] int32_t Draw(double u, float factor) const;

  const float* logits_;
  int64_t vocab_;
  const InnerLoops<float>& loops_;
  float largest_;
};

// Keeps the shortest run of the best tokens whose weight reaches `share` of
// `total`; at least one.
void KeepShare(const Row& row, float factor, double share, double total,
               std::vector<int32_t>& ids) {
  double sum = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    sum += row.Weight(ids[i], factor);
    if (sum >= share * total) {
      ids.resize(i + 1);
      return;
    }
  }
}

// What top-k, then top-p, then min-p leave, best first.
std::vector<int32_t> Row::Kept(const SamplingRow& how, float factor) const {
  const bool some = how.top_k > 0 && how.top_k < vocab_;
  std::vector<int32_t> ids;
  if (some) {
    ids = Top(how.top_k);
    double total = 0;
    for (const int32_t id : ids) total += Weight(id, factor);
    if (how.top_p < 1) KeepShare(*this, factor, how.top_p, total, ids);
  } else {
    const double total = SumExp(factor);
    // Most of the weight is usually in a few tokens: look at more and more of
    // the best until they reach the share.
    for (int64_t count = 256;; count *= 8) {
      ids = Top(count);
      if (count >= vocab_ && how.top_p >= 1) break;
      const size_t before = ids.size();
      if (how.top_p < 1) KeepShare(*this, factor, how.top_p, total, ids);
      if (count >= vocab_ || ids.size() < before) break;
      if (how.top_p >= 1 && Weight(ids.back(), factor) < how.min_p) break;
    }
  }
  const auto weak = [&](int32_t id) { return Weight(id, factor) < how.min_p; };
  ids.erase(std::find_if(ids.begin() + 1, ids.end(), weak), ids.end());
  return ids;
}

// Inverse of the cumulative weight over the whole vocabulary, in order of id:
// first the piece, then the token in it.
int32_t Row::Draw(double u, float factor) const {
  double target = u * SumExp(factor);
  int64_t piece = 0;
  int32_t last = Best();
  for (; piece < vocab_; piece += kPiece) {
    const double sum = loops_.sum_exp(logits_ + piece, largest_, factor,
                                      std::min(kPiece, vocab_ - piece));
    if (target < sum) break;
    target -= sum;
  }
  piece = std::min(piece, (vocab_ - 1) / kPiece * kPiece);
  const int64_t end = std::min(piece + kPiece, vocab_);
  for (int64_t i = piece; i < end; ++i) {
    const auto token = static_cast<int32_t>(i);
    const double weight = Weight(token, factor);
    if (!(weight > 0)) continue;
    last = token;
    if (target < weight) break;
    target -= weight;
  }
  return last;
}

int32_t Row::Choose(const SamplingRow& how) const {
  if (!(how.temperature > 0)) return Best();
  const float factor = 1.0f / how.temperature;
  if (std::isinf(factor)) return Best();
  const double u = UniformAt(how.seed, how.position);
  const bool all = (how.top_k <= 0 || how.top_k >= vocab_) && how.top_p >= 1 &&
                   how.min_p <= 0;
  if (all) return Draw(u, factor);
  std::vector<int32_t> ids = Kept(how, factor);
  std::sort(ids.begin(), ids.end());
  double total = 0;
  for (const int32_t id : ids) total += Weight(id, factor);
  double target = u * total;
  for (const int32_t id : ids) {
    const double weight = Weight(id, factor);
    if (target < weight) return id;
    target -= weight;
  }
  return ids.back();
}

uint64_t Row::Digest() const {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int64_t i = 0; i < vocab_; ++i) {
    hash = (hash ^ std::bit_cast<uint32_t>(logits_[i])) * 0x100000001b3u;
  }
  return hash;
}

SampledRow SampleRow(const Row& row, const SamplingRow& how) {
  SampledRow result;
  result.token = how.forced >= 0 ? how.forced : row.Choose(how);
  const double log_sum = std::log(row.SumExp(1.0f));
  const auto logprob = [&](int32_t token) {
    return static_cast<float>(static_cast<double>(row[token]) -
                              static_cast<double>(row.largest()) - log_sum);
  };
  result.logprob = logprob(result.token);
  if (how.top_logprobs > 0) {
    for (const int32_t token : row.Top(how.top_logprobs)) {
      result.top[result.num_top++] = {token, logprob(token)};
    }
  }
  if (how.digest) result.digest = row.Digest();
  return result;
}

}  // namespace

template <CpuIsa kIsa>
Status SampleCpu(const Sample::Args& args, Stream& stream) {
  ShapeMatch match("sample");
  match.Match("logits", args.logits, {"rows", "vocab"})
      .IsType("logits", args.logits, DType::kF32);
  BATON_RETURN_IF_ERROR(match.status());
  const int64_t rows = match["rows"];
  const int64_t vocab = match["vocab"];
  match
      .Require(static_cast<int64_t>(args.rows.size()) == rows &&
                   args.results->count == rows,
               "one SamplingRow and one result per row")
      .Require(vocab > 0, "the vocabulary is empty");
  for (const SamplingRow& how : args.rows) {
    match.Require(how.forced < vocab, "forced token outside the vocabulary")
        .Require(how.top_logprobs <= kMaxTopLogprobs, "too many logprobs")
        .Require(how.slot < static_cast<int64_t>(args.drawn.size()),
                 "slot outside the drawn tokens");
  }
  BATON_RETURN_IF_ERROR(match.status());

  const InnerLoops<float>& loops = LoopsOf<float>(kIsa);
  PoolOf(stream).ParallelFor(rows, 1, [&](int64_t row, int64_t end, int) {
    for (; row < end; ++row) {
      const auto i = static_cast<size_t>(row);
      SampledRow& result = args.results->rows[i];
      result = SampleRow(Row(args.logits.Row<float>(row), vocab, loops),
                         args.rows[i]);
      const int32_t slot = args.rows[i].slot;
      if (slot >= 0) {
        args.drawn[static_cast<size_t>(slot)] = result.token;
      }
    }
  });
  return OkStatus();
}

template Status SampleCpu<CpuIsa::kReference>(const Sample::Args&, Stream&);
template Status SampleCpu<CpuIsa::kAvx2>(const Sample::Args&, Stream&);
template Status SampleCpu<CpuIsa::kAvx512>(const Sample::Args&, Stream&);
template Status SampleCpu<CpuIsa::kAmx>(const Sample::Args&, Stream&);

}  // namespace baton::cpu
