// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/delta_rows.h"
#include "kernels/cuda/delta_rule.h"
#include "tests/device/check_conv.cuh"
#include "tests/device/check_conv_and_heads.cuh"
#include "tests/device/check_sequences.cuh"

namespace baton::check {

// ---- Delta rule ------------------------------------------------------------

struct DeltaCase {
  int64_t dim, heads, pad;
};

// Inputs and the state of all sequences of a set; q, k, v beside each other.
struct DeltaRun {
  const DeltaCase& c;
  const SequenceSet& set;
  int64_t wide, stride, slot_bytes;
  std::vector<Bf16> qkv, decay, beta;
  std::vector<float> rate, bias;
  Device<Bf16> dqkv, ddecay, dbeta, out;
  Device<float> drate, dbias;
  Device<float> slots;

  DeltaRun(const DeltaCase& of, const SequenceSet& sequences)
      : c(of),
        set(sequences),
        wide(c.heads * c.dim),
        stride(3 * wide + c.pad),
        slot_bytes(wide * c.dim * 4 + 64),
        qkv(RandomBf16(set.rows() * stride, 11)),
        decay(RandomBf16(set.rows() * (wide + c.pad), 12, 2.0f)),
        beta(RandomBf16(set.rows() * (c.heads + 3), 13, 2.0f)),
        rate(Floats(c.heads, 14, 0.5f)),
        bias(Floats(wide, 15, 1.0f)),
        dqkv(qkv),
        ddecay(decay),
        dbeta(beta),
        out(set.rows() * (wide + c.pad)),
        drate(rate),
        dbias(bias),
        slots((static_cast<int64_t>(set.lengths.size()) + 1) * slot_bytes / 4) {
  }

  // |normal|, so that rates are rates.
  static std::vector<float> Floats(int64_t count, uint32_t seed, float scale) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(count);
    for (float& v : values) v = std::abs(normal(random)) + 0.01f;
    return values;
  }
  [[nodiscard]] cuda::DeltaRuleArgs Args(const cuda::Sequences& sequences,
                                         int64_t rows) const {
    const Bf16* q = dqkv.data();
    return {{q, stride},
            {q + wide, stride},
            {q + 2 * wide, stride},
            {ddecay.data(), wide + c.pad},
            {dbeta.data(), c.heads + 3},
            drate.data(),
            dbias.data(),
            {slots.data(), slot_bytes},
            sequences,
            out.data(),
            wide + c.pad,
            rows,
            c.heads,
            c.dim};
  }
  void Run(const cuda::Sequences& sequences, int64_t rows) {
    CUDA_OK(cuda::DeltaRule(Args(sequences, rows), nullptr));
  }
};

// 150 tokens, each of which may be off by a few units of fp32.
inline constexpr double kDeltaError = 4e-5;

// One head of one sequence from a state of zeros, in double; tolerances scale
// with the sums of magnitudes.
inline void ReferenceHead(const DeltaRun& run, size_t s, int64_t head,
                          std::vector<double>& want,
                          std::vector<double>& tolerance,
                          std::vector<double>& state) {
  const int64_t dim = run.c.dim;
  state.assign(dim * dim, 0.0);
  std::vector<double> q(dim), k(dim), a(dim);
  for (int t = 0; t < run.set.lengths[s]; ++t) {
    const int64_t row = run.set.FirstRow(s) + t;
    const Bf16* from = run.qkv.data() + row * run.stride + head * dim;
    double q_squares = 1e-6, k_squares = 1e-6;
    for (int64_t d = 0; d < dim; ++d) {
      q[d] = ToFloat(from[d]);
      k[d] = ToFloat(from[run.wide + d]);
      q_squares += q[d] * q[d];
      k_squares += k[d] * k[d];
      const double z =
          double(ToFloat(
              run.decay[row * (run.wide + run.c.pad) + head * dim + d])) +
          run.bias[head * dim + d];
      a[d] = std::exp(-run.rate[head] *
                      (std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)))));
    }
    for (int64_t d = 0; d < dim; ++d) {
      q[d] /= std::sqrt(q_squares) * std::sqrt(double(dim));
      k[d] /= std::sqrt(k_squares);
    }
    const double beta =
        1 / (1 + std::exp(-ToFloat(run.beta[row * (run.c.heads + 3) + head])));
    for (int64_t j = 0; j < dim; ++j) {
      double predicted = 0;
      for (int64_t d = 0; d < dim; ++d) {
        state[d * dim + j] *= a[d];
        predicted += k[d] * state[d * dim + j];
      }
      const double update =
          beta * (ToFloat(from[2 * run.wide + j]) - predicted);
      double out = 0, magnitude = 0;
      for (int64_t d = 0; d < dim; ++d) {
        state[d * dim + j] += k[d] * update;
        out += q[d] * state[d * dim + j];
        magnitude += std::abs(q[d] * state[d * dim + j]);
      }
      const int64_t at = row * run.wide + head * dim + j;
      want[at] = out;
      tolerance[at] = kHalfUlp * std::abs(out) + kDeltaError * magnitude + 1e-6;
    }
  }
}

inline void ExpectDeltaValues(const DeltaRun& run, const std::string& what,
                              const std::vector<Bf16>& got) {
  std::vector<double> want(run.set.rows() * run.wide);
  std::vector<double> tolerance(want.size());
  const std::vector<float> slots = run.slots.Download();
  const auto sequences = static_cast<int64_t>(run.set.lengths.size());
  std::vector<double> worst(sequences * run.c.heads);
  Parallel(sequences * run.c.heads, [&](int64_t i) {
    const auto s = static_cast<size_t>(i / run.c.heads);
    const int64_t head = i % run.c.heads;
    std::vector<double> state;
    ReferenceHead(run, s, head, want, tolerance, state);
    const float* slot = slots.data() + run.set.slots[s] * run.slot_bytes / 4 +
                        head * run.c.dim * run.c.dim;
    double largest = 1e-3;
    for (const double x : state) largest = std::max(largest, std::abs(x));
    for (size_t e = 0; e < state.size(); ++e) {
      const double error = std::abs(slot[e] - state[e]) / largest;
      if (!(error <= worst[i])) worst[i] = std::isnan(error) ? 1e30 : error;
    }
  });
  std::vector<Bf16> dense;
  bool padding = true;
  const int64_t out_stride = run.wide + run.c.pad;
  for (int64_t row = 0; row < run.set.rows(); ++row) {
    dense.insert(dense.end(), got.begin() + row * out_stride,
                 got.begin() + row * out_stride + run.wide);
    padding &= IsPoison(got, row * out_stride + run.wide, run.c.pad);
  }
  ExpectClose(what, dense, want, tolerance);
  const double error = *std::max_element(worst.begin(), worst.end());
  Expect(error < kDeltaError, what + Name(" states are off by %g", error));
  Expect(padding && run.out.GuardsHold() && run.slots.GuardsHold(),
         what + " guards");
}

inline void CheckDeltaCase(const DeltaCase& c,
                           const std::vector<int>& lengths = SetLengths()) {
  const std::string what =
      Name("delta_rule dim %d heads %d pad %d", static_cast<int>(c.dim),
           static_cast<int>(c.heads), static_cast<int>(c.pad));
  const SequenceSet set(lengths);
  DeltaRun run(c, set);
  const auto submit = [&](const cuda::Sequences& sequences, int64_t rows) {
    run.Run(sequences, rows);
  };
  run.slots.Zero();
  InChunks(set, 1 << 20, submit);
  const std::vector<Bf16> got = run.out.Download();
  const std::vector<float> states = run.slots.Download();
  ExpectDeltaValues(run, what, got);
  for (const int chunk : {1, 7, 8, 64}) {
    run.slots.Zero();
    run.out.Poison();
    InChunks(set, chunk, submit);
    Expect(run.out.Download() == got, what + Name(" in chunks of %d", chunk));
    const std::vector<float> again = run.slots.Download();
    Expect(std::memcmp(again.data(), states.data(), states.size() * 4) == 0,
           what + Name(" states in chunks of %d", chunk));
  }
  // A recorded visit: second rows, and a row of nobody, which begins with
  // zeros and keeps nothing.
  run.slots.Zero();
  run.out.Poison();
  const std::vector<cuda::SequenceRows> first = set.Part(0, 1);
  const Device<cuda::SequenceRows> dfirst(first);
  run.Run({dfirst.data(), static_cast<int64_t>(first.size())}, RowsOf(first));
  const std::vector<cuda::SequenceRows> part = RecordedPart(set);
  const Device<cuda::SequenceRows> dpart(part);
  run.Run({dpart.data(), static_cast<int64_t>(part.size())}, RowsOf(part));
  const std::vector<Bf16> recorded = run.out.Download();
  const int64_t out_stride = run.wide + c.pad;
  bool same = SameBits(recorded, 0, got, 0, run.wide);  // nobody's
  for (const cuda::SequenceRows& s : part) {
    const int64_t at = s.first_row * out_stride;
    if (s.state_slot >= 0) same &= SameBits(recorded, at, got, at, run.wide);
  }
  Expect(same && run.slots.GuardsHold(), what + " with sequences of nobody");
}

// ---- Gated norm ------------------------------------------------------------

inline void CheckGatedNormCase(int64_t rows, int64_t heads, int64_t dim,
                               int64_t pad) {
  const std::string what =
      Name("gated_norm rows %d heads %d dim %d", static_cast<int>(rows),
           static_cast<int>(heads), static_cast<int>(dim));
  const int64_t wide = heads * dim;
  const int64_t stride = wide + pad;
  const std::vector<Bf16> x = RandomBf16(rows * stride, 1, 2.0f);
  const std::vector<Bf16> gate = RandomBf16(rows * stride, 2, 3.0f);
  const std::vector<float> weight = DeltaRun::Floats(dim, 3, 1.0f);
  const Device<Bf16> dx(x);
  const Device<Bf16> dgate(gate);
  const Device<float> dweight(weight);
  const auto run = [&](const Bf16* from, const Bf16* with, Bf16* to,
                       int64_t count) {
    CUDA_OK(cuda::GatedNormRows({from, stride, dweight.data(), with, stride, to,
                                 stride, count, heads, dim, 1e-5f},
                                nullptr));
  };
  const Device<Bf16> out(rows * stride);
  run(dx.data(), dgate.data(), out.data(), rows);
  const std::vector<Bf16> got = out.Download();
  std::vector<double> want, tolerance;
  std::vector<Bf16> dense;
  for (int64_t unit = 0; unit < rows * heads; ++unit) {
    const int64_t at = unit / heads * stride + unit % heads * dim;
    double squares = 0;
    for (int64_t d = 0; d < dim; ++d) {
      squares += double(ToFloat(x[at + d])) * ToFloat(x[at + d]);
    }
    const double factor = 1 / std::sqrt(squares / double(dim) + 1e-5);
    for (int64_t d = 0; d < dim; ++d) {
      want.push_back(weight[d] * ToFloat(x[at + d]) * factor /
                     (1 + std::exp(-ToFloat(gate[at + d]))));
      tolerance.push_back(kHalfUlp * std::abs(want.back()) + 1e-6);
      dense.push_back(got[at + d]);
    }
  }
  ExpectClose(what, dense, want, tolerance);
  bool padding = out.GuardsHold();
  for (int64_t row = 0; row < rows; ++row) {
    padding &= IsPoison(got, row * stride + wide, pad);
  }
  Expect(padding, what + " guards");
  // In place, and the last row alone.
  run(dx.data() + (rows - 1) * stride, dgate.data() + (rows - 1) * stride,
      dx.data() + (rows - 1) * stride, 1);
  Expect(SameBits(dx.Download(), (rows - 1) * stride, got, (rows - 1) * stride,
                  wide),
         what + " alone, in place");
}

// ---- Both ------------------------------------------------------------------

// What all rows of a set get, one of each sequence at a time, then second rows
// again as a recorded visit has them.
struct NormedResult {
  std::vector<Bf16> out, recorded;
  std::vector<float> states;
};

// `submit` computes rows of `run` with the norm: each sequence has one or none.
inline NormedResult RunNormed(
    DeltaRun& run,
    const std::function<void(const cuda::DeltaRuleArgs&)>& submit) {
  const auto visit = [&](const cuda::Sequences& sequences, int64_t rows) {
    submit(run.Args(sequences, rows));
  };
  NormedResult result;
  run.slots.Zero();
  run.out.Poison();
  InChunks(run.set, 1, visit);
  result.out = run.out.Download();
  result.states = run.slots.Download();
  run.slots.Zero();
  run.out.Poison();
  const std::vector<cuda::SequenceRows> part = RecordedPart(run.set);
  const Device<cuda::SequenceRows> dpart(part);
  visit({dpart.data(), static_cast<int64_t>(part.size())}, RowsOf(part));
  result.recorded = run.out.Download();
  return result;
}

inline void CheckDeltaNormedCase(const DeltaCase& c,
                                 const std::vector<int>& lengths) {
  const std::string what =
      Name("delta_rule_normed heads %d pad %d sequences %d",
           static_cast<int>(c.heads), static_cast<int>(c.pad),
           static_cast<int>(lengths.size()));
  const SequenceSet set(lengths);
  DeltaRun run(c, set);
  const int64_t gate_stride = 2 * run.wide + 3;
  const Device<Bf16> gate(RandomBf16(set.rows() * gate_stride, 21, 3.0f));
  const Device<float> weight(DeltaRun::Floats(c.dim, 22, 1.0f));
  const auto norm = [&](const cuda::DeltaRuleArgs& rule) {
    return cuda::GatedNormArgs{
        rule.out, rule.out_stride, weight.data(), gate.data(), gate_stride,
        rule.out, rule.out_stride, set.rows(),    rule.heads,  rule.dim,
        1e-5f};
  };
  // Rows that no sequence has are poison, of which the norm makes NaN: rows are
  // copied behind it.
  const NormedResult apart =
      RunNormed(run, [&](const cuda::DeltaRuleArgs& rule) {
        const std::vector<Bf16> before = run.out.Download();
        run.out.Poison();
        CUDA_OK(cuda::DeltaRule(rule, nullptr));
        CUDA_OK(cudaDeviceSynchronize());
        const std::vector<Bf16> ruled = run.out.Download();
        CUDA_OK(cuda::GatedNormRows(norm(rule), nullptr));
        CUDA_OK(cudaDeviceSynchronize());
        std::vector<Bf16> normed = run.out.Download();
        for (int64_t row = 0; row < set.rows(); ++row) {
          const int64_t at = row * rule.out_stride;
          if (!IsPoison(ruled, at, run.wide)) continue;
          std::copy_n(before.begin() + at, run.wide, normed.begin() + at);
        }
        run.out.Upload(normed);
      });
  const NormedResult joined =
      RunNormed(run, [&](const cuda::DeltaRuleArgs& rule) {
        CUDA_OK(cuda::DeltaRuleNormed(rule, norm(rule), nullptr));
        CUDA_OK(cudaDeviceSynchronize());
      });
  Expect(joined.out == apart.out, what);
  Expect(joined.recorded == apart.recorded, what + " recorded");
  Expect(SameBits(joined.states, 0, apart.states, 0,
                  static_cast<int64_t>(joined.states.size())),
         what + " states");
  Expect(run.out.GuardsHold() && run.slots.GuardsHold(), what + " guards");
}

inline void CheckDelta() {
  CheckConv();
  CheckConvAndHeads();
  for (const DeltaCase& c : {DeltaCase{128, 3, 8},
                             {128, 1, 3},
                             {20, 3, 5},
                             {36, 2, 8},
                             {64, 2, 8},
                             {200, 1, 8},
                             {1, 1, 8}}) {
    CheckDeltaCase(c);
  }
  for (const int64_t dim : {1, 8, 20, 36, 100, 128, 200, 256, 1000, 1024}) {
    CheckGatedNormCase(3, 5, dim, 8);
    CheckGatedNormCase(17, 32, dim, dim % 2);
  }
  CheckDeltaNormedCase({128, 32, 8}, {9});
  CheckDeltaNormedCase({128, 3, 8}, SetLengths());
  CheckDeltaNormedCase({128, 32, 4}, std::vector<int>(64, 2));
  // Zero rows touch nothing.
  CUDA_OK(cuda::DeltaRule({.rows = 0, .heads = 2, .dim = 128}, nullptr));
  CUDA_OK(cuda::GatedNormRows({.rows = 0, .heads = 2, .dim = 8}, nullptr));
  // Other heads have no kernel for both.
  Expect(cuda::DeltaRuleNormed({.rows = 1, .heads = 2, .dim = 64}, {},
                               nullptr) == cudaErrorNotSupported,
         "delta_rule_normed of other heads");
}

}  // namespace baton::check
