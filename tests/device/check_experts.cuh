// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/experts.h"
#include "kernels/cuda/grouped_matmul.h"
#include "kernels/cuda/skinny_matmul.h"
#include "tests/device/check_support.cuh"

namespace baton::check {

// ---- Routing ---------------------------------------------------------------

// Logits of a few values only, so that many are equal; the last row is NaN.
inline void CheckRouteCase(int64_t rows, int64_t count, int64_t top) {
  const std::string what =
      Name("route rows %d experts %d top %d", static_cast<int>(rows),
           static_cast<int>(count), static_cast<int>(top));
  const int64_t stride = count + 3;
  std::vector<float> logits(rows * stride);
  std::mt19937 random(static_cast<uint32_t>(7 + count + top));
  for (float& l : logits) l = static_cast<float>(random() % 16) / 4;
  for (int64_t i = 0; i < count; ++i) {
    logits[(rows - 1) * stride + i] = std::nanf("");
  }
  const Device<float> dlogits(logits);
  const Device<int32_t> dexperts(rows * (top + 1));
  const Device<float> dweights(rows * (top + 2));
  CUDA_OK(cuda::RouteRows({dlogits.data(), stride, dexperts.data(), top + 1,
                           dweights.data(), top + 2, rows, count, top},
                          nullptr));
  const std::vector<int32_t> experts = dexperts.Download();
  const std::vector<float> weights = dweights.Download();
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    const float* l = logits.data() + row * stride;
    if (row < rows - 1) {
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return l[a] > l[b]; });
    }
    double sum = 0;
    for (int64_t s = 0; s < top; ++s)
      sum += std::exp(l[order[s]] - l[order[0]]);
    bool same = true;
    double error = 0;
    for (int64_t s = 0; s < top; ++s) {
      same &= experts[row * (top + 1) + s] == order[s];
      const double want = std::exp(l[order[s]] - l[order[0]]) / sum;
      error = std::max(error, std::abs(weights[row * (top + 2) + s] - want));
    }
    Expect(same, what + " experts");
    if (row < rows - 1) Expect(error < 1e-6, what + " weights");
  }
  Expect(dexperts.GuardsHold() && dweights.GuardsHold(), what + " guards");
}

struct RouteGroupedCase {
  int64_t rows, count, top, groups, top_groups;
};

// The experts of a row as the op defines them, from its choices.
inline std::vector<int32_t> ChosenInGroups(const RouteGroupedCase& c,
                                           const std::vector<float>& choice) {
  const int64_t size = c.count / c.groups;
  std::vector<float> scores;
  for (int64_t g = 0; g < c.groups; ++g) {
    std::vector<float> of(choice.begin() + g * size,
                          choice.begin() + (g + 1) * size);
    std::sort(of.begin(), of.end(), std::greater<float>());
    scores.push_back(of[0] + (size > 1 ? of[1] : 0.0f));
  }
  std::vector<int32_t> best(c.groups);
  std::iota(best.begin(), best.end(), 0);
  std::stable_sort(best.begin(), best.end(),
                   [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  best.resize(c.top_groups);
  std::vector<int32_t> order;
  for (int32_t e = 0; e < c.count; ++e) {
    const auto group = static_cast<int32_t>(e / size);
    if (std::find(best.begin(), best.end(), group) != best.end()) {
      order.push_back(e);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return choice[a] > choice[b]; });
  order.resize(c.top);
  return order;
}

// Logits and biases of a few values only; the last row is NaN, the one before
// it in part.
inline void CheckRouteGroupedCase(const RouteGroupedCase& c) {
  const std::string what =
      Name("route grouped experts %d top %d groups %d of %d",
           static_cast<int>(c.count), static_cast<int>(c.top),
           static_cast<int>(c.top_groups), static_cast<int>(c.groups));
  const int64_t stride = c.count + 3;
  std::vector<float> logits(c.rows * stride);
  std::vector<float> bias(c.count);
  std::mt19937 random(static_cast<uint32_t>(11 + c.count + c.top));
  // Far enough from each other that another expf puts none before another.
  for (float& l : logits) l = static_cast<float>(random() % 8) / 2;
  for (float& b : bias) b = static_cast<float>(random() % 3) * 1.5f - 2.0f;
  for (int64_t i = 0; i < c.count; ++i) {
    logits[(c.rows - 1) * stride + i] = std::nanf("");
    if (i % 3 == 0) logits[(c.rows - 2) * stride + i] = std::nanf("");
  }
  const Device<float> dlogits(logits);
  const Device<float> dbias(bias);
  const Device<int32_t> dexperts(c.rows * (c.top + 1));
  const Device<float> dweights(c.rows * (c.top + 2));
  CUDA_OK(cuda::RouteGroupedRows(
      {{dlogits.data(), stride, dexperts.data(), c.top + 1, dweights.data(),
        c.top + 2, c.rows, c.count, c.top},
       dbias.data(),
       c.groups,
       c.top_groups,
       2.5f},
      nullptr));
  const std::vector<int32_t> experts = dexperts.Download();
  const std::vector<float> weights = dweights.Download();
  for (int64_t row = 0; row < c.rows; ++row) {
    const int32_t* got = experts.data() + row * (c.top + 1);
    std::vector<int32_t> sorted(got, got + c.top);
    std::sort(sorted.begin(), sorted.end());
    Expect(sorted.front() >= 0 && sorted.back() < c.count &&
               std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
           what + " distinct");
    if (row >= c.rows - 2) continue;
    std::vector<float> score(c.count), choice(c.count);
    for (int64_t e = 0; e < c.count; ++e) {
      score[e] = 1.0f / (1.0f + std::exp(-logits[row * stride + e]));
      choice[e] = score[e] + bias[e];
    }
    const std::vector<int32_t> want = ChosenInGroups(c, choice);
    double sum = 1e-20;
    for (const int32_t e : want) sum += score[e];
    bool same = true;
    double error = 0;
    for (int64_t s = 0; s < c.top; ++s) {
      same &= got[s] == want[s];
      error = std::max(error, std::abs(weights[row * (c.top + 2) + s] -
                                       score[want[s]] / sum * 2.5));
    }
    Expect(same, what + " experts");
    Expect(error < 3e-6, what + " weights");
  }
  Expect(dexperts.GuardsHold() && dweights.GuardsHold(), what + " guards");
}

// ---- Combination -----------------------------------------------------------

inline void CheckCombineCase(int64_t rows, int64_t top, int64_t hidden,
                             int64_t pad) {
  const std::string what =
      Name("combine rows %d top %d hidden %d", static_cast<int>(rows),
           static_cast<int>(top), static_cast<int>(hidden));
  const int64_t stride = hidden + pad;
  const std::vector<Bf16> y = RandomBf16(rows * top * stride, 3);
  std::vector<float> weights(rows * top);
  std::mt19937 random(5);
  for (float& w : weights) w = static_cast<float>(random() % 1000) / 1000;
  const Device<Bf16> dy(y);
  const Device<float> dweights(weights);
  const Device<Bf16> dout(rows * stride);
  CUDA_OK(cuda::CombineRows({dy.data(), stride, dweights.data(), top,
                             dout.data(), stride, rows, top, hidden},
                            nullptr));
  const std::vector<Bf16> out = dout.Download();
  for (int64_t row = 0; row < rows; ++row) {
    double worst = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      double want = 0;
      for (int64_t s = 0; s < top; ++s) {
        want += static_cast<double>(weights[row * top + s]) *
                ToFloat(y[(row * top + s) * stride + i]);
      }
      const double allowed = kHalfUlp * std::abs(want) + 4e-6;
      worst = std::max(
          worst, std::abs(ToFloat(out[row * stride + i]) - want) / allowed);
    }
    Expect(worst <= 1, what);
    Expect(IsPoison(out, row * stride + hidden, pad), what + " padding");
  }
  const std::vector<Bf16> added = RandomBf16(rows * stride, 6);
  const Device<Bf16> dadded(added);
  CUDA_OK(
      cuda::CombineRows({dy.data(), stride, dweights.data(), top, dout.data(),
                         stride, rows, top, hidden, dadded.data(), stride},
                        nullptr));
  const std::vector<Bf16> both = dout.Download();
  bool same = true;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = row * stride; i < row * stride + hidden; ++i) {
      const float want = ToFloat(out[i]) + ToFloat(added[i]);
      same &= ToFloat(both[i]) == ToFloat(ToBf16(want));
    }
  }
  Expect(same, what + " and more");
}

// ---- Products --------------------------------------------------------------

// Matrices [n, k] of experts, as kernels see them.
class ExpertsOnDevice {
 public:
  // At `w`, row stride ld.
  ExpertsOnDevice(const Bf16* w, int64_t experts, int64_t n, int64_t k,
                  int64_t ld, int halves)
      : skinny_(experts), maps_(experts), pairs_(experts), pointers_(experts) {
    std::vector<CUtensorMap> maps, pairs;
    std::vector<const void*> pointers;
    for (int64_t e = 0; e < experts; ++e) {
      CUDA_OK(cuda::MakeSkinnyWeight(w + e * n * ld, n, k, ld, &skinny_[e],
                                     halves));
      maps.push_back(skinny_[e].map);
      pairs.push_back(skinny_[e].pairs);
      pointers.push_back(skinny_[e].w);
    }
    maps_.Upload(maps);
    pairs_.Upload(pairs);
    pointers_.Upload(pointers);
  }

  [[nodiscard]] const cuda::SkinnyWeight& operator[](int64_t expert) const {
    return skinny_[expert];
  }
  [[nodiscard]] cuda::GroupedWeights weights() const {
    return {.maps = maps_.data(),
            .pairs = pairs_.data(),
            .pointers = pointers_.data(),
            .experts = static_cast<int64_t>(skinny_.size()),
            .n = skinny_[0].n,
            .k = skinny_[0].k,
            .ldw = skinny_[0].ldw,
            .halves = skinny_[0].halves,
            .leaves = skinny_[0].leaves,
            .plain = skinny_[0].plain};
  }

 private:
  std::vector<cuda::SkinnyWeight> skinny_;
  Device<CUtensorMap> maps_, pairs_;
  Device<const void*> pointers_;
};

struct GroupedCase {
  int64_t experts, tokens, top, n, k;
  bool row_a_slot;
  int halves = 0;  // of k, as PackedMatrix has it

  [[nodiscard]] int64_t slots() const { return tokens * top; }
  [[nodiscard]] int64_t rows() const { return row_a_slot ? slots() : tokens; }
  [[nodiscard]] int64_t ld() const { return (k + 7) / 8 * 8; }
};

inline std::string NameOf(const char* kernel, const GroupedCase& c) {
  return Name("%s experts %d tokens %d top %d", kernel,
              static_cast<int>(c.experts), static_cast<int>(c.tokens),
              static_cast<int>(c.top)) +
         Name(" n %d k %d%s%s", static_cast<int>(c.n), static_cast<int>(c.k),
              c.row_a_slot ? ", a row a slot" : "",
              c.halves == 2 ? ", by halves" : "");
}

// Distinct experts of each token; few of them get most of the rows. One slot
// has none.
inline std::vector<int32_t> ChooseExperts(const GroupedCase& c) {
  std::vector<int32_t> experts(c.slots());
  std::mt19937 random(9);
  for (int64_t t = 0; t < c.tokens; ++t) {
    std::vector<int32_t> order(c.experts);
    std::iota(order.begin(), order.end(), 0);
    if (t % 3 != 0) std::shuffle(order.begin(), order.end(), random);
    std::copy_n(order.begin(), c.top, experts.begin() + t * c.top);
  }
  if (experts.size() > 4) experts[3] = -1;
  return experts;
}

template <typename T>
constexpr cuda::SkinnyOut kOutOf = sizeof(T) == 4 ? cuda::SkinnyOut::kF32
                                                  : cuda::SkinnyOut::kBf16;

// Every slot's row has the bits of the same row alone through SkinnyMatmul.
template <typename T>
void CheckGroupedCase(const GroupedCase& c, cuda::SkinnyActivation activation =
                                                cuda::SkinnyActivation::kNone) {
  const int64_t slots = c.slots();
  const int64_t ld = c.ld();
  const int64_t ldo = c.n + 5;
  const Device<Bf16> w(RandomBf16(c.experts * c.n * ld, 1));
  const Device<Bf16> x(RandomBf16(c.rows() * ld, 2));
  const ExpertsOnDevice weights(w.data(), c.experts, c.n, c.k, ld, c.halves);
  const std::vector<int32_t> experts = ChooseExperts(c);
  const Device<int32_t> dexperts(experts);
  Device<T> out(slots * ldo);
  const Device<char> plan(cuda::GroupedPlanBytes(slots));
  const Device<char> scratch(cuda::GroupedScratchBytes(slots, c.k));
  cuda::GroupedArgs args = {x.data(),  c.rows(),  ld,          dexperts.data(),
                            c.tokens,  c.top,     c.top,       out.data(),
                            ldo,       kOutOf<T>, plan.data(), scratch.data(),
                            activation};
  CUDA_OK(cuda::GroupedMatmul(weights.weights(), args, nullptr));
  const std::vector<T> got = out.Download();
  out.Poison();
  args.sort = cuda::GroupedSort::kDone;
  CUDA_OK(cuda::GroupedMatmul(weights.weights(), args, nullptr));
  const bool again = SameBits(out.Download(), 0, got, 0, slots * ldo);
  const Device<T> want(slots * ldo);
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (experts[slot] < 0) continue;
    CUDA_OK(cuda::SkinnyMatmul(
        weights[experts[slot]],
        {.x = x.data() + (c.row_a_slot ? slot : slot / c.top) * ld,
         .m = 1,
         .ldx = ld,
         .out = want.data() + slot * ldo,
         .ldo = ldo,
         .out_type = kOutOf<T>,
         .activation = activation},
        nullptr));
  }
  const std::string what = NameOf(sizeof(T) == 4        ? "grouped f32"
                                  : IsGated(activation) ? "grouped gated"
                                                        : "grouped",
                                  c);
  Expect(SameBits(got, 0, want.Download(), 0, slots * ldo), what);
  Expect(again, what + " by the plan before");
  Expect(out.GuardsHold() && plan.GuardsHold() && scratch.GuardsHold(),
         what + " guards");
}

inline void CheckExperts() {
  for (const int64_t count : {1, 3, 8, 64, 257, 1024}) {
    for (const int64_t top : {1, 2, 8}) {
      if (top <= count) CheckRouteCase(9, count, top);
    }
  }
  for (const RouteGroupedCase& c : {RouteGroupedCase{9, 256, 8, 1, 1},
                                    {9, 256, 8, 8, 4},
                                    {9, 12, 3, 3, 2},
                                    {9, 8, 2, 2, 1},
                                    {9, 7, 7, 1, 1},
                                    {9, 1, 1, 1, 1},
                                    {9, 1024, 8, 512, 4},
                                    {9, 66, 5, 33, 3}}) {
    CheckRouteGroupedCase(c);
  }
  for (const int64_t hidden : {1, 100, 1024, 4096}) {
    CheckCombineCase(7, 2, hidden, 8);
    CheckCombineCase(3, 8, hidden, 3);
  }
  for (const int64_t tokens : {0, 1, 2, 8, 9, 16, 17, 33, 200}) {
    for (const bool row_a_slot : {false, true}) {
      CheckGroupedCase<Bf16>({8, tokens, 2, 200, 328, row_a_slot});
      CheckGroupedCase<float>({8, tokens, 2, 200, 328, row_a_slot});
      CheckGroupedCase<Bf16>({40, tokens, 8, 64, 512, row_a_slot});
      CheckGroupedCase<Bf16>({3, tokens, 1, 17, 72, row_a_slot});
      CheckGroupedCase<Bf16>({8, tokens, 2, 200, 328, row_a_slot},
                             cuda::SkinnyActivation::kSiluMul);
      CheckGroupedCase<Bf16>({40, tokens, 8, 64, 512, row_a_slot},
                             cuda::SkinnyActivation::kGeluMul);
      // The plain kernel.
      CheckGroupedCase<Bf16>({4, tokens, 3, 50, 77, row_a_slot});
      CheckGroupedCase<float>({4, tokens, 3, 50, 77, row_a_slot});
    }
  }
}

}  // namespace baton::check
