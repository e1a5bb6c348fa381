// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <memory>
#include <numeric>

#include "kernels/cpu/philox.h"
#include "kernels/cuda/sample.h"
#include "tests/device/check_support.cuh"

namespace baton::check {

// The reference of one row, in double: kernels/cpu/sample.cc.
class SampleReference {
 public:
  SampleReference(const float* logits, int vocab) : logits_(logits), n_(vocab) {
    order_.resize(vocab);
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int a, int b) {
      const float x = logits_[a];
      const float y = logits_[b];
      if (std::isnan(x) || std::isnan(y)) {
        return std::isnan(x) == std::isnan(y) ? a < b : std::isnan(y);
      }
      return x == y ? a < b : x > y;
    });
    largest_ = logits_[order_[0]];
    double sum = 0;
    for (int i = 0; i < n_; ++i) sum += WeightOf(i, 1.0f);
    log_sum_ = std::log(sum);
  }

  [[nodiscard]] double WeightOf(int id, float factor) const {
    if (logits_[id] == largest_) return 1;
    const double w =
        std::exp(static_cast<double>((logits_[id] - largest_) * factor));
    return w > 0 ? w : 0;
  }
  [[nodiscard]] double Logprob(int id) const {
    return double(logits_[id]) - largest_ - log_sum_;
  }
  [[nodiscard]] const std::vector<int>& order() const { return order_; }

  // Whether `token` is the one to draw, give or take 1e-5 of the weight.
  [[nodiscard]] bool MayDraw(const cuda::SampleRow& how, int token) const {
    const float factor = 1.0f / how.temperature;
    if (!(how.temperature > 0) || std::isinf(factor) ||
        !(largest_ > -std::numeric_limits<float>::infinity())) {
      return token == order_[0];
    }
    std::vector<int> kept = order_;
    if (how.top_k > 0 && how.top_k < n_) kept.resize(how.top_k);
    double total = 0;
    for (const int id : kept) total += WeightOf(id, factor);
    if (how.top_p < 1) {
      double sum = 0;
      for (size_t i = 0; i < kept.size(); ++i) {
        sum += WeightOf(kept[i], factor);
        if (sum >= how.top_p * total) kept.resize(i + 1);
      }
    }
    size_t strong = 1;
    while (strong < kept.size() &&
           WeightOf(kept[strong], factor) >= how.min_p) {
      ++strong;
    }
    kept.resize(strong);
    std::sort(kept.begin(), kept.end());
    total = 0;
    for (const int id : kept) total += WeightOf(id, factor);
    const double target = cpu::UniformAt(how.seed, how.position) * total;
    double before = 0;
    for (const int id : kept) {
      const double after = before + WeightOf(id, factor);
      if (id == token) {
        return before - 1e-5 * total <= target && target < after + 1e-5 * total;
      }
      before = after;
    }
    return false;
  }

 private:
  const float* logits_;
  int n_;
  std::vector<int> order_;
  float largest_;
  double log_sum_;
};

inline std::vector<cuda::SampleOut> RunSample(
    const std::vector<float>& logits, int64_t stride, int vocab,
    const std::vector<cuda::SampleRow>& how, const std::string& what) {
  const auto rows = static_cast<int64_t>(how.size());
  const Device<float> dlogits(logits);
  const Device<cuda::SampleRow> dhow(how);
  const Device<cuda::SampleOut> out(rows);
  const Device<cuda::SampleOuts> outs({{out.data(), rows}});
  const Device<int32_t> tokens(rows + 4);
  const Device<char> scratch(cuda::SampleScratchBytes(rows, vocab));
  CUDA_OK(cuda::SampleRows({dlogits.data(), stride, rows, vocab, dhow.data(),
                            outs.data(), tokens.data(), scratch.data()},
                           nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  const std::vector<cuda::SampleOut> got = out.Download();
  std::vector<int32_t> want(rows + 4, -1);
  for (int64_t i = 0; i < rows; ++i) {
    if (how[i].token_slot >= 0) want[how[i].token_slot] = got[i].token;
  }
  Expect(tokens.Download() == want, what + " token slots");
  Expect(out.GuardsHold() && tokens.GuardsHold() && scratch.GuardsHold(),
         what + " guards");
  return got;
}

enum class Logits {
  kPeaked,
  kFlat,
  kTied,
  kEqual,
  kHoles,
  kNan,
  kNormal,
  kAllLow,  // -infinity
  kAllNan,
  kSomeHigh,  // +infinity
};

inline void FillLogits(Logits kind, float* x, int vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  for (int i = 0; i < vocab; ++i) {
    const float v = normal(random);
    switch (kind) {
      case Logits::kPeaked:
        x[i] = 3 * v + (random() % 1000 == 0 ? 10.0f : 0.0f);
        break;
      case Logits::kFlat:
        x[i] = 0.3f * v;
        break;
      case Logits::kTied:
        x[i] = std::round(v * 2) / 2;
        break;
      case Logits::kEqual:
        x[i] = 1.5f;
        break;
      case Logits::kHoles:
        x[i] =
            random() % 3 == 0 ? -std::numeric_limits<float>::infinity() : 4 * v;
        break;
      case Logits::kNan:
        x[i] = random() % 5 == 0 ? std::nanf("") : 4 * v;
        break;
      case Logits::kNormal:
        x[i] = 2.5f * v;
        break;
      case Logits::kAllLow:
        x[i] = -std::numeric_limits<float>::infinity();
        break;
      case Logits::kAllNan:
        x[i] = std::nanf("");
        break;
      case Logits::kSomeHigh:
        x[i] = random() % 900 == 0 ? std::numeric_limits<float>::infinity() : v;
        break;
    }
  }
}

inline std::vector<cuda::SampleRow> SampleRequests() {
  std::vector<cuda::SampleRow> rows;
  const auto add = [&](float temperature, int top_k, float top_p, float min_p,
                       int top) {
    cuda::SampleRow how;
    how.temperature = temperature;
    how.top_k = top_k;
    how.top_p = top_p;
    how.min_p = min_p;
    how.top_logprobs = top;
    how.seed = 0x123456789abcdefu * (rows.size() + 1);
    how.position = static_cast<int64_t>(rows.size()) * 977;
    rows.push_back(how);
  };
  add(0, 0, 1, 0, 0);
  add(0, 0, 1, 0, cuda::kMaxTopLogprobs);
  add(0, 50, 0.5f, 0.1f, 1);
  add(1, 0, 1, 0, 0);
  add(0.7f, 0, 1, 0, 5);
  add(1.5f, 0, 1, 0, 0);
  add(1, 1, 1, 0, 0);
  add(1, 40, 1, 0, cuda::kMaxTopLogprobs);
  add(0.8f, 50, 0.9f, 0, 0);
  add(1, 0, 0.95f, 0, 3);
  add(1, 0, 0.5f, 0, 0);
  add(2, 0, 0.99f, 0, 0);
  add(1, 0, 1, 0.05f, 0);
  add(1.2f, 100, 0.95f, 0.02f, 20);
  add(0.05f, 0, 0.95f, 0, 0);
  add(1, 5000, 0.98f, 0, 0);
  add(1, 7, 1, 1, 0);
  add(1, 0, 1e-6f, 0, 0);
  add(3, 1 << 20, 0.999f, 0.0001f, cuda::kMaxTopLogprobs);
  add(1e-40f, 0, 0.9f, 0, 0);
  add(1, 0, 1, 0, 0);
  rows.back().forced = 3;
  rows.back().top_logprobs = 2;
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].digest = i % 2 == 0 ? 1 : 0;
    rows[i].token_slot = i % 3 == 2 ? -1 : static_cast<int>(i);
  }
  return rows;
}

inline void ExpectRow(const std::string& what, const float* logits, int vocab,
                      const SampleReference& reference,
                      const cuda::SampleRow& how, const cuda::SampleOut& got) {
  const bool is_forced = how.forced >= 0;
  const bool ok = is_forced ? got.token == how.forced
                            : got.token >= 0 && got.token < vocab &&
                                  reference.MayDraw(how, got.token);
  Expect(ok, what + Name(" token %d", got.token));
  if (got.token < 0 || got.token >= vocab) return;
  const auto near = [&](float logprob, int id) {
    const double want = reference.Logprob(id);
    return (std::isinf(want) && logprob == want) ||
           (std::isnan(want) && std::isnan(logprob)) ||
           std::abs(logprob - want) <= 1e-5 + 1e-6 * std::abs(want);
  };
  Expect(near(got.logprob, got.token),
         what + Name(" logprob %g, not %g", got.logprob,
                     reference.Logprob(got.token)));
  const int top = std::min(how.top_logprobs, vocab);
  bool top_ok = got.num_top == top && got.unused == 0;
  for (int i = 0; i < cuda::kMaxTopLogprobs; ++i) {
    const cuda::SampleLogprob& entry = got.top[i];
    if (i >= top) {
      top_ok &= entry.token == 0 && entry.logprob == 0;
    } else {
      top_ok &= entry.token == reference.order()[i] &&
                near(entry.logprob, entry.token);
    }
  }
  Expect(top_ok, what + Name(" top logprobs (%d)", top));
  uint64_t digest = 0;
  if (how.digest != 0) {
    digest = 0xcbf29ce484222325u;
    for (int i = 0; i < vocab; ++i) {
      uint32_t bits;
      std::memcpy(&bits, logits + i, sizeof(bits));
      digest += cuda::SampleMix(static_cast<uint64_t>(i) << 32 | bits);
    }
  }
  Expect(got.digest == digest, what + " digest");
}

inline void CheckSampleCase(Logits kind, int vocab, int64_t stride) {
  const std::string what =
      Name("sample kind %d vocab %d", static_cast<int>(kind), vocab);
  std::vector<cuda::SampleRow> how = SampleRequests();
  how.back().forced = std::min(how.back().forced, vocab - 1);
  const auto rows = static_cast<int64_t>(how.size());
  std::vector<float> logits(rows * stride, std::nanf(""));
  Parallel(rows, [&](int64_t i) {
    FillLogits(kind, logits.data() + i * stride, vocab, 100 + i);
  });
  const std::vector<cuda::SampleOut> got =
      RunSample(logits, stride, vocab, how, what);
  std::vector<std::unique_ptr<SampleReference>> references(rows);
  Parallel(rows, [&](int64_t i) {
    references[i] =
        std::make_unique<SampleReference>(logits.data() + i * stride, vocab);
  });
  for (int64_t i = 0; i < rows; ++i) {
    ExpectRow(what + Name(" request %d", static_cast<int>(i)),
              logits.data() + i * stride, vocab, *references[i], how[i],
              got[i]);
    // Alone, the same bits.
    std::vector<cuda::SampleRow> one = {how[i]};
    one[0].token_slot = -1;
    const std::vector<float> row(logits.begin() + i * stride,
                                 logits.begin() + (i + 1) * stride);
    const std::vector<cuda::SampleOut> alone =
        RunSample(row, stride, vocab, one, what + " alone");
    Expect(std::memcmp(&alone[0], &got[i], sizeof(got[i])) == 0,
           what + Name(" request %d alone", static_cast<int>(i)));
  }
  RunSample({}, stride, vocab, {}, what + " no rows");
}

// Results in the host's memory; a row behind them has none.
inline void CheckSampleOuts() {
  constexpr int kVocab = 5000;
  constexpr int64_t kRows = 3;
  std::vector<float> logits(kRows * kVocab);
  for (int64_t i = 0; i < kRows; ++i) {
    FillLogits(Logits::kPeaked, logits.data() + i * kVocab, kVocab, 50 + i);
  }
  std::vector<cuda::SampleRow> how(kRows);
  for (int i = 0; i < kRows; ++i) how[i].token_slot = i;
  how[1] = {.temperature = 1, .top_p = 0.9f, .top_logprobs = 5};
  const std::vector<cuda::SampleOut> want =
      RunSample(logits, kVocab, kVocab, how, "sample outs");
  cuda::SampleOut* host = nullptr;
  CUDA_OK(cudaHostAlloc(&host, kRows * sizeof(*host), cudaHostAllocPortable));
  std::memset(host, 0x5a, kRows * sizeof(*host));
  const std::vector<char> before(
      reinterpret_cast<const char*>(host + kRows - 1),
      reinterpret_cast<const char*>(host + kRows));
  const Device<float> dlogits(logits);
  const Device<cuda::SampleRow> dhow(how);
  const Device<cuda::SampleOuts> outs({{host, kRows - 1}});
  const Device<int32_t> tokens(kRows);
  const Device<char> scratch(cuda::SampleScratchBytes(kRows, kVocab));
  CUDA_OK(cuda::SampleRows({dlogits.data(), kVocab, kRows, kVocab, dhow.data(),
                            outs.data(), tokens.data(), scratch.data()},
                           nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  const size_t bytes = (kRows - 1) * sizeof(*host);
  Expect(std::memcmp(host, want.data(), bytes) == 0, "sample to the host");
  Expect(std::memcmp(host + kRows - 1, before.data(), before.size()) == 0,
         "sample without a result writes none");
  Expect(tokens.Download() == std::vector<int32_t>({want[0].token, -1, -1}),
         "sample without a result fills no slot");
  CUDA_OK(cudaFreeHost(host));
}

inline void CheckSample() {
  for (const Logits kind :
       {Logits::kPeaked, Logits::kFlat, Logits::kTied, Logits::kEqual,
        Logits::kHoles, Logits::kNan, Logits::kNormal}) {
    CheckSampleCase(kind, 1, 3);
    CheckSampleCase(kind, 100, 100);
    CheckSampleCase(kind, 1003, 1003);
    CheckSampleCase(kind, 8192, 8196);
    CheckSampleCase(kind, 131072, 131072);
  }
  for (const Logits kind :
       {Logits::kAllLow, Logits::kAllNan, Logits::kSomeHigh}) {
    CheckSampleCase(kind, 5000, 5000);
  }
  CheckSampleCase(Logits::kPeaked, 2049, 2049);
  CheckSampleCase(Logits::kFlat, 1 << 18, 1 << 18);
  CheckSampleOuts();
}

}  // namespace baton::check
