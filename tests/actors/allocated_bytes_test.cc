// SPDX-License-Identifier: Apache-2.0
// What stages allocate is what their placement predicted.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "actors/local_pipeline.h"
#include "actors/placement.h"
#include "kernels/devices/devices.h"
#include "tests/testing/status_matchers.h"

namespace baton {
namespace {

using ::baton::testing::IsOk;

// What loading on `name`d device allocates is what was predicted.
void ExpectPredicted(const std::string& device_name,
                     const std::vector<const char*>& checkpoints) {
  for (const char* name : checkpoints) {
    const std::string folder =
        std::string(BATON_SOURCE_DIR "/tests/checkpoints/") + name;
    StatusOr<OpenedModel> model =
        OpenModel(folder, DType::kBF16, WeightsCheck::kConfigOnly);
    ASSERT_THAT(model, IsOk());
    const DecoderBytes bytes =
        CountBytes(model->info, model->tensors, DType::kBF16,
                   ParseDeviceKind(device_name).value());
    const std::vector<StageConfig> one = {{.name = "a"}};
    StatusOr<Placement> placement =
        PlaceStages(model->info, bytes, RouteKind::kRing, one);
    ASSERT_THAT(placement, IsOk());
    const KvSizes sizes = {.pages = 4, .window_pages = 3, .state_slots = 2};
    const StageBytes predicted =
        PredictBytes(model->info, bytes, *placement, sizes).front();

    KernelRegistry kernels;
    ASSERT_TRUE(RegisterKernels(kernels).ok());
    const std::unique_ptr<Device> device =
        std::move(OpenDevices(device_name, 1).value()[0]);
    StatusOr<std::unique_ptr<Stream>> stream = device->NewStream();
    ASSERT_THAT(stream, IsOk());
    std::unique_ptr<WeightSource> weights = NewRandomWeights(1);
    SliceOptions options;
    options.ranges = placement->stages[0].ranges;
    options.kv = sizes;
    options.kernels = &kernels;
    options.device = device.get();
    options.stream = stream->get();
    options.weights = weights.get();
    StatusOr<ModelConfig> config =
        ModelConfig::Parse(model->config_text, "config.json");
    ASSERT_THAT(config, IsOk());
    StatusOr<std::unique_ptr<StageSlice>> slice =
        model->decoder->build(*config, options);
    ASSERT_THAT(slice, IsOk());
    EXPECT_NEAR(static_cast<double>(predicted.weights),
                static_cast<double>((*slice)->WeightBytes()),
                0.02 * static_cast<double>((*slice)->WeightBytes()))
        << name;
    EXPECT_EQ(predicted.kv, (*slice)->KvBytes()) << name;
  }
}

TEST(CountBytesTest, MatchesWhatLoadingAllocates) {
  ExpectPredicted("cpu", {"apertus", "arcee", "exaone4-hybrid", "exaone4-tied",
                          "kimi-linear", "kimi-linear-5x", "mixtral",
                          "nanbeige", "spark2_5"});
}

// Shares of heads, copies of KV heads, what every rank has whole, and matrices
// that one rank has.
TEST(CountBytesTest, MatchesWhatRanksAllocateTogether) {
  KernelRegistry kernels;
  ASSERT_TRUE(RegisterKernels(kernels).ok());
  const std::unique_ptr<Device> device = NewCpuDevice(1);
  const std::unique_ptr<Stream> stream = device->NewStream().value();
  const std::unique_ptr<WeightSource> weights = NewRandomWeights(1);
  for (const char* name :
       {"arcee", "mixtral", "exaone4-hybrid", "spark2_5", "kimi-linear"}) {
    nlohmann::json json = nlohmann::json::parse(std::ifstream(fmt::format(
        "{}/tests/checkpoints/{}/config.json", BATON_SOURCE_DIR, name)));
    json.update({{"hidden_size", 128},
                 {"num_attention_heads", 8},
                 {"num_key_value_heads", 2},
                 {"head_dim", 32},
                 {"intermediate_size", 512},
                 {"vocab_size", 320}});
    if (json.contains("linear_attn_config")) {
      json.merge_patch(
          {{"num_key_value_heads", 8},
           {"v_head_dim", 32},
           {"moe_intermediate_size", 256},
           {"linear_attn_config", {{"head_dim", 32}, {"num_heads", 8}}}});
    }
    const ModelConfig config = ModelConfig::Parse(json.dump(), name).value();
    const Decoder* decoder = FindDecoder(config.architecture()).value();
    const DecoderInfo info = decoder->describe(config, DType::kBF16).value();
    const std::vector<TensorDecl> tensors = decoder->tensors(config).value();
    const KvSizes sizes = {.pages = 4, .window_pages = 3, .state_slots = 2};
    for (const int ranks : {1, 2, 4, 8}) {
      const DecoderBytes bytes =
          CountBytes(info, tensors, DType::kBF16, DeviceKind::kCpu, ranks);
      const StagePlacement stage = {.ranges = {{0, info.unrolled_layers()}},
                                    .tp = ranks};
      const StageBytes predicted = PredictStageBytes(info, bytes, stage, sizes);
      const StatusOr<std::unique_ptr<StageSlice>> slice =
          decoder->build(config, {.ranges = stage.ranges,
                                  .kv = sizes,
                                  .kernels = &kernels,
                                  .device = device.get(),
                                  .stream = stream.get(),
                                  .weights = weights.get(),
                                  .ranks = ranks});
      ASSERT_THAT(slice, IsOk());
      EXPECT_EQ(predicted.weights, (*slice)->WeightBytes()) << name << ranks;
      EXPECT_EQ(predicted.kv, (*slice)->KvBytes()) << name << ranks;
    }
  }
}

TEST(CountBytesTest, MatchesWhatLoadingAllocatesOnAGpu) {
  if (!OpenDevices("cuda", 1).ok()) GTEST_SKIP() << "no GPU";
  ExpectPredicted("cuda", {"apertus", "arcee", "nanbeige"});
}

}  // namespace
}  // namespace baton
