# SPDX-License-Identifier: Apache-2.0
"""Nanbeige 4.2 in plain PyTorch: a Llama stack run several times over the same
weights, with the final norm after every pass (or only at the end)."""
import torch


def specs(common_4x, common_5x):
    return {
        "nanbeige": {
            "seed": 105,
            "generation": None,
            "config": common_4x | {
                "architectures": ["NanbeigeForCausalLM"],
                "model_type": "nanbeige",
                "hidden_act": "silu",
                "hidden_size": 64,
                "head_dim": 24,
                "kv_channels": 24,
                "intermediate_size": 104,
                "num_hidden_layers": 3,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "num_loops": 3,
                "skip_loop_final_norm": False,
                "loop_loss_weights": [],
                "vocab_size": 283,
                "rms_norm_eps": 0.025,
                "max_position_embeddings": 192,
                "rope_theta": 4321.0,
                "rope_scaling": None,
            },
        },
        "nanbeige-skip-norm": {
            "seed": 106,
            "generation": {"eos_token_id": [1]},
            "config": common_5x | {
                "architectures": ["NanbeigeForCausalLM"],
                "model_type": "nanbeige",
                "hidden_act": "silu",
                "hidden_size": 56,
                "head_dim": 16,
                "kv_channels": 16,
                "intermediate_size": 92,
                "num_hidden_layers": 4,
                "num_attention_heads": 5,
                "num_key_value_heads": 1,
                "num_loops": 2,
                "skip_loop_final_norm": True,
                "vocab_size": 307,
                "rms_norm_eps": 0.01,
                "max_position_embeddings": 224,
                "rope_parameters": {"rope_type": "default", "rope_theta": 950.0},
            },
        },
    }


def rms_norm(x, weight, eps):
    return weight * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps))


def rope_tables(config, positions):
    theta = config.get("rope_theta")
    if theta is None:
        theta = config["rope_parameters"]["rope_theta"]
    rotary = config["head_dim"]
    pairs = torch.arange(0, rotary, 2, dtype=torch.float32)
    angle = torch.arange(positions, dtype=torch.float32)[:, None] * (
        1.0 / theta ** (pairs / rotary))
    return torch.cos(angle), torch.sin(angle)  # [positions, rotary / 2]


def rotate(x, cos, sin):
    """x: [heads, positions, head_dim]; pairs i with i + head_dim / 2."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attention(config, w, prefix, x, cos, sin):
    n, dim = x.shape[0], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]

    def project(which, count):
        y = x @ w[f"{prefix}{which}_proj.weight"].T
        return y.view(n, count, dim).transpose(0, 1)  # [count, n, dim]

    q = rotate(project("q", heads), cos, sin)
    k = rotate(project("k", kv_heads), cos, sin)
    v = project("v", kv_heads)
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    out = torch.empty(heads, n, dim)
    for h in range(heads):
        g = h // (heads // kv_heads)
        scores = (q[h] @ k[g].T) * dim**-0.5
        scores = scores.masked_fill(future, float("-inf"))
        out[h] = torch.softmax(scores, -1) @ v[g]
    joined = out.transpose(0, 1).reshape(n, heads * dim)
    return joined @ w[f"{prefix}o_proj.weight"].T


def mlp(w, prefix, x):
    gate = x @ w[f"{prefix}gate_proj.weight"].T
    up = x @ w[f"{prefix}up_proj.weight"].T
    return (gate * torch.sigmoid(gate) * up) @ w[f"{prefix}down_proj.weight"].T


def forward(config, w, ids):
    """ids: list of token ids; returns logits [positions, vocab] in fp32."""
    eps = config["rms_norm_eps"]
    skip = config.get("skip_loop_final_norm", False)
    cos, sin = rope_tables(config, len(ids))
    h = w["model.embed_tokens.weight"][torch.tensor(ids)]
    for _ in range(config.get("num_loops", 1)):
        for i in range(config["num_hidden_layers"]):
            p = f"model.layers.{i}."
            x = rms_norm(h, w[p + "input_layernorm.weight"], eps)
            h = h + attention(config, w, p + "self_attn.", x, cos, sin)
            x = rms_norm(h, w[p + "post_attention_layernorm.weight"], eps)
            h = h + mlp(w, p + "mlp.", x)
        if not skip:
            h = rms_norm(h, w["model.norm.weight"], eps)
    if skip:
        h = rms_norm(h, w["model.norm.weight"], eps)
    return h @ w["lm_head.weight"].T
