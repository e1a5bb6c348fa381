// SPDX-License-Identifier: Apache-2.0
// GroupedPromptMatmul against plain loops in fp64, and the bits of a row beside
// other rows, at other places and in other calls.
#pragma once

#include "tests/device/check_experts.cuh"

namespace baton::check {

// How slots are dealt to experts.
enum class Deal {
  kMixed,  // ChooseExperts
  kOne,    // all to one expert
  kEnds,   // to the first and the last: none to those between
};

struct GroupedPromptCase {
  GroupedCase shape;
  Deal deal;
};

inline std::vector<int32_t> ExpertsOf(const GroupedPromptCase& c) {
  if (c.deal == Deal::kMixed) return ChooseExperts(c.shape);
  const auto last = static_cast<int32_t>(c.shape.experts - 1);
  std::vector<int32_t> experts(c.shape.slots(), last);
  if (c.deal == Deal::kEnds) {
    for (size_t i = 0; i < experts.size(); i += 3) experts[i] = 0;
  }
  return experts;
}

// One thread an element: want = x w^T and what its terms add up to without
// their signs, in fp64; both [slots, n].
static __global__ void GroupedReference(const Bf16* w, const Bf16* x,
                                        const int32_t* experts, GroupedCase c,
                                        double* want, double* spread) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= c.tokens * c.top * c.n) return;
  const int64_t slot = i / c.n;
  const int64_t ld = (c.k + 7) / 8 * 8;
  if (experts[slot] < 0) return;
  const Bf16* w_row = w + (experts[slot] * c.n + i % c.n) * ld;
  const Bf16* x_row = x + (c.row_a_slot ? slot : slot / c.top) * ld;
  double sum = 0;
  double sizes = 0;
  for (int64_t k = 0; k < c.k; ++k) {
    const double term = static_cast<double>(cuda::FromBf16(w_row[k])) *
                        cuda::FromBf16(x_row[k]);
    sum += term;
    sizes += fabs(term);
  }
  want[i] = sum;
  spread[i] = sizes;
}

class GroupedPromptCheck {
 public:
  explicit GroupedPromptCheck(const GroupedPromptCase& c)
      : c_(c.shape),
        ldo_(c_.n + 8),
        experts_(ExpertsOf(c)),
        x_(RandomBf16(c_.rows() * c_.ld(), 2)),
        w_(RandomBf16(c_.experts * c_.n * c_.ld(), 1)),
        weights_(w_.data(), c_.experts, c_.n, c_.k, c_.ld(), c_.halves),
        name_(NameOf(c.deal == Deal::kMixed ? "grouped prompt"
                     : c.deal == Deal::kOne ? "grouped prompt to one"
                                            : "grouped prompt to two",
                     c_)) {}

  void Run() const {
    std::vector<int64_t> tokens(c_.tokens);
    std::iota(tokens.begin(), tokens.end(), 0);
    const std::vector<Bf16> whole = Multiply<Bf16>(tokens);
    ExpectRight(whole);
    ExpectRight(Multiply<float>(tokens));
    // Other neighbours, other places.
    std::shuffle(tokens.begin(), tokens.end(), std::mt19937(4));
    ExpectBits(whole, tokens, "shuffled");
    // Calls of fewer tokens.
    for (const int64_t first : {int64_t{0}, c_.tokens / 3}) {
      for (const int64_t count : {1, 7, 64, 129}) {
        if (first + count > c_.tokens) continue;
        std::vector<int64_t> some(count);
        std::iota(some.begin(), some.end(), first);
        ExpectBits(whole, some, "a part");
      }
    }
  }

 private:
  // out [tokens.size() * top, ldo] of these tokens.
  template <typename T>
  [[nodiscard]] std::vector<T> Multiply(
      const std::vector<int64_t>& tokens) const {
    const int64_t token_rows = c_.row_a_slot ? c_.top : 1;
    const int64_t row = token_rows * c_.ld();
    std::vector<Bf16> x;
    std::vector<int32_t> experts;
    for (const int64_t t : tokens) {
      x.insert(x.end(), x_.begin() + t * row, x_.begin() + (t + 1) * row);
      experts.insert(experts.end(), experts_.begin() + t * c_.top,
                     experts_.begin() + (t + 1) * c_.top);
    }
    const auto count = static_cast<int64_t>(tokens.size());
    const int64_t slots = count * c_.top;
    const Device<Bf16> dx(x);
    const Device<int32_t> dexperts(experts);
    const Device<T> out(slots * ldo_);
    const Device<char> plan(cuda::GroupedPlanBytes(slots));
    const Device<char> scratch(
        cuda::GroupedPromptScratchBytes(weights_.weights()));
    CUDA_OK(cuda::GroupedPromptMatmul(
        weights_.weights(),
        {dx.data(), count * token_rows, c_.ld(), dexperts.data(), count, c_.top,
         c_.top, out.data(), ldo_, kOutOf<T>, plan.data(), scratch.data()},
        nullptr));
    const std::vector<T> got = out.Download();
    Expect(out.GuardsHold() && plan.GuardsHold() && scratch.GuardsHold(),
           name_ + " guards");
    return got;
  }

  // Beside the last rounding, fp32: of the tensor cores, which cut off what is
  // small beside the largest term of a step.
  template <typename T>
  void ExpectRight(const std::vector<T>& got) const {
    const Device<Bf16> x(x_);
    const Device<int32_t> experts(experts_);
    const Device<double> want(c_.slots() * c_.n), spread(c_.slots() * c_.n);
    const int64_t blocks = (c_.slots() * c_.n + 255) / 256;
    if (blocks > 0) {
      GroupedReference<<<static_cast<unsigned>(blocks), 256>>>(
          w_.data(), x.data(), experts.data(), c_, want.data(), spread.data());
    }
    const std::vector<double> wants = want.Download();
    const std::vector<double> spreads = spread.Download();
    double worst = 0;
    bool untouched = true;
    for (int64_t slot = 0; slot < c_.slots(); ++slot) {
      const bool exists = experts_[slot] >= 0;
      const int64_t at = slot * ldo_;
      untouched &=
          IsPoison(got, at + (exists ? c_.n : 0), ldo_ - (exists ? c_.n : 0));
      for (int64_t i = 0; exists && i < c_.n; ++i) {
        const double value = wants[slot * c_.n + i];
        const double rounding = sizeof(T) == 2 ? kHalfUlp * std::abs(value) : 0;
        const double error = std::abs(Value(got[at + i]) - value) /
                             (rounding + spreads[slot * c_.n + i] * 0x1p-19);
        if (!(error <= worst)) worst = std::isnan(error) ? 1e30 : error;
      }
    }
    Expect(worst <= 1, name_ + Name(": %.3g of the tolerance", worst));
    Expect(untouched, name_ + " stores elsewhere");
  }

  void ExpectBits(const std::vector<Bf16>& whole,
                  const std::vector<int64_t>& tokens, const char* how) const {
    const std::vector<Bf16> got = Multiply<Bf16>(tokens);
    const int64_t size = c_.top * ldo_;
    bool same = true;
    for (size_t i = 0; i < tokens.size(); ++i) {
      same &= SameBits(got, static_cast<int64_t>(i) * size, whole,
                       tokens[i] * size, size);
    }
    Expect(same, name_ + ": bits of " + how);
  }

  static double Value(Bf16 bits) { return ToFloat(bits); }
  static double Value(float x) { return x; }

  GroupedCase c_;
  int64_t ldo_;
  std::vector<int32_t> experts_;
  std::vector<Bf16> x_;
  Device<Bf16> w_;
  ExpertsOnDevice weights_;
  std::string name_;
};

inline void CheckGroupedPromptCase(const GroupedPromptCase& c) {
  GroupedPromptCheck(c).Run();
}

// What has no recipe of prompts is refused.
inline void CheckGroupedPromptRefusals() {
  const Device<Bf16> w(RandomBf16(int64_t{2} * 24 * 64, 1));
  const Device<int32_t> experts(std::vector<int32_t>{0, 1});
  const Device<Bf16> x(2 * 64), out(2 * 24);
  const Device<char> plan(cuda::GroupedPlanBytes(2));
  const cuda::GroupedArgs args = {
      x.data(), 2,          64, experts.data(),         2,          1,
      1,        out.data(), 24, cuda::SkinnyOut::kBf16, plan.data()};
  const auto refuses = [&](const cuda::GroupedWeights& weights,
                           const cuda::GroupedArgs& wrong) {
    return cuda::GroupedPromptMatmul(weights, wrong, nullptr) ==
           cudaErrorInvalidValue;
  };
  const ExpertsOnDevice weights(w.data(), 2, 24, 64, 64, 0);
  Expect(!refuses(weights.weights(), args), "grouped prompt takes what fits");
  cuda::GroupedArgs unaligned = args;
  unaligned.out = out.data() + 1;
  Expect(refuses(weights.weights(), unaligned), "grouped prompt, out off");
  unaligned = args;
  unaligned.ldx = 68;
  Expect(refuses(weights.weights(), unaligned), "grouped prompt, odd ldx");
  const ExpertsOnDevice odd_n(w.data(), 2, 23, 64, 64, 0);
  Expect(refuses(odd_n.weights(), args), "grouped prompt, odd n");
  const ExpertsOnDevice odd_k(w.data(), 2, 24, 63, 64, 0);
  Expect(refuses(odd_k.weights(), args), "grouped prompt, odd k");
  const ExpertsOnDevice halves(w.data(), 2, 24, 64, 64, 2);
  Expect(refuses(halves.weights(), args), "grouped prompt, no room for halves");
}

inline void CheckGroupedPrompts() {
  CheckGroupedPromptRefusals();
  for (const int64_t tokens : {0, 1, 2, 63, 64, 65, 128, 129, 500}) {
    for (const bool row_a_slot : {false, true}) {
      CheckGroupedPromptCase(
          {{8, tokens, 2, 264, 328, row_a_slot}, Deal::kMixed});
      CheckGroupedPromptCase(
          {{40, tokens, 8, 1032, 72, row_a_slot}, Deal::kMixed});
    }
    CheckGroupedPromptCase({{5, tokens, 1, 8, 8, false}, Deal::kOne});
    CheckGroupedPromptCase({{3, tokens, 3, 512, 256, true}, Deal::kEnds});
    CheckGroupedPromptCase({{3, tokens, 3, 520, 256, true, 2}, Deal::kEnds});
    CheckGroupedPromptCase({{8, tokens, 2, 264, 192, true, 2}, Deal::kMixed});
  }
  // Several bands of parts of one expert; many tiles of a block.
  CheckGroupedPromptCase({{2, 4500, 1, 776, 136, false}, Deal::kOne});
  CheckGroupedPromptCase({{7, 3001, 2, 520, 4096, false}, Deal::kMixed});
  CheckGroupedPromptCase({{256, 1024, 8, 512, 192, true}, Deal::kMixed});
  CheckGroupedPromptCase({{7, 3001, 2, 520, 4096, false, 2}, Deal::kMixed});
  CheckGroupedPromptCase({{64, 1024, 8, 776, 96, true, 2}, Deal::kMixed});
}

}  // namespace baton::check
