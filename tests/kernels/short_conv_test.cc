// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/delta_attention.h"
#include "tests/kernels/state_testing.h"

namespace baton {
namespace {

class ShortConvTest : public IsaTest {
 protected:
  static int64_t Bytes(const Tensor& x, const Tensor& weight) {
    return (weight.shape()[0] - 1) * x.shape()[1] * SizeOf(x.dtype());
  }
  Tensor Convolve(const Tensor& x, const Tensor& weight, int64_t chunk) {
    Slots slots(3, Bytes(x, weight));
    slots.Clear(1);
    Tensor out = Poisoned(x.dtype(), x.shape());
    InChunks(x.shape()[0], chunk, 1, [&](auto begin, auto end, auto* batch) {
      EXPECT_TRUE(machine()
                      .Run<ShortConv>(
                          x.dtype(),
                          {x.view().Rows(begin, end), weight.view(),
                           slots.states(), batch, out.view().Rows(begin, end)})
                      .ok());
    });
    return out;
  }
};
BATON_FOR_EACH_ISA(ShortConvTest);

TEST_P(ShortConvTest, IsACausalSumThroughSilu) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t taps : {1, 2, 4, 7}) {
      const Tensor x = Random(dtype, {9, 37}, 1);
      const Tensor weight = Random(DType::kF32, {taps, 37}, 2);
      const Tensor out = Convolve(x, weight, 9);
      Tensor want = Poisoned(dtype, x.shape());
      for (int64_t t = 0; t < 9; ++t) {
        for (int64_t c = 0; c < 37; ++c) {
          double sum = 0;
          for (int64_t w = 0; w < taps; ++w) {
            const int64_t from = t - (taps - 1) + w;
            if (from >= 0) sum += D(weight, w, c) * D(x, from, c);
          }
          Put(want.view(), t, c, static_cast<float>(sum * SigmoidOf(sum)));
        }
      }
      ExpectNear(out.view(), want.view(), Tolerance(dtype), 1e-6f);
    }
  }
}

// More channels than a unit of work takes.
TEST_P(ShortConvTest, GivesARowTheSameBitsInAnyChunk) {
  for (const DType dtype : kFloatTypes) {
    const Tensor x = Random(dtype, {23, 1029}, 1);
    const Tensor weight = Random(DType::kF32, {4, 1029}, 2);
    const Tensor whole = Convolve(x, weight, 23);
    for (const int64_t chunk : {1, 2, 3, 7}) {
      EXPECT_TRUE(SameBits(Convolve(x, weight, chunk).view(), whole.view()))
          << Name(dtype) << " chunk " << chunk;
    }
  }
}

TEST_P(ShortConvTest, KeepsTheLastRowsAsTheyCame) {
  const Tensor x = Random(DType::kBF16, {5, 6}, 1);
  const Tensor weight = Random(DType::kF32, {4, 6}, 2);
  Slots slots(2, Bytes(x, weight));
  slots.Clear(0);
  const Tensor out = Poisoned(DType::kBF16, x.shape());
  InChunks(5, 2, 0, [&](auto begin, auto end, auto* batch) {
    ASSERT_TRUE(machine()
                    .Run<ShortConv>(
                        DType::kBF16,
                        {x.view().Rows(begin, end), weight.view(),
                         slots.states(), batch, out.view().Rows(begin, end)})
                    .ok());
  });
  const ConstView kept(slots.Slot(0).data(), DType::kBF16, {3, 6});
  EXPECT_TRUE(SameBits(kept, x.view().Rows(2, 5)));
}

TEST_P(ShortConvTest, KeepsSequencesApart) {
  const Tensor x = Random(DType::kF32, {8, 5}, 1);
  const Tensor weight = Random(DType::kF32, {3, 5}, 2);
  Slots slots(4, Bytes(x, weight));
  slots.Clear(3);
  slots.Clear(0);
  SequenceSpan spans[] = {{0, 5, 0, {}}, {5, 0, 0, {}}, {5, 3, 0, {}}};
  spans[0].state_slot = 3;
  spans[1].state_slot = 1;
  spans[2].state_slot = 0;
  const AttentionBatch batch = {spans, {}, {}};
  const Tensor out = Poisoned(DType::kF32, x.shape());
  const Slots untouched(4, Bytes(x, weight));
  ASSERT_TRUE(
      machine()
          .Run<ShortConv>(DType::kF32, {x.view(), weight.view(), slots.states(),
                                        &batch, out.view()})
          .ok());
  EXPECT_TRUE(SameBits(slots.Slot(1), untouched.Slot(1)));
  EXPECT_TRUE(SameBits(slots.Slot(2), untouched.Slot(2)));
  Tensor second = Poisoned(DType::kF32, {3, 5});
  std::memcpy(second.view().data(), x.view().Rows(5, 8).data(), 60);
  EXPECT_TRUE(
      SameBits(Convolve(second, weight, 3).view(), out.view().Rows(5, 8)));
}

TEST_P(ShortConvTest, RefusesSlotsThatDoNotFit) {
  const Tensor x = Random(DType::kF32, {2, 5}, 1);
  const Tensor weight = Random(DType::kF32, {3, 5}, 2);
  const Tensor out = Poisoned(DType::kF32, x.shape());
  const Slots slots(2, Bytes(x, weight));
  StateSlots small = slots.states();
  small.slot_bytes = 2 * 5 * 4 - 4;
  const auto run = [&](int32_t a, int32_t b, const StateSlots& states) {
    SequenceSpan spans[] = {{0, 1, 0, {}}, {1, 1, 0, {}}};
    spans[0].state_slot = a;
    spans[1].state_slot = b;
    const AttentionBatch batch = {spans, {}, {}};
    return machine()
        .Run<ShortConv>(DType::kF32,
                        {x.view(), weight.view(), states, &batch, out.view()})
        .code();
  };
  EXPECT_EQ(run(0, 1, small), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(0, 2, slots.states()), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(-1, 1, slots.states()), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(1, 1, slots.states()), StatusCode::kInvalidArgument);
}

TEST_P(ShortConvTest, HasTheSameBitsBesideProductsOfHeads) {
  for (const DType dtype : kFloatTypes) {
    const Tensor x = Random(dtype, {9, 37}, 1);
    const Tensor taps = Random(DType::kF32, {4, 37}, 2);
    const Tensor inner = Random(dtype, {9, 2 * 12}, 3);
    const Weight of[] = {{machine(), dtype, 67, 12, 4},
                         {machine(), dtype, 67, 12, 5}};
    const PackedMatrix matrices[] = {of[0].matrix(), of[1].matrix()};
    Slots slots(3, Bytes(x, taps));
    slots.Clear(1);
    const Tensor conv = Poisoned(dtype, x.shape());
    const Tensor gates = Poisoned(dtype, {9, 2 * 67});
    InChunks(9, 4, 1, [&](auto begin, auto end, auto* batch) {
      EXPECT_TRUE(
          machine()
              .Run<ShortConvAndHeadMatmul>(
                  dtype, {.conv = {x.view().Rows(begin, end), taps.view(),
                                   slots.states(), batch,
                                   conv.view().Rows(begin, end)},
                          .heads = {inner.view().Rows(begin, end), matrices,
                                    gates.view().Rows(begin, end)}})
              .ok());
    });
    EXPECT_TRUE(SameBits(conv.view(), Convolve(x, taps, 4).view()));
    const Tensor want = Poisoned(dtype, gates.shape());
    ASSERT_TRUE(
        machine()
            .Run<HeadMatmul>(dtype, {inner.view(), matrices, want.view()})
            .ok());
    EXPECT_TRUE(SameBits(gates.view(), want.view()));
  }
}

}  // namespace
}  // namespace baton
