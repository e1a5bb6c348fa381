// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/delta_rows.h"
#include "tests/device/check_sequences.cuh"

namespace baton::check {

struct ConvCase {
  int64_t channels, taps, pad;
};

// Slots padded by 64 bytes; those past the sequences' are nobody's.
struct ConvRun {
  const ConvCase& c;
  const SequenceSet& set;
  int64_t stride, slot_bytes;
  Device<Bf16> x, out;
  Device<float> weight;
  Device<char> slots;

  ConvRun(const ConvCase& of, const SequenceSet& sequences)
      : c(of),
        set(sequences),
        stride(c.channels + c.pad),
        slot_bytes(((c.taps - 1) * c.channels * 2 + 127) / 64 * 64),
        x(RandomBf16(set.rows() * stride, 1)),
        out(set.rows() * stride),
        weight(c.taps * c.channels),
        slots((static_cast<int64_t>(set.lengths.size()) + 1) * slot_bytes) {}

  [[nodiscard]] cuda::ShortConvArgs Args(const cuda::Sequences& sequences,
                                         int64_t rows) const {
    return {x.data(),
            stride,
            weight.data(),
            c.channels,
            {slots.data(), slot_bytes},
            sequences,
            out.data(),
            stride,
            rows,
            c.channels,
            c.taps};
  }
  void Run(const cuda::Sequences& sequences, int64_t rows) {
    CUDA_OK(cuda::ShortConvRows(Args(sequences, rows), nullptr));
  }
  // Slots hold the last rows of their sequences.
  [[nodiscard]] bool SlotsHoldLastRows() const {
    const std::vector<char> got = slots.Download();
    const std::vector<Bf16> rows = x.Download();
    bool same = true;
    for (size_t s = 0; s < set.lengths.size(); ++s) {
      const char* slot = got.data() + set.slots[s] * slot_bytes;
      for (int64_t i = 0; i < c.taps - 1; ++i) {
        const int64_t row = set.lengths[s] - (c.taps - 1) + i;
        const std::vector<Bf16> zeros(c.channels, 0);
        const Bf16* want = row < 0
                               ? zeros.data()
                               : rows.data() + (set.FirstRow(s) + row) * stride;
        same &= std::memcmp(slot + i * c.channels * 2, want,
                            static_cast<size_t>(c.channels) * 2) == 0;
      }
    }
    return same;
  }
};

inline std::vector<float> RandomTaps(const ConvCase& c) {
  std::vector<float> weight(c.taps * c.channels);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 0.7f);
  for (float& w : weight) w = normal(random);
  return weight;
}

inline void ExpectConvValues(const ConvRun& run, const std::string& what,
                             const std::vector<float>& weight,
                             const std::vector<Bf16>& got) {
  const std::vector<Bf16> x = run.x.Download();
  const ConvCase& c = run.c;
  std::vector<double> want, tolerance;
  std::vector<Bf16> dense;
  bool padding = true;
  for (size_t s = 0; s < run.set.lengths.size(); ++s) {
    const int first = run.set.FirstRow(s);
    for (int t = 0; t < run.set.lengths[s]; ++t) {
      for (int64_t i = 0; i < c.channels; ++i) {
        double sum = 0, magnitude = 0;
        for (int64_t w = 0; w < c.taps; ++w) {
          const int64_t row = t - (c.taps - 1) + w;
          if (row < 0) continue;
          const double product = double(weight[w * c.channels + i]) *
                                 ToFloat(x[(first + row) * run.stride + i]);
          sum += product;
          magnitude += std::abs(product);
        }
        want.push_back(sum / (1 + std::exp(-sum)));
        tolerance.push_back(kHalfUlp * std::abs(want.back()) +
                            1e-6 * magnitude + 1e-6);
        dense.push_back(got[(first + t) * run.stride + i]);
      }
      padding &= IsPoison(got, (first + t) * run.stride + c.channels, c.pad);
    }
  }
  ExpectClose(what, dense, want, tolerance);
  Expect(padding && run.out.GuardsHold() && run.slots.GuardsHold(),
         what + " guards");
}

inline void CheckConvCase(const ConvCase& c,
                          const std::vector<int>& lengths = SetLengths()) {
  const std::string what =
      Name("short_conv channels %d taps %d", static_cast<int>(c.channels),
           static_cast<int>(c.taps));
  const SequenceSet set(lengths);
  ConvRun run(c, set);
  const std::vector<float> weight = RandomTaps(c);
  run.weight.Upload(weight);
  const auto submit = [&](const cuda::Sequences& sequences, int64_t rows) {
    run.Run(sequences, rows);
  };
  run.slots.Zero();
  InChunks(set, 1 << 20, submit);
  const std::vector<Bf16> got = run.out.Download();
  ExpectConvValues(run, what, weight, got);
  Expect(run.SlotsHoldLastRows(), what + " slots");
  for (const int chunk : {1, 2, 7, 32, 33}) {
    run.slots.Zero();
    run.out.Poison();
    InChunks(set, chunk, submit);
    Expect(run.out.Download() == got && run.SlotsHoldLastRows(),
           what + Name(" in chunks of %d", chunk));
  }
  // A recorded visit: second rows, and rows of nobody.
  run.slots.Zero();
  run.out.Poison();
  const std::vector<cuda::SequenceRows> first = set.Part(0, 1);
  const Device<cuda::SequenceRows> dfirst(first);
  run.Run({dfirst.data(), static_cast<int64_t>(first.size())}, RowsOf(first));
  const std::vector<char> before = run.slots.Download();
  const std::vector<cuda::SequenceRows> part = RecordedPart(set);
  const Device<cuda::SequenceRows> dpart(part);
  run.Run({dpart.data(), static_cast<int64_t>(part.size())}, RowsOf(part));
  const std::vector<Bf16> recorded = run.out.Download();
  bool same = SameBits(recorded, 0, got, 0, c.channels);  // nobody's
  for (const cuda::SequenceRows& s : part) {
    const int64_t at = s.first_row * run.stride;
    if (s.state_slot >= 0) same &= SameBits(recorded, at, got, at, c.channels);
  }
  const std::vector<char> after = run.slots.Download();
  const size_t last = set.lengths.size() * run.slot_bytes;
  same &= std::equal(after.begin() + last, after.end(), before.begin() + last);
  Expect(same, what + " with sequences of nobody");
}

inline void CheckConv() {
  for (const ConvCase& c : {ConvCase{12288, 4, 8},
                            {1032, 4, 8},
                            {216, 3, 74},
                            {180, 4, 43},
                            {8, 1, 0},
                            {24, 2, 8},
                            {40, 8, 8}}) {
    CheckConvCase(c);
  }
  CUDA_OK(cuda::ShortConvRows({.rows = 0, .channels = 8, .taps = 4}, nullptr));
}

}  // namespace baton::check
