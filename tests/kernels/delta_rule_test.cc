// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/delta_attention.h"
#include "tests/kernels/state_testing.h"

namespace baton {
namespace {

// The inputs of DeltaRule: q, k and v side by side, as projections leave them.
struct DeltaInputs {
  DeltaInputs(DType dtype, int64_t tokens, int64_t heads, int64_t dim)
      : qkv(Random(dtype, {tokens, 3 * heads * dim}, 1)),
        decay(Random(dtype, {tokens, heads * dim}, 2, 2)),
        beta(Random(dtype, {tokens, heads}, 3, 2)),
        rate(Poisoned(DType::kF32, {heads})),
        bias(Random(DType::kF32, {heads, dim}, 4)) {
    for (int64_t h = 0; h < heads; ++h) {
      Put(rate.view(), h, 0, 0.3f + 0.5f * static_cast<float>(h));
    }
  }
  [[nodiscard]] int64_t tokens() const { return qkv.shape()[0]; }
  [[nodiscard]] int64_t heads() const { return bias.shape()[0]; }
  [[nodiscard]] int64_t dim() const { return bias.shape()[1]; }
  [[nodiscard]] int64_t bytes() const { return heads() * dim() * dim() * 4; }
  [[nodiscard]] View Part(int64_t i, int64_t begin, int64_t end) const {
    const int64_t width = heads() * dim();
    return qkv.view()
        .Rows(begin, end)
        .Columns(i * width, (i + 1) * width)
        .Heads(heads());
  }
  [[nodiscard]] DeltaRule::Args Args(int64_t begin, int64_t end,
                                     const StateSlots& states,
                                     const AttentionBatch* batch,
                                     View out) const {
    return {.q = Part(0, begin, end),
            .k = Part(1, begin, end),
            .v = Part(2, begin, end),
            .decay = decay.view().Rows(begin, end).Heads(heads()),
            .beta = beta.view().Rows(begin, end),
            .rate = rate.view(),
            .decay_bias = bias.view(),
            .states = states,
            .batch = batch,
            .out = out};
  }

  Tensor qkv, decay, beta, rate, bias;
};

struct DeltaResult {
  Tensor out;
  Tensor state;  // [heads, dim * dim]
};

class DeltaRuleTest : public IsaTest {
 protected:
  static DeltaResult Run(Machine& machine, const DeltaInputs& in,
                         int64_t chunk) {
    Slots slots(3, in.bytes());
    slots.Clear(2);
    DeltaResult result = {
        Poisoned(in.qkv.dtype(), {in.tokens(), in.heads(), in.dim()}),
        Poisoned(DType::kF32, {in.heads(), in.dim() * in.dim()})};
    InChunks(in.tokens(), chunk, 2, [&](auto begin, auto end, auto* batch) {
      EXPECT_TRUE(
          machine
              .Run<DeltaRule>(in.qkv.dtype(),
                              in.Args(begin, end, slots.states(), batch,
                                      result.out.view().Rows(begin, end)))
              .ok());
    });
    std::memcpy(result.state.view().data(), slots.Slot(2).data(),
                static_cast<size_t>(in.bytes()));
    return result;
  }
};
BATON_FOR_EACH_ISA(DeltaRuleTest);

// In double, from the formulas, for one head.
Doubles PlainDelta(const DeltaInputs& in, int64_t head, Doubles& state) {
  const int64_t dim = in.dim();
  const auto n = static_cast<size_t>(dim);
  const int64_t width = in.heads() * dim;
  Doubles out;
  state.assign(n * n, 0);
  for (int64_t t = 0; t < in.tokens(); ++t) {
    const auto part = [&](int64_t i) {
      Doubles x;
      for (int64_t d = 0; d < dim; ++d) {
        x.push_back(D(in.qkv, t, i * width + head * dim + d));
      }
      return x;
    };
    Doubles q = part(0), k = part(1);
    const Doubles v = part(2);
    for (Doubles* x : {&q, &k}) {
      double squares = 1e-6;
      for (const double e : *x) squares += e * e;
      for (double& e : *x) e /= std::sqrt(squares);
    }
    for (double& e : q) e /= std::sqrt(static_cast<double>(dim));
    for (size_t d = 0; d < n; ++d) {
      const int64_t at = static_cast<int64_t>(d);
      const double z = D(in.decay, t, head * dim + at) + D(in.bias, head, at);
      const double a = std::exp(-D(in.rate, head, 0) * std::log1p(std::exp(z)));
      for (size_t j = 0; j < n; ++j) state[d * n + j] *= a;
    }
    for (size_t j = 0; j < n; ++j) {
      double predicted = 0, sum = 0;
      for (size_t d = 0; d < n; ++d) predicted += k[d] * state[d * n + j];
      const double update = SigmoidOf(D(in.beta, t, head)) * (v[j] - predicted);
      for (size_t d = 0; d < n; ++d) {
        state[d * n + j] += k[d] * update;
        sum += q[d] * state[d * n + j];
      }
      out.push_back(sum);
    }
  }
  return out;
}

TEST_P(DeltaRuleTest, IsTheRecurrence) {
  constexpr int64_t kSizes[][2] = {{1, 1}, {2, 5}, {3, 16}, {2, 70}, {1, 128}};
  for (const DType dtype : kFloatTypes) {
    for (const auto& [heads, dim] : kSizes) {
      const DeltaInputs in(dtype, 35, heads, dim);
      const DeltaResult result = Run(machine(), in, 35);
      for (int64_t h = 0; h < heads; ++h) {
        Doubles state;
        const Doubles want = PlainDelta(in, h, state);
        for (int64_t t = 0; t < 35; ++t) {
          for (int64_t j = 0; j < dim; ++j) {
            const double w = want[static_cast<size_t>(t * dim + j)];
            ASSERT_NEAR(At(result.out.view(), t, h * dim + j), w,
                        std::abs(w) * Tolerance(dtype) + 2e-6)
                << "head " << h << " row " << t;
          }
        }
        for (size_t i = 0; i < state.size(); ++i) {
          ASSERT_NEAR(At(result.state.view(), h, static_cast<int64_t>(i)),
                      state[i], 1e-5);
        }
      }
    }
  }
}

// Worked out by hand in double precision. Rows of the state are key dimensions.
TEST_P(DeltaRuleTest, GivesTheValuesOfAWorkedExample) {
  DeltaInputs in(DType::kF32, 4, 1, 2);
  in.qkv =
      Filled(DType::kF32, {4, 6}, {0.5f, 1,    1,     0.5f, 0.3f, -0.2f,  //
                                   1.5f, .25f, -0.5f, 1,    1,    0.5f,   //
                                   -.75, 0.5f, 0.25f, .75f, -1,   2,      //
                                   0.1f, 2,    2,     -1,   0.7f, 0.1f});
  in.decay = Filled(DType::kF32, {4, 2}, {-1, 0.5f, 0, 2, 1, -2, 0.3f, -0.3f});
  in.beta = Filled(DType::kF32, {4, 1}, {0, 1, -1, 2});
  in.rate = Filled(DType::kF32, {1}, {std::exp(0.2f)});
  in.bias = Filled(DType::kF32, {1, 2}, {0.1f, -0.4f});
  const DeltaResult result = Run(machine(), in, 4);
  const Tensor out =
      Filled(DType::kF32, {4, 1, 2},
             {0.0848527459f, -0.0565684972f, -0.1160862727f, -0.0999700291f,
              0.1895046721f, 0.2192497351f, -0.1154574740f, 0.2486878328f});
  const Tensor state =
      Filled(DType::kF32, {1, 4},
             {0.5783888206f, 0.2462806025f, -0.1924049615f, 0.3398230675f});
  ExpectNear(result.out.view(), out.view(), 0, 2e-6f);
  ExpectNear(result.state.view(), state.view(), 0, 2e-6f);
}

// Runs of rows are prepared together: 16 and multiples are the edges.
TEST_P(DeltaRuleTest, GivesARowTheSameBitsInAnyChunk) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t dim : {20, 128}) {
      const DeltaInputs in(dtype, 49, 2, dim);
      const DeltaResult whole = Run(machine(), in, 49);
      for (const int64_t chunk : {1, 7, 16, 17, 48}) {
        const DeltaResult part = Run(machine(), in, chunk);
        EXPECT_TRUE(SameBits(part.out.view(), whole.out.view()))
            << Name(dtype) << " chunk " << chunk << " dim " << dim;
        EXPECT_TRUE(SameBits(part.state.view(), whole.state.view()));
      }
    }
  }
}

TEST_P(DeltaRuleTest, GivesTheSameBitsBesideOthersOnAnyNumberOfThreads) {
  const DeltaInputs in(DType::kBF16, 30, 3, 24);
  for (const int threads : {1, 3}) {
    Machine several(GetParam(), threads);
    Slots slots(4, in.bytes());
    for (const int32_t slot : {0, 1, 3}) slots.Clear(slot);
    SequenceSpan spans[] = {{0, 11, 0, {}}, {11, 1, 0, {}}, {12, 18, 0, {}}};
    spans[0].state_slot = 3;
    spans[1].state_slot = 0;
    spans[2].state_slot = 1;
    const AttentionBatch batch = {spans, {}, {}};
    const Tensor all = Poisoned(DType::kBF16, {30, 3, 24});
    ASSERT_TRUE(several
                    .Run<DeltaRule>(DType::kBF16, in.Args(0, 30, slots.states(),
                                                          &batch, all.view()))
                    .ok());
    for (SequenceSpan span : spans) {
      const int64_t begin = span.first_row, end = begin + span.rows;
      Slots own(1, in.bytes());
      own.Clear(0);
      span.first_row = 0;
      span.state_slot = 0;
      const AttentionBatch one = {{&span, 1}, {}, {}};
      const Tensor alone = Poisoned(DType::kBF16, {span.rows, 3, 24});
      ASSERT_TRUE(machine()
                      .Run<DeltaRule>(
                          DType::kBF16,
                          in.Args(begin, end, own.states(), &one, alone.view()))
                      .ok());
      EXPECT_TRUE(SameBits(alone.view(), all.view().Rows(begin, end)));
    }
  }
}

// exp(-rate * softplus(z)) of extreme z: nothing is forgotten, or everything.
TEST_P(DeltaRuleTest, TakesExtremeGates) {
  DeltaInputs in(DType::kF32, 2, 1, 4);
  in.decay = Filled(DType::kF32, {2, 4}, {0, 0, 0, 0, -2e3, 2e3, -2e3, 2e3});
  in.beta = Filled(DType::kF32, {2, 1}, {200, -200});
  const DeltaResult both = Run(machine(), in, 2);
  for (int64_t i = 0; i < 16; ++i) {
    const float s = At(both.state.view(), 0, i);
    EXPECT_TRUE(std::isfinite(s));
    EXPECT_EQ(std::abs(s) < 1e-30f, i / 4 % 2 == 1)
        << "key dimension " << i / 4;
  }
}

TEST_P(DeltaRuleTest, TakesZeroRows) {
  const DeltaInputs in(DType::kF32, 0, 2, 3);
  EXPECT_EQ(Run(machine(), in, 1).out.shape()[0], 0);
}

TEST_P(DeltaRuleTest, RefusesShapesThatDoNotFit) {
  const DeltaInputs in(DType::kF32, 2, 2, 4);
  const Slots slots(1, in.bytes());
  SequenceSpan span = {0, 2, 0, {}};
  span.state_slot = 0;
  const AttentionBatch batch = {{&span, 1}, {}, {}};
  const Tensor out = Poisoned(DType::kF32, {2, 2, 4});
  const DeltaRule::Args good =
      in.Args(0, 2, slots.states(), &batch, out.view());
  DeltaRule::Args wrong[] = {good, good, good, good};
  wrong[0].beta = in.decay.view();
  wrong[1].decay = in.decay.view().Rows(0, 1).Heads(2);
  wrong[2].rate = in.bias.view();
  wrong[3].states.slot_bytes = in.bytes() - 4;
  for (const DeltaRule::Args& args : wrong) {
    EXPECT_EQ(machine().Run<DeltaRule>(DType::kF32, args).code(),
              StatusCode::kInvalidArgument);
  }
}

TEST_P(DeltaRuleTest, NormedIsTheRuleWithTheNormBehindIt) {
  for (const DType dtype : kFloatTypes) {
    const DeltaInputs in(dtype, 5, 2, 20);
    const Tensor gate = Random(dtype, {5, 40}, 6, 3);
    const Tensor weight = Random(DType::kF32, {20}, 7);
    const DeltaResult apart = Run(machine(), in, 3);
    const View heads = apart.out.view();
    ASSERT_TRUE(
        machine()
            .Run<GatedRmsNorm>(dtype, {heads, weight.view(),
                                       gate.view().Heads(2), heads, 0.02f})
            .ok());
    Slots slots(3, in.bytes());
    slots.Clear(2);
    const Tensor joined = Poisoned(dtype, {5, 2, 20});
    InChunks(5, 2, 2, [&](auto begin, auto end, auto* batch) {
      EXPECT_TRUE(machine()
                      .Run<DeltaRuleNormed>(
                          dtype, {in.Args(begin, end, slots.states(), batch,
                                          joined.view().Rows(begin, end)),
                                  weight.view(),
                                  gate.view().Rows(begin, end).Heads(2), 0.02f})
                      .ok());
    });
    EXPECT_TRUE(SameBits(joined.view(), heads));
    EXPECT_EQ(std::memcmp(slots.Slot(2).data(), apart.state.view().data(),
                          static_cast<size_t>(in.bytes())),
              0);
  }
}

}  // namespace
}  // namespace baton
