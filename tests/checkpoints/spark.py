# SPDX-License-Identifier: Apache-2.0
"""Spark 2.5 for make.py: the specs, the weights of its own names, and its
forward in plain PyTorch, written from the formulas."""
import torch

import nanbeige

COMMON = {
    "architectures": ["Spark2_5ForCausalLM"],
    "model_type": "spark2_5",
    "hidden_act": "gelu",
    "headwise_attn_output_gate": True,
    "gate_attn_act_mode": "sigmoid",
    "mlp_bias": False,
}
SLIDING, FULL = "sliding_attention", "full_attention"


def specs(common_4x, common_5x):
    return {
        "spark2_5": {
            "seed": 111,
            "generation": {"eos_token_id": 1},
            "config": common_4x | COMMON | {
                "hidden_size": 64,
                "head_dim": 24,  # heads * head_dim = 144
                "intermediate_size": 100,
                "num_hidden_layers": 5,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "vocab_size": 317,
                "rms_norm_eps": 0.0175,
                "max_position_embeddings": 416,
                "sliding_window": 13,
                "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
                "rope_parameters": {
                    FULL: {
                        "rope_type": "default",
                        "rope_theta": 900.0,
                        "partial_rotary_factor": 0.5,
                    },
                    SLIDING: {
                        "rope_type": "default",
                        "rope_theta": 120.0,
                        "partial_rotary_factor": 1.0,
                    },
                },
                "tie_word_embeddings": True,
            },
        },
        "spark2_5-ranks": {
            "seed": 117,
            "generation": {"eos_token_id": 1},
            "config": common_5x | COMMON | {
                "hidden_size": 64,
                "head_dim": 32,
                "intermediate_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "vocab_size": 284,
                "rms_norm_eps": 0.0175,
                "max_position_embeddings": 192,
                "sliding_window": 11,
                "layer_types": [SLIDING, FULL, SLIDING],
                "rope_parameters": {
                    FULL: {
                        "rope_type": "default",
                        "rope_theta": 800.0,
                        "partial_rotary_factor": 0.25,
                    },
                    SLIDING: {
                        "rope_type": "default",
                        "rope_theta": 150.0,
                        "partial_rotary_factor": 1.0,
                    },
                },
                "tie_word_embeddings": True,
            },
        },
    }


def renamed(tensors):
    """From the names of the others to Spark's."""
    out = {}
    for key, tensor in tensors.items():
        if key == "model.embed_tokens.weight":
            out["model.embedding.weight"] = tensor
        elif key.endswith(".q_proj.weight"):
            p = key.removesuffix("q_proj.weight")
            out[p + "q_k_v_proj.weight"] = torch.cat(
                [tensors[f"{p}{x}_proj.weight"] for x in "qkv"])
        elif key.endswith("o_proj.weight"):
            out[key.replace("o_proj", "out_proj")] = tensor
        elif not key.endswith((".k_proj.weight", ".v_proj.weight")):
            out[key] = tensor
    return out


def rotate(x, rope):
    """x: [heads, positions, head_dim]; its first dimensions are rotated."""
    rotary = int(x.shape[-1] * rope["partial_rotary_factor"])
    pairs = torch.arange(0, rotary, 2, dtype=torch.float32)
    angle = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * (
        1.0 / rope["rope_theta"] ** (pairs / rotary))
    turned = nanbeige.rotate(x[..., :rotary], torch.cos(angle),
                             torch.sin(angle))
    return torch.cat((turned, x[..., rotary:]), -1)


def attention(config, w, prefix, x, kind):
    n, dim = x.shape[0], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    qkv = x @ w[prefix + "q_k_v_proj.weight"].T
    q, k, v = (part.view(n, -1, dim).transpose(0, 1) for part in qkv.split(
        [heads * dim, kv_heads * dim, kv_heads * dim], -1))
    rope = config["rope_parameters"][kind]
    q, k = rotate(q, rope), rotate(k, rope)
    back = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    hidden = back < 0
    if kind == SLIDING:
        hidden = hidden | (back >= config["sliding_window"])
    gate = torch.sigmoid(x @ w[prefix + "g_proj.weight"].T)  # [n, heads]
    out = torch.empty(n, heads, dim)
    for h in range(heads):
        g = h // (heads // kv_heads)
        scores = (q[h] @ k[g].T * dim**-0.5).masked_fill(hidden, float("-inf"))
        out[:, h] = torch.softmax(scores, -1) @ v[g] * gate[:, h, None]
    return out.reshape(n, heads * dim) @ w[prefix + "out_proj.weight"].T


def mlp(w, prefix, x):
    gate = x @ w[prefix + "gate_proj.weight"].T
    up = x @ w[prefix + "up_proj.weight"].T
    gelu = gate * 0.5 * (1 + torch.erf(gate / 2**0.5))
    return gelu * up @ w[prefix + "down_proj.weight"].T


def forward(config, w, ids):
    """ids: list of token ids; returns logits [positions, vocab] in fp32."""
    eps = config["rms_norm_eps"]
    table = w["model.embedding.weight"]
    h = table[torch.tensor(ids)]
    for i, kind in enumerate(config["layer_types"]):
        p = f"model.layers.{i}."
        x = nanbeige.rms_norm(h, w[p + "input_layernorm.weight"], eps)
        h = h + attention(config, w, p + "self_attn.", x, kind)
        x = nanbeige.rms_norm(h, w[p + "post_attention_layernorm.weight"], eps)
        h = h + mlp(w, p + "mlp.", x)
    return nanbeige.rms_norm(h, w["model.norm.weight"], eps) @ table.T
