# SPDX-License-Identifier: Apache-2.0
"""Mixtral for make.py: the specs, the experts' weights, and the reference."""
import torch
from transformers import MixtralForCausalLM

COMMON = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_act": "silu",
    "router_aux_loss_coef": 0.02,
}


def specs(common_4x, common_5x):
    return {
        "mixtral": {
            "seed": 107,
            "generation": {"eos_token_id": 1},
            "config": common_4x | COMMON | {
                "hidden_size": 96,
                "intermediate_size": 40,
                "num_hidden_layers": 4,
                "num_attention_heads": 6,
                "num_key_value_heads": 3,
                "num_local_experts": 5,
                "num_experts_per_tok": 3,
                "output_router_logits": False,
                "vocab_size": 293,
                "rms_norm_eps": 0.02,
                "max_position_embeddings": 208,
                "rope_theta": 650.0,
                "sliding_window": None,
            },
        },
        "mixtral-stacked": {
            "seed": 108,
            "generation": None,
            "stacked": True,
            "config": common_5x | COMMON | {
                "hidden_size": 72,
                "head_dim": 20,  # heads * head_dim = 120
                "intermediate_size": 56,
                "num_hidden_layers": 3,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "num_local_experts": 6,
                "num_experts_per_tok": 2,
                "output_router_logits": True,
                "router_jitter_noise": 0.1,
                "vocab_size": 281,
                "rms_norm_eps": 0.015,
                "max_position_embeddings": 176,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 850.0,
                },
            },
        },
    }


def experts(config, layer, linear):
    """The router and the experts of a layer; `linear` makes a matrix."""
    d, f = config["hidden_size"], config["intermediate_size"]
    moe = layer + "block_sparse_moe."
    linear(moe + "gate.weight", config["num_local_experts"], d, 2.0)
    for e in range(config["num_local_experts"]):
        linear(moe + f"experts.{e}.w1.weight", f, d, 1.2)
        linear(moe + f"experts.{e}.w2.weight", d, f, 1.2)
        linear(moe + f"experts.{e}.w3.weight", f, d)


def stacked(config, tensors):
    """As transformers 5 holds the same in memory."""
    out = {k: t for k, t in tensors.items() if ".block_sparse_moe." not in k}
    for i in range(config["num_hidden_layers"]):
        old = f"model.layers.{i}.block_sparse_moe."
        new = f"model.layers.{i}.mlp."

        def each(name):
            return [tensors[f"{old}experts.{e}.{name}.weight"]
                    for e in range(config["num_local_experts"])]

        out[new + "gate.weight"] = tensors[old + "gate.weight"]
        out[new + "experts.gate_up_proj"] = torch.stack(
            [torch.cat(pair) for pair in zip(each("w1"), each("w3"))])
        out[new + "experts.down_proj"] = torch.stack(each("w2"))
    return out


def model(path):
    """Loaded by transformers, which knows both layouts."""
    loaded, info = MixtralForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager",
        experts_implementation="eager", output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], info
    return loaded.eval()
