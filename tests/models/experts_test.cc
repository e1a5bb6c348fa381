// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts: what their checkpoints hold and how it is loaded.
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/ops/activation.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/norm.h"
#include "runtime/weights/check.h"
#include "tests/models/fake_weights.h"
#include "tests/models/pipeline.h"

namespace baton::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Another source that keeps the largest number of elements handed out at once.
class MeasuredWeights : public EditedWeights {
 public:
  using EditedWeights::EditedWeights;
  mutable int64_t largest = 0;

  StatusOr<HostRows> Rows(const TensorDecl& decl, int64_t begin,
                          int64_t end) const override {
    StatusOr<HostRows> rows = EditedWeights::Rows(decl, begin, end);
    if (rows.ok()) {
      largest = std::max(largest, rows->view.shape().NumElements());
    }
    return rows;
  }
};

std::map<std::string, TensorDecl> TensorsOf(const TinyCheckpoint& tiny) {
  const std::vector<TensorDecl> list =
      tiny.decoder->tensors(tiny.config()).value();
  std::map<std::string, TensorDecl> tensors;
  for (const TensorDecl& t : list) tensors.emplace(t.name, t);
  return tensors;
}

// w1 is the gate, w2 is down, w3 is up; a stack has gate rows first.
TEST(MixtralTensorsTest, HaveAPlaceInTheStacksOfNewerFiles) {
  const auto tensors = TensorsOf(TinyCheckpoint::Open("mixtral"));
  EXPECT_EQ(tensors.size(), 4 * (2 + 4 + 1 + 5 * 3) + 3);
  const std::string layer = "model.layers.1.";
  const auto place = [&](const std::string& name) {
    return *tensors.at(layer + name).elsewhere;
  };
  const std::string expert = "block_sparse_moe.experts.2.";
  const TensorRows gate = place(expert + "w1.weight");
  const TensorRows up = place(expert + "w3.weight");
  const TensorRows down = place(expert + "w2.weight");
  EXPECT_EQ(gate.name, layer + "mlp.experts.gate_up_proj");
  EXPECT_EQ(gate.shape, (Shape{5, 2 * 40, 96}));
  EXPECT_EQ(gate.first, 2 * 80);
  EXPECT_EQ(up.name, gate.name);
  EXPECT_EQ(up.first, 2 * 80 + 40);
  EXPECT_EQ(down.name, layer + "mlp.experts.down_proj");
  EXPECT_EQ(down.shape, (Shape{5, 96, 40}));
  EXPECT_EQ(down.first, 2 * 96);
  EXPECT_EQ(place("block_sparse_moe.gate.weight").name,
            layer + "mlp.gate.weight");
}

TEST(MixtralTensorsTest, AreLoadedMatrixByMatrixFromStacks) {
  const TinyCheckpoint tiny = TinyCheckpoint::Open("mixtral-stacked");
  const MeasuredWeights weights(tiny.files.get());
  const Pipeline pipeline(*tiny.decoder, tiny.config(), weights, DType::kBF16,
                          {{{1, 2}}});
  EXPECT_EQ(weights.asked.size(), 2 + 4 + 1 + 6 * 3);
  for (const std::string& name : weights.asked) {
    EXPECT_THAT(name, StartsWith("model.layers.1."));
  }
  EXPECT_EQ(weights.dropped, weights.asked);
  EXPECT_EQ(weights.largest, 72 * 6 * 20) << "q_proj is the largest";
}

template <typename... Ops>
KernelRegistry Only() {
  const KernelRegistry& all = Machine::Get().kernels;
  KernelRegistry some;
  (some.Add<Ops>(DeviceKind::kCpu, DType::kBF16,
                 all.Find<Ops>(DeviceKind::kCpu, DType::kBF16).value()),
   ...);
  return some;
}

TEST(MixtralTest, IsNotBuiltWhereExpertsHaveNoKernels) {
  const TinyCheckpoint tiny = TinyCheckpoint::Open("mixtral");
  const KernelRegistry dense =
      Only<PackMatrix, Matmul, RmsNorm, AddRmsNorm, RmsNormAdd,
           AllReduceAddRmsNorm, Add, SiluMul, Embedding, RotateAndAttend,
           Sample>();
  const Status status =
      tiny.decoder
          ->build(tiny.config(), {.ranges = {{1, 2}},
                                  .dtype = DType::kBF16,
                                  .kv = {.pages = 1},
                                  .kernels = &dense,
                                  .device = Machine::Get().device.get(),
                                  .stream = Machine::Get().stream.get(),
                                  .weights = tiny.files.get()})
          .status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Message(status), HasSubstr("route_top_k"));
}

// Stacks are [experts, out, in]. Transposed ones have other shapes.
TEST(MixtralTensorsTest, OfTransposedStacksAreRefused) {
  const TinyCheckpoint tiny = TinyCheckpoint::Open("mixtral-stacked");
  const TensorEntry transposed = {
      .name = "model.layers.0.mlp.experts.gate_up_proj",
      .dtype = DType::kBF16,
      .shape = {6, 72, 2 * 56}};
  const TensorDecl gate =
      TensorsOf(tiny).at("model.layers.0.block_sparse_moe.experts.0.w1.weight");
  const Status status = CheckTensors({&transposed, 1}, {&gate, 1});
  EXPECT_THAT(Message(status),
              HasSubstr("misshapen: model.layers.0.mlp.experts.gate_up_proj "
                        "[6,72,112], expected [6,112,72]"));
}

// Null means none, never a default of 4096.
TEST(MixtralConfigTest, TakesNoWindowForNullAndRefusesAnyNumber) {
  std::ifstream file(TinyCheckpoint::Directory("mixtral") + "/config.json");
  nlohmann::json json = nlohmann::json::parse(file);
  const Decoder* decoder = FindDecoder("MixtralForCausalLM").value();
  const auto describe = [&] {
    const ModelConfig config =
        ModelConfig::Parse(json.dump(), "config.json").value();
    return decoder->describe(config, DType::kBF16).status();
  };
  json["sliding_window"] = nullptr;
  EXPECT_TRUE(describe().ok());
  for (const int window : {0, 1, 4096}) {
    json["sliding_window"] = window;
    EXPECT_THAT(Message(describe()), HasSubstr("sliding_window"));
  }
  json.erase("sliding_window");
  EXPECT_TRUE(describe().ok());
}

}  // namespace
}  // namespace baton::testing
