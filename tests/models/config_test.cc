// SPDX-License-Identifier: Apache-2.0
// What decoders read from config.json, and the maths they refuse.
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/models/pipeline.h"

namespace baton::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

json ConfigOf(const std::string& checkpoint) {
  std::ifstream file(TinyCheckpoint::Directory(checkpoint) + "/config.json");
  return json::parse(file);
}

StatusOr<DecoderInfo> Describe(const json& config) {
  BATON_ASSIGN_OR_RETURN(const ModelConfig parsed,
                         ModelConfig::Parse(config.dump(), "config.json"));
  BATON_ASSIGN_OR_RETURN(const Decoder* decoder,
                         FindDecoder(parsed.architecture()));
  return decoder->describe(parsed, DType::kBF16);
}

struct Refusal {
  const char* checkpoint;
  const char* key;
  const char* value;  // JSON
};

class RefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusalTest, NamesTheKey) {
  json config = ConfigOf(GetParam().checkpoint);
  ASSERT_TRUE(Describe(config).ok());
  config[GetParam().key] = json::parse(GetParam().value);
  const Status status = Describe(config).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr(GetParam().key));
}

constexpr Refusal kRefusals[] = {
    {"apertus", "hidden_act", "\"silu\""},
    {"apertus", "attention_bias", "true"},
    {"apertus", "mlp_bias", "true"},
    {"apertus", "post_norm", "true"},
    {"apertus", "qk_norm", "false"},
    {"apertus", "tie_word_embeddings", "true"},
    {"apertus", "sliding_window", "64"},
    {"apertus", "quantization_config", "{\"quant_method\": \"fp8\"}"},
    {"apertus", "partial_rotary_factor", "0.5"},
    {"apertus", "num_key_value_heads", "4"},
    {"apertus", "rms_norm_eps", "0"},
    {"apertus", "model_type", "\"apertus1p5\""},
    {"arcee", "hidden_act", "\"relu\""},
    {"arcee", "attention_bias", "true"},
    {"arcee", "mlp_bias", "true"},
    {"arcee", "tie_word_embeddings", "true"},
    {"arcee", "head_dim", "15"},
    {"arcee", "model_type", "\"arcee_kda\""},
    {"arcee", "rms_norm_eps", "0"},
    {"arcee", "rms_norm_eps", "1e-60"},  // 0 in f32
    {"arcee", "rms_norm_eps", "1e39"},   // not finite in f32
    {"exaone4-hybrid", "hidden_act", "\"gelu\""},
    {"exaone4-hybrid", "attention_bias", "true"},
    {"exaone4-hybrid", "quantization_config", "{\"quant_method\": \"gptq\"}"},
    {"exaone4-hybrid", "sliding_window", "null"},  // layers slide
    {"exaone4-hybrid", "sliding_window", "0"},
    {"exaone4-hybrid", "layer_types", "[\"full_attention\"]"},
    {"exaone4-hybrid", "layer_types",
     "[\"a\", \"sliding_attention\", \"full_attention\"]"},
    {"exaone4-hybrid", "partial_rotary_factor", "0.5"},
    {"exaone4-tied", "tie_word_embeddings", "1"},
    {"exaone4-tied", "model_type", "\"exaone4_5\""},
    {"mixtral", "hidden_act", "\"gelu\""},
    {"mixtral", "attention_bias", "true"},
    {"mixtral", "tie_word_embeddings", "true"},
    {"mixtral", "sliding_window", "4096"},
    {"mixtral", "quantization_config", "{\"quant_method\": \"awq\"}"},
    {"mixtral", "num_local_experts", "0"},
    {"mixtral", "num_experts_per_tok", "6"},  // there are five
    {"mixtral", "model_type", "\"minimax\""},
    {"nanbeige", "hidden_act", "\"gelu\""},
    {"nanbeige", "attention_bias", "true"},
    {"nanbeige", "tie_word_embeddings", "true"},
    {"nanbeige", "enable_hyper_connection", "true"},
    {"nanbeige", "enable_mhc", "true"},
    {"nanbeige", "enable_depth_attention", "true"},
    {"nanbeige", "enable_double_loop_split", "true"},
    {"nanbeige", "loop_middle_layers", "[1, 2]"},
    {"nanbeige", "loop_middle_repeats", "2"},
    {"nanbeige", "loop_share_kv", "true"},
    {"nanbeige", "loop_loss_weights", "[0.5]"},
    {"nanbeige", "qk_layernorm", "true"},
    {"nanbeige", "emb_neighbor_num", "2"},
    {"nanbeige", "emb_split_num", "2"},
    {"nanbeige", "ngram_vocab_size_ratio", "1.5"},
    {"nanbeige", "ngram_orders", "[2, 3]"},
    {"nanbeige", "mhc_num_streams", "4"},
    {"nanbeige", "insert_ngram_layer_idx", "[0]"},
    {"nanbeige", "pretraining_tp", "2"},
    {"nanbeige", "num_loops", "0"},
    {"spark2_5", "hidden_act", "\"gelu_new\""},
    {"spark2_5", "attention_bias", "true"},
    {"spark2_5", "mlp_bias", "true"},
    {"spark2_5", "gate_attn_act_mode", "\"silu\""},
    {"spark2_5", "headwise_attn_output_gate", "false"},
    {"spark2_5", "gsq_int4", "true"},
    {"spark2_5", "hadamard_spin", "true"},
    {"spark2_5", "dv_ssq", "true"},
    {"spark2_5", "selective_attention_preservation", "true"},
    {"spark2_5", "key_value_binding_sharpening", "true"},
    {"spark2_5", "kv_focus_factor", "1.5"},
    {"spark2_5", "layer_types", "null"},
    {"spark2_5", "layer_types", "[\"chunked_attention\"]"},
    {"spark2_5", "sliding_window", "null"},
    {"spark2_5", "rope_theta", "10000"},
    {"spark2_5", "rope_scaling", "{\"rope_type\": \"default\"}"},
    {"spark2_5", "rope_parameters", "{\"rope_theta\": 10000}"},
    {"spark2_5", "quantization_config", "{\"quant_method\": \"fp8\"}"},
    {"spark2_5", "model_type", "\"spark\""},
};

INSTANTIATE_TEST_SUITE_P(All, RefusalTest, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) {
                           std::string name = fmt::format(
                               "{}_{}_{}", info.index, info.param.checkpoint,
                               info.param.key);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Byte counts are products of sizes, and layers are listed one by one.
TEST(ConfigTest, RefusesSizesThatNoDecoderHas) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"num_hidden_layers", 1 << 30},
      {"num_loops", 1 << 30},
      {"hidden_size", 1 << 30},
      {"num_attention_heads", 1 << 30},
      {"num_key_value_heads", 1 << 30},
      {"intermediate_size", 1 << 30},
      {"vocab_size", 1 << 30},
      {"head_dim", 1 << 30},
      // Further off than angles of the rotation are exact.
      {"max_position_embeddings", (1 << 21) + 1},
  };
  for (const auto& [key, size] : sizes) {
    json config = ConfigOf("nanbeige");
    config[key] = size;
    const Status status = Describe(config).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << key;
    EXPECT_THAT(Message(status), HasSubstr(key));
    EXPECT_THAT(Message(status), HasSubstr("at most"));
  }
}

TEST(ApertusConfigTest, HeadDimIsHiddenOverHeadsOrTheKey) {
  json config = ConfigOf("apertus");
  EXPECT_EQ(Describe(config)->states[0].head_dim, 16);
  config["head_dim"] = 24;
  EXPECT_EQ(Describe(config)->states[0].head_dim, 24);
}

TEST(NanbeigeConfigTest, HeadDimIsEitherKeyBeforeHiddenOverHeads) {
  json config = ConfigOf("nanbeige");
  EXPECT_EQ(Describe(config)->states[0].head_dim, 24);
  config.erase("head_dim");
  config["kv_channels"] = 26;
  EXPECT_EQ(Describe(config)->states[0].head_dim, 26);
  config["head_dim"] = 20;
  EXPECT_EQ(Describe(config)->states[0].head_dim, 20);
}

TEST(NanbeigeConfigTest, RunsOnceWithoutALoopCount) {
  json config = ConfigOf("nanbeige");
  EXPECT_EQ(Describe(config)->num_loops, 3);
  config.erase("num_loops");
  EXPECT_EQ(Describe(config)->num_loops, 1);
}

std::vector<int64_t> WindowsOf(const json& config) {
  std::vector<int64_t> windows;
  const StatusOr<DecoderInfo> info = Describe(config);
  EXPECT_TRUE(info.ok()) << info.status();
  for (const LayerState& state : info->states) windows.push_back(state.window);
  return windows;
}

TEST(Exaone4ConfigTest, TakesWindowsFromLayerTypesBeforeThePattern) {
  json config = ConfigOf("exaone4-hybrid");
  config["sliding_window_pattern"] = "LG";
  EXPECT_EQ(WindowsOf(config), (std::vector<int64_t>{11, 11, 0, 11, 11}));
}

TEST(Exaone4ConfigTest, TakesWindowsFromAPatternOfAnyKind) {
  json config = ConfigOf("exaone4-hybrid");
  config.erase("layer_types");
  const std::vector<int64_t> every_third = {11, 11, 0, 11, 11};
  config["sliding_window_pattern"] = "LLG";
  EXPECT_EQ(WindowsOf(config), every_third);
  config["sliding_window_pattern"] = 3;
  EXPECT_EQ(WindowsOf(config), every_third);
  for (const json& bad : {json("GLL"), json("LGLG"), json("LLX"), json(""),
                          json(0), json(nullptr), json(true)}) {
    config["sliding_window_pattern"] = bad;
    EXPECT_THAT(Message(Describe(config).status()),
                HasSubstr("sliding_window_pattern"))
        << bad;
  }
  config["sliding_window"] = nullptr;  // whatever the pattern
  EXPECT_EQ(WindowsOf(config), std::vector<int64_t>(5, 0));
}

TEST(SparkConfigTest, HasAWideStreamAndAWindowByLayerType) {
  const json config = ConfigOf("spark2_5");
  EXPECT_EQ(WindowsOf(config), (std::vector<int64_t>{13, 0, 13, 13, 0}));
  EXPECT_EQ(Describe(config)->stream_dtype, DType::kF32);
  EXPECT_EQ(Describe(config)->states[0].dtype, DType::kBF16);
  EXPECT_EQ(Describe(ConfigOf("arcee"))->stream_dtype, DType::kBF16);
}

TEST(SparkConfigTest, RefusesPartsOfHeadsThatAreNoPairs) {
  for (const double part : {0.01, 0.9, 1.5, -1.0}) {
    json config = ConfigOf("spark2_5");
    config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = part;
    EXPECT_THAT(Message(Describe(config).status()),
                HasSubstr("partial_rotary_factor"))
        << part;
  }
}

TEST(ConfigTest, DescribesSizesAndKvShape) {
  const DecoderInfo info = *Describe(ConfigOf("arcee"));
  EXPECT_EQ(info.architecture, "ArceeForCausalLM");
  EXPECT_EQ(info.num_layers, 5);
  EXPECT_EQ(info.hidden, 72);
  EXPECT_EQ(info.vocab, 299);
  EXPECT_EQ(info.max_positions, 512);
  EXPECT_EQ(info.states[0].kv_heads, 2);
  EXPECT_EQ(info.states[0].dtype, DType::kBF16);
}

TEST(RegistryTest, NamesWhatThereIs) {
  const Status status = FindDecoder("LlamaForCausalLM").status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Message(status), HasSubstr("ApertusForCausalLM, Arcee"));
  EXPECT_EQ(AllDecoders().size(), 7);
}

std::map<std::string, TensorDecl> TensorsOf(const std::string& checkpoint) {
  const TinyCheckpoint tiny = TinyCheckpoint::Open(checkpoint);
  const std::vector<TensorDecl> list =
      tiny.decoder->tensors(tiny.config()).value();
  std::map<std::string, TensorDecl> tensors;
  for (const TensorDecl& t : list) {
    tensors.emplace(t.name, t);
  }
  return tensors;
}

TEST(TensorsTest, NameOwners) {
  const auto tensors = TensorsOf("apertus");
  EXPECT_EQ(tensors.at("model.embed_tokens.weight").owner.kind,
            TensorOwner::Kind::kEmbedding);
  EXPECT_EQ(tensors.at("lm_head.weight").owner.kind, TensorOwner::Kind::kFinal);
  EXPECT_EQ(tensors.at("model.norm.weight").owner.kind,
            TensorOwner::Kind::kFinal);
  EXPECT_EQ(tensors.at("model.layers.3.mlp.up_proj.weight").owner,
            (TensorOwner{TensorOwner::Kind::kLayer, 3}));
}

TEST(TensorsTest, ApertusHasItsOwnNormNamesAndOneWeightPerHeadDim) {
  const auto tensors = TensorsOf("apertus");
  EXPECT_TRUE(tensors.count("model.layers.0.attention_layernorm.weight"));
  EXPECT_TRUE(tensors.count("model.layers.0.feedforward_layernorm.weight"));
  EXPECT_FALSE(tensors.count("model.layers.0.input_layernorm.weight"));
  EXPECT_EQ(tensors.at("model.layers.0.self_attn.q_norm.weight").shape,
            (Shape{16}));
}

TEST(TensorsTest, ApertusMayLackBetaAndEpsOfItsActivation) {
  const auto tensors = TensorsOf("apertus-4x-sharded");
  for (const char* name : {"beta", "eps"}) {
    EXPECT_TRUE(
        tensors.at(std::string("model.layers.0.mlp.act_fn.") + name).optional);
  }
  const TensorDecl& alpha = tensors.at("model.layers.0.mlp.act_fn.alpha_p");
  EXPECT_FALSE(alpha.optional);
  EXPECT_TRUE(alpha.any_one_element);
}

TEST(TensorsTest, TwoMatrixDecodersHaveNoGate) {
  for (const char* checkpoint : {"apertus", "arcee"}) {
    for (const auto& [name, tensor] : TensorsOf(checkpoint)) {
      EXPECT_THAT(name, Not(HasSubstr("gate")));
    }
  }
}

TEST(TensorsTest, SparkFusesQueriesKeysAndValues) {
  const auto tensors = TensorsOf("spark2_5");
  EXPECT_EQ(tensors.size(), 5 * 8 + 2);
  EXPECT_EQ(tensors.at("model.layers.0.self_attn.q_k_v_proj.weight").shape,
            (Shape{(6 + 2 + 2) * 24, 64}));
  EXPECT_EQ(tensors.at("model.layers.0.self_attn.g_proj.weight").shape,
            (Shape{6, 64}));
  EXPECT_TRUE(tensors.count("model.embedding.weight"));
}

// The norms are those of sublayers' outputs; there is none before a sublayer.
TEST(TensorsTest, Exaone4HasNoNormsBeforeSublayers) {
  const auto tensors = TensorsOf("exaone4-hybrid");
  EXPECT_EQ(tensors.size(), 5 * 11 + 3);
  EXPECT_TRUE(
      tensors.count("model.layers.0.post_feedforward_layernorm.weight"));
  EXPECT_FALSE(tensors.count("model.layers.0.input_layernorm.weight"));
}

TEST(TensorsTest, ATiedHeadIsTheEmbeddingOfBothEnds) {
  const TinyCheckpoint tiny = TinyCheckpoint::Open("exaone4-tied");
  const std::vector<TensorDecl> tensors =
      tiny.decoder->tensors(tiny.config()).value();
  std::vector<TensorOwner::Kind> owners;
  for (const TensorDecl& t : tensors) {
    EXPECT_NE(t.name, "lm_head.weight");
    if (t.name == "model.embed_tokens.weight") owners.push_back(t.owner.kind);
  }
  EXPECT_EQ(owners, (std::vector{TensorOwner::Kind::kEmbedding,
                                 TensorOwner::Kind::kFinal}));
}

TEST(TensorsTest, NanbeigeHasEachWeightOnce) {
  EXPECT_EQ(TensorsOf("nanbeige").size(), 3 * 9 + 3);
}

}  // namespace
}  // namespace baton::testing
