// SPDX-License-Identifier: Apache-2.0
// What a stage keeps for layers of Kimi-Linear, and which visits it takes.
#include "models/kimi_linear_config.h"
#include "tests/models/pipeline.h"

namespace baton::testing {
namespace {

using ::testing::HasSubstr;

// Layers 0, 1 and 3 are linear, 2 and 4 attend over latents.
class KimiSliceTest : public ::testing::Test {
 protected:
  std::unique_ptr<StageSlice> Build(UnrolledRange range) {
    Machine& machine = Machine::Get();
    return tiny_.decoder
        ->build(tiny_.config(), {.ranges = {range},
                                 .dtype = DType::kF32,
                                 .kv = {.pages = 3, .state_slots = 4},
                                 .kernels = &machine.kernels,
                                 .device = machine.device.get(),
                                 .stream = machine.stream.get(),
                                 .weights = tiny_.files.get()})
        .value();
  }
  // Two sequences of one row in these slots.
  Status Visit(StageSlice& slice, int32_t first, int32_t second) {
    const std::vector<PageId> pages = {0}, other = {1};
    const SequenceSpan spans[] = {
        {.rows = 1, .pages = pages, .state_slot = first},
        {.first_row = 1, .rows = 1, .pages = other, .state_slot = second}};
    const std::vector<int32_t> positions = {0, 0}, ids = {5, 6};
    const AttentionBatch batch = {.sequences = spans, .positions = positions};
    return slice.Run({.range = {0, 2}, .batch = &batch, .ids = ids}).status();
  }

  TinyCheckpoint tiny_ = TinyCheckpoint::Open("kimi-linear");
};

TEST_F(KimiSliceTest, KeepsSlotsForLinearLayersAndPagesForTheOthers) {
  const int64_t slot = 3 * 20 * 20 * 4 + 3 * 180 * 4;
  const int64_t slot_bytes = PadTo(slot, 64);
  const int64_t page_bytes = 16 * (36 + 12) * 4;
  EXPECT_EQ(Build({0, 2})->KvBytes(), 2 * 4 * slot_bytes);
  EXPECT_EQ(Build({2, 3})->KvBytes(), 3 * page_bytes);
  EXPECT_EQ(Build({0, 5})->KvBytes(), 3 * 4 * slot_bytes + 2 * 3 * page_bytes);
}

TEST_F(KimiSliceTest, RefusesSequencesWithoutASlotOfTheirOwn) {
  const std::unique_ptr<StageSlice> slice = Build({0, 2});
  EXPECT_TRUE(Visit(*slice, 3, 0).ok());
  for (const auto& [first, second] :
       {std::pair(-1, 0), std::pair(0, 4), std::pair(2, 2)}) {
    const Status status = Visit(*slice, first, second);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), HasSubstr("state slot"));
  }
}

// Shared experts are one FFN as wide as all of them.
TEST_F(KimiSliceTest, HoldsSharedExpertsTogether) {
  const std::vector<TensorDecl> tensors =
      tiny_.decoder->tensors(tiny_.config()).value();
  int found = 0;
  for (const TensorDecl& decl : tensors) {
    if (decl.name.find("shared_experts.up_proj") == std::string::npos) continue;
    EXPECT_EQ(decl.shape, (Shape{2 * 20, 72})) << decl.name;
    ++found;
  }
  EXPECT_EQ(found, 3) << "layers with a mixture";
}

}  // namespace
}  // namespace baton::testing
