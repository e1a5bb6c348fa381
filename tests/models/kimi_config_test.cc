// SPDX-License-Identifier: Apache-2.0
// Both layouts of Kimi-Linear's config.json, and what is refused in them.
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/kimi_linear_config.h"
#include "runtime/weights/check.h"
#include "tests/models/pipeline.h"

namespace baton::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json ConfigOf(const std::string& directory) {
  std::ifstream file(directory + "/config.json");
  return json::parse(file);
}
json Tiny(const std::string& checkpoint) {
  return ConfigOf(TinyCheckpoint::Directory(checkpoint));
}

StatusOr<KimiLinearConfig> Read(const json& config) {
  BATON_ASSIGN_OR_RETURN(const ModelConfig parsed,
                         ModelConfig::Parse(config.dump(), "config.json"));
  return ReadKimiLinearConfig(parsed);
}

// Lists count from 1, and the last layer breaks the rhythm of four.
TEST(KimiConfigTest, ReadsThePublishedListsAsTheyCount) {
  const StatusOr<KimiLinearConfig> c =
      Read(ConfigOf(BATON_SOURCE_DIR "/tests/configs/kimi-linear-48b-a3b"));
  ASSERT_TRUE(c.ok()) << c.status();
  std::vector<int> full;
  for (int i = 0; i < c->num_layers; ++i) {
    if (!c->IsLinear(LayerIndex(i))) full.push_back(i);
    EXPECT_EQ(c->IsMixture(LayerIndex(i)), i > 0);
  }
  EXPECT_EQ(full, (std::vector<int>{3, 7, 11, 15, 19, 23, 26}));
  EXPECT_EQ(c->State(LayerIndex(3), DType::kBF16).TokenBytes(), 576 * 2);
  EXPECT_EQ(c->State(LayerIndex(26), DType::kBF16).slot_bytes, 0);
  EXPECT_EQ(c->State(LayerIndex(0), DType::kBF16).TokenBytes(), 0);
  EXPECT_EQ(c->State(LayerIndex(0), DType::kBF16).slot_bytes,
            32 * 128 * 128 * 4 + 3 * 3 * 4096 * 2);
  EXPECT_EQ(c->latent.HeadWidth(), 192);
}

TEST(KimiConfigTest, ReadsTheListsThatTransformersSaves) {
  const StatusOr<KimiLinearConfig> c = Read(Tiny("kimi-linear-5x"));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->linear_layers, (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(c->mixture_layers, (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(c->delta.taps, 3);
}

TEST(KimiConfigTest, TakesBothLayoutsIfTheySayTheSame) {
  json config = Tiny("kimi-linear");
  config["layer_types"] = {"linear_attention", "linear_attention",
                           "full_attention", "linear_attention",
                           "full_attention"};
  config["mlp_layer_types"] = {"dense", "dense", "sparse", "sparse", "sparse"};
  EXPECT_TRUE(Read(config).ok());
  json other = config;
  other["layer_types"][0] = "full_attention";
  EXPECT_THAT(Message(Read(other).status()), HasSubstr("disagree"));
  other = config;
  other["mlp_layer_types"][1] = "sparse";
  EXPECT_THAT(Message(Read(other).status()), HasSubstr("disagree"));
}

struct Refusal {
  const char* checkpoint;
  const char* path;  // JSON pointer
  const char* value;
  const char* named;  // in the message
};
constexpr Refusal kRefusals[] = {
    {"kimi-linear", "/model_type", "\"kimi_k3\"", "model_type"},
    {"kimi-linear", "/hidden_act", "\"gelu\"", "hidden_act"},
    {"kimi-linear", "/tie_word_embeddings", "true", "tie_word_embeddings"},
    {"kimi-linear", "/attention_bias", "true", "attention_bias"},
    {"kimi-linear", "/quantization_config", "{\"bits\": 4}",
     "quantization_config"},
    {"kimi-linear", "/q_lora_rank", "16", "q_lora_rank"},
    {"kimi-linear", "/rope_scaling", "{\"factor\": 2}", "rope_scaling"},
    {"kimi-linear", "/routed_scaling_factor", "1e39", "routed_scaling_factor"},
    {"kimi-linear", "/sliding_window", "64", "sliding_window"},
    {"kimi-linear", "/mla_use_nope", "false", "mla_use_nope"},
    {"kimi-linear", "/moe_renormalize", "false", "moe_renormalize"},
    {"kimi-linear", "/use_grouped_topk", "false", "use_grouped_topk"},
    {"kimi-linear", "/moe_layer_freq", "2", "moe_layer_freq"},
    {"kimi-linear", "/moe_router_activation_func", "\"softmax\"",
     "moe_router_activation_func"},
    {"kimi-linear", "/num_nextn_predict_layers", "1",
     "num_nextn_predict_layers"},
    {"kimi-linear", "/num_key_value_heads", "1", "num_key_value_heads"},
    {"kimi-linear", "/num_expert_group", "5", "num_expert_group"},
    {"kimi-linear", "/num_expert_group", "12", "num_expert_group"},
    {"kimi-linear", "/topk_group", "4", "topk_group"},
    {"kimi-linear", "/num_experts_per_token", "9", "num_experts_per_token"},
    {"kimi-linear", "/num_shared_experts", "0", "num_shared_experts"},
    {"kimi-linear", "/routed_scaling_factor", "null", "routed_scaling_factor"},
    {"kimi-linear", "/first_k_dense_replace", "6", "first_k_dense_replace"},
    {"kimi-linear", "/first_k_dense_replace", "null", "mlp_layer_types"},
    {"kimi-linear", "/model_max_length", "null", "model_max_length"},
    {"kimi-linear", "/linear_attn_config", "null", "linear_attn_config"},
    {"kimi-linear", "/linear_attn_config", "[1]", "linear_attn_config"},
    {"kimi-linear", "/linear_attn_config/gate_lower_bound", "-5.0",
     "gate_lower_bound"},
    {"kimi-linear", "/linear_attn_config/head_dim", "0", "head_dim"},
    {"kimi-linear", "/linear_attn_config/head_dim", "1025", "head_dim"},
    {"kimi-linear", "/linear_attn_config/kda_layers", "[1, 2]", "kda_layers"},
    {"kimi-linear", "/linear_attn_config/kda_layers", "[1, 2, 3, 4]",
     "kda_layers"},
    {"kimi-linear", "/linear_attn_config/kda_layers", "[0, 1, 3]",
     "kda_layers"},
    {"kimi-linear", "/linear_attn_config/full_attn_layers", "[3, 6]",
     "full_attn_layers"},
    {"kimi-linear-5x", "/layer_types/0", "\"sliding_attention\"",
     "layer_types"},
    {"kimi-linear-5x", "/layer_types", "[\"full_attention\"]", "layer_types"},
    {"kimi-linear-5x", "/layer_types", "7", "layer_types"},
    {"kimi-linear-5x", "/mlp_layer_types/1", "\"moe\"", "mlp_layer_types"},
    {"kimi-linear-5x", "/qk_head_dim", "15", "qk_head_dim"},
    {"kimi-linear-5x", "/linear_conv_kernel_dim", "65",
     "linear_conv_kernel_dim"},
    {"kimi-linear-5x", "/linear_num_heads", "null", "linear_num_heads"},
};

class KimiRefusalTest : public ::testing::TestWithParam<Refusal> {};
INSTANTIATE_TEST_SUITE_P(All, KimiRefusalTest, ::testing::ValuesIn(kRefusals));

TEST_P(KimiRefusalTest, NamesTheKey) {
  json config = Tiny(GetParam().checkpoint);
  ASSERT_TRUE(Read(config).ok()) << Read(config).status();
  config[json::json_pointer(GetParam().path)] = json::parse(GetParam().value);
  const Status status = Read(config).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr(GetParam().named));
}

// Of each head key rows, then value rows.
TEST(KimiTensorsTest, CutTheMatrixOfLatentsIntoHeads) {
  const TinyCheckpoint tiny = TinyCheckpoint::Open("kimi-linear");
  const std::vector<TensorDecl> tensors =
      tiny.decoder->tensors(tiny.config()).value();
  const std::string at = "model.layers.2.self_attn.kv_b_proj";
  std::vector<std::string> names;
  int64_t next = 0;
  for (const TensorDecl& decl : tensors) {
    if (decl.name.rfind(at, 0) != 0) continue;
    names.push_back(decl.name.substr(at.size()));
    ASSERT_TRUE(decl.elsewhere.has_value());
    EXPECT_EQ(decl.elsewhere->name, at + ".weight");
    EXPECT_EQ(decl.elsewhere->first, next);
    next += decl.shape[0];
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       ".0.key.weight", ".0.value.weight", ".1.key.weight",
                       ".1.value.weight", ".2.key.weight", ".2.value.weight"}));
  EXPECT_EQ(next, 3 * (20 + 28));
}

TEST(KimiTensorsTest, AreTheOnesOfTheFilesWhateverTypeFloatsHave) {
  for (const char* name : {"kimi-linear", "kimi-linear-5x"}) {
    const TinyCheckpoint tiny = TinyCheckpoint::Open(name);
    EXPECT_TRUE(
        tiny.files->Check(tiny.decoder->tensors(tiny.config()).value()).ok());
  }
  const TinyCheckpoint tiny = TinyCheckpoint::Open("kimi-linear");
  const TensorEntry* decay =
      FindTensor(tiny.files->tensors(), "model.layers.0.self_attn.A_log");
  ASSERT_NE(decay, nullptr);
  EXPECT_EQ(decay->dtype, DType::kF32);
}

}  // namespace
}  // namespace baton::testing
