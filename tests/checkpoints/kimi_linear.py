# SPDX-License-Identifier: Apache-2.0
"""Kimi-Linear for make.py: the specs, the weights, and the reference."""
import torch
from transformers import KimiLinearForCausalLM

COMMON = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "hidden_act": "silu",
    "q_lora_rank": None,
    "moe_renormalize": True,
    "routed_scaling_factor": 1.7,
}


def specs(common_4x, common_5x):
    return {
        "kimi-linear": {
            "seed": 114,
            "generation": {"eos_token_id": 1},
            "floats": True,  # what is used in fp32 is stored as fp32
            "config": common_4x | COMMON | {
                "hidden_size": 72,
                "head_dim": 24,  # means nothing
                "intermediate_size": 68,
                "num_hidden_layers": 5,
                "num_attention_heads": 3,
                "num_key_value_heads": 3,
                "kv_lora_rank": 36,
                "qk_nope_head_dim": 20,
                "qk_rope_head_dim": 12,
                "v_head_dim": 28,
                "mla_use_nope": True,
                "linear_attn_config": {
                    "head_dim": 20,
                    "num_heads": 3,
                    "short_conv_kernel_size": 4,
                    "kda_layers": [1, 2, 4],
                    "full_attn_layers": [3, 5],
                },
                "num_experts": 12,
                "num_experts_per_token": 3,
                "num_shared_experts": 2,
                "moe_intermediate_size": 20,
                "first_k_dense_replace": 2,
                "moe_layer_freq": 1,
                "moe_router_activation_func": "sigmoid",
                "use_grouped_topk": True,
                "num_expert_group": 3,
                "topk_group": 2,
                "num_nextn_predict_layers": 0,
                "vocab_size": 301,
                "rms_norm_eps": 0.02,
                "model_max_length": 208,
                "rope_theta": 10000.0,
                "rope_scaling": None,
            },
        },
        "kimi-linear-5x": {
            "seed": 115,
            "generation": None,
            "config": common_5x | COMMON | {
                "hidden_size": 64,
                "head_dim": 6,
                "intermediate_size": 56,
                "num_hidden_layers": 4,
                "num_attention_heads": 5,
                "num_key_value_heads": 5,
                "kv_lora_rank": 24,
                "qk_head_dim": 14,
                "qk_nope_head_dim": 8,
                "qk_rope_head_dim": 6,
                "v_head_dim": 10,
                "linear_head_dim": 36,
                "linear_num_heads": 2,
                "linear_conv_kernel_dim": 3,
                "layer_types": ["full_attention", "linear_attention",
                                "linear_attention", "full_attention"],
                "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
                "num_experts": 8,
                "num_experts_per_token": 2,
                "num_shared_experts": 1,
                "moe_intermediate_size": 20,
                "num_expert_group": 2,
                "topk_group": 1,
                "vocab_size": 287,
                "rms_norm_eps": 0.015,
                "model_max_length": 224,
            },
        },
        "kimi-linear-ranks": {
            "seed": 116,
            "generation": {"eos_token_id": 1},
            "config": common_5x | COMMON | {
                "hidden_size": 48,
                "head_dim": 12,
                "intermediate_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "kv_lora_rank": 28,
                "qk_head_dim": 22,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 6,
                "v_head_dim": 32,
                "linear_head_dim": 32,
                "linear_num_heads": 4,
                "linear_conv_kernel_dim": 4,
                "layer_types": ["linear_attention", "full_attention",
                                "linear_attention"],
                "mlp_layer_types": ["dense", "sparse", "sparse"],
                "num_experts": 4,
                "num_experts_per_token": 2,
                "num_shared_experts": 1,
                "moe_intermediate_size": 128,
                "num_expert_group": 1,
                "topk_group": 1,
                "vocab_size": 284,
                "rms_norm_eps": 0.015,
                "model_max_length": 192,
            },
        },
    }


def linear_attention(c):
    """head_dim, num_heads, taps, and which layers."""
    published = c.get("linear_attn_config")
    if published:
        layers = [i + 1 in published["kda_layers"]
                  for i in range(c["num_hidden_layers"])]
        return (published["head_dim"], published["num_heads"],
                published["short_conv_kernel_size"], layers)
    return (c["linear_head_dim"], c["linear_num_heads"],
            c["linear_conv_kernel_dim"],
            [t == "linear_attention" for t in c["layer_types"]])


def weights(c, spec, g, out, linear, norm):
    """The layers; `linear` and `norm` add a tensor of `g`'s numbers to out."""
    d = c["hidden_size"]
    dim, heads, taps, is_linear = linear_attention(c)
    wide = dim * heads
    dense = [i < c.get("first_k_dense_replace", 0)
             for i in range(c["num_hidden_layers"])]
    if "mlp_layer_types" in c:
        dense = [t == "dense" for t in c["mlp_layer_types"]]

    def floats(key, tensor):
        out[key] = tensor if spec.get("floats") else tensor.bfloat16()

    def rand(*shape):
        return torch.randn(*shape, generator=g)

    def kda(at):
        for x in "qkv":
            linear(at + f"{x}_proj.weight", wide, d)
            floats(at + f"{x}_conv1d.weight", rand(wide, 1, taps) * 0.7)
        linear(at + "f_a_proj.weight", dim, d)
        linear(at + "f_b_proj.weight", wide, dim)
        linear(at + "b_proj.weight", heads, d, 1.5)
        linear(at + "g_a_proj.weight", dim, d, 1.5)
        linear(at + "g_b_proj.weight", wide, dim, 1.5)
        rate = 0.1 + torch.rand(1, 1, heads, 1, generator=g)
        floats(at + "A_log", rate.log())
        floats(at + "dt_bias", 0.6 * rand(wide) - 1)
        floats(at + "o_norm.weight", 1 + 0.3 * rand(dim))
        linear(at + "o_proj.weight", d, wide, 2.0)

    def mla(at):
        n, nope, rope = (c["num_attention_heads"], c["qk_nope_head_dim"],
                         c["qk_rope_head_dim"])
        latent, v = c["kv_lora_rank"], c["v_head_dim"]
        linear(at + "q_proj.weight", n * (nope + rope), d, 1.6)
        linear(at + "kv_a_proj_with_mqa.weight", latent + rope, d, 1.2)
        norm(at + "kv_a_layernorm.weight", latent)
        linear(at + "kv_b_proj.weight", n * (nope + v), latent, 1.2)
        linear(at + "o_proj.weight", d, n * v, 1.2)

    def gated(at, f, names=("gate_proj", "up_proj", "down_proj")):
        linear(at + names[0] + ".weight", f, d, 1.2)
        linear(at + names[1] + ".weight", f, d)
        linear(at + names[2] + ".weight", d, f, 1.2)

    def mixture(at):
        f = c["moe_intermediate_size"]
        linear(at + "gate.weight", c["num_experts"], d, 2.5)
        floats(at + "gate.e_score_correction_bias",
               0.2 * rand(c["num_experts"]))
        for e in range(c["num_experts"]):
            gated(at + f"experts.{e}.", f, ("w1", "w3", "w2"))
        gated(at + "shared_experts.", f * c["num_shared_experts"])

    # As transformers saves them, all FFNs have the name of the mixtures.
    dense_name = "mlp." if "linear_attn_config" in c else "block_sparse_moe."
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        norm(p + "input_layernorm.weight", d)
        norm(p + "post_attention_layernorm.weight", d)
        (kda if is_linear[i] else mla)(p + "self_attn.")
        if dense[i]:
            gated(p + dense_name, c["intermediate_size"])
        else:
            mixture(p + "block_sparse_moe.")


def model(path):
    """Loaded by transformers, which knows both layouts."""
    loaded, info = KimiLinearForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager",
        experts_implementation="eager", output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], info
    return loaded.eval()
