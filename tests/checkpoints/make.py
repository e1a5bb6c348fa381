#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tiny seeded checkpoints of this folder and their golden.json.

    python3 make.py [NAME ...]        needs torch, transformers 5.17, tokenizers

Apertus, Arcee, EXAONE, Kimi-Linear and Mixtral are computed by transformers;
Nanbeige and Spark, which it does not have, by the forwards in nanbeige.py and
spark.py, checked against the published golden values of a trained checkpoint of
each family (largest difference of a log-probability 5e-5, same greedy tokens).
Everything is fp32 arithmetic over bf16 weights.
"""
import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, ApertusForCausalLM, ArceeForCausalLM

import exaone4
import kimi_linear
import mixtral
import nanbeige
import spark

HERE = pathlib.Path(__file__).resolve().parent
SPECIALS = ["<|begin|>", "<|end|>", "<|pad|>"]
TOP = 8
GREEDY = 16

COMMON_4X = {"torch_dtype": "bfloat16", "transformers_version": "4.56.0"}
COMMON_5X = {"dtype": "bfloat16", "transformers_version": "5.17.0"}
LLAMA3_BITES = {  # pair 0 unchanged, 1 and 2 blended, the rest divided
    "factor": 5.0,
    "low_freq_factor": 1.25,
    "high_freq_factor": 3.5,
    "original_max_position_embeddings": 32,
}

SPECS = {
    "apertus": {
        "seed": 101,
        "generation": {"eos_token_id": [1, 7]},
        "config": COMMON_5X | {
            "architectures": ["ApertusForCausalLM"],
            "model_type": "apertus",
            "hidden_act": "xielu",
            "hidden_size": 96,
            "intermediate_size": 136,
            "num_hidden_layers": 4,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "vocab_size": 331,
            "rms_norm_eps": 0.02,
            "max_position_embeddings": 160,
            "rope_parameters": LLAMA3_BITES
            | {"rope_theta": 500.0, "rope_type": "llama3"},
        },
    },
    "apertus-4x-sharded": {
        "seed": 102,
        "shards": 2,
        "generation": None,
        "config": COMMON_4X | {
            "architectures": ["ApertusForCausalLM"],
            "model_type": "apertus",
            "hidden_act": "xielu",
            "hidden_size": 80,
            "intermediate_size": 112,
            "num_hidden_layers": 3,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "vocab_size": 277,
            "rms_norm_eps": 0.03,
            "max_position_embeddings": 320,
            "rope_theta": 700.0,
            "rope_scaling": LLAMA3_BITES
            | {"type": "llama3", "rope_type": "llama3", "factor": 9.0},
            "qk_norm": True,
            "post_norm": False,
            "mlp_bias": False,
        },
    },
    "arcee": {
        "seed": 103,
        "generation": {"eos_token_id": 1},
        "config": COMMON_4X | {
            "architectures": ["ArceeForCausalLM"],
            "model_type": "arcee",
            "hidden_act": "relu2",
            "hidden_size": 72,
            "head_dim": 24,  # heads * head_dim = 144, twice the hidden size
            "intermediate_size": 120,
            "num_hidden_layers": 5,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "vocab_size": 299,
            "rms_norm_eps": 0.015,
            "max_position_embeddings": 512,
            "mlp_bias": False,
            "rope_theta": 1000.0,
            "rope_scaling": {  # ramp from pair 2 to pair 7 of 12
                "type": "yarn",
                "rope_type": "yarn",
                "factor": 6.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 4.0,
                "beta_slow": 0.5,
                "mscale": 1.0,
            },
        },
    },
    "arcee-ranks": {
        "seed": 115,
        "generation": {"eos_token_id": 1},
        "config": COMMON_5X | {
            "architectures": ["ArceeForCausalLM"],
            "model_type": "arcee",
            "hidden_act": "relu2",
            "hidden_size": 64,
            "head_dim": 32,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 284,
            "rms_norm_eps": 0.0175,
            "max_position_embeddings": 192,
            "mlp_bias": False,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 400.0,
                "factor": 4.0,
                "original_max_position_embeddings": 48,
            },
        },
    },
    "arcee-mscale": {
        "seed": 104,
        "generation": {"eos_token_id": 1},
        "config": COMMON_5X | {
            "architectures": ["ArceeForCausalLM"],
            "model_type": "arcee",
            "hidden_act": "relu2",
            "hidden_size": 60,
            "head_dim": 16,
            "intermediate_size": 88,
            "num_hidden_layers": 3,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "vocab_size": 271,
            "rms_norm_eps": 0.0125,
            "max_position_embeddings": 256,
            "mlp_bias": False,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 300.0,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 6.0,
                "beta_slow": 0.75,
                "mscale": 1.7,
                "mscale_all_dim": 0.4,
                "truncate": False,
            },
        },
    },
}
for family in (mixtral, nanbeige, exaone4, kimi_linear, spark):
    SPECS |= family.specs(COMMON_4X, COMMON_5X)
for spec in SPECS.values():
    for key, value in {
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }.items():
        spec["config"].setdefault(key, value)


def head_dim(c):
    return c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])


def weights(name, spec):
    """name -> tensor, scaled so that logits spread and nothing explodes."""
    c, family = spec["config"], spec["config"]["model_type"]
    g = torch.Generator().manual_seed(spec["seed"])
    out = {}

    def linear(key, rows, columns, gain=1.0):
        w = torch.randn(rows, columns, generator=g) * gain * columns**-0.5
        out[key] = w.bfloat16()

    def norm(key, size, spread=0.3):
        w = 1 + spread * torch.randn(size, generator=g)
        out[key] = w.bfloat16()

    d, f, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    tied = c["tie_word_embeddings"]
    table = torch.randn(v, d, generator=g) * (2 * d**-0.5 if tied else 1)
    out["model.embed_tokens.weight"] = table.bfloat16()
    if family == "kimi_linear":
        kimi_linear.weights(c, spec, g, out, linear, norm)
        norm("model.norm.weight", d)
        linear("lm_head.weight", v, d, 2.0)
        return out
    q = c["num_attention_heads"] * head_dim(c)
    kv = c["num_key_value_heads"] * head_dim(c)
    attention_norm, mlp_norm = {
        "apertus": ("attention_layernorm", "feedforward_layernorm"),
        "arcee": ("input_layernorm", "post_attention_layernorm"),
        "exaone4": ("post_attention_layernorm", "post_feedforward_layernorm"),
        "mixtral": ("input_layernorm", "post_attention_layernorm"),
        "nanbeige": ("input_layernorm", "post_attention_layernorm"),
        "spark2_5": ("input_layernorm", "post_attention_layernorm"),
    }[family]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        norm(p + attention_norm + ".weight", d)
        norm(p + mlp_norm + ".weight", d)
        sharp = 1.0 if family in ("apertus", "exaone4") else 1.4
        linear(p + "self_attn.q_proj.weight", q, d, sharp)
        linear(p + "self_attn.k_proj.weight", kv, d, sharp)
        linear(p + "self_attn.v_proj.weight", kv, d)
        linear(p + "self_attn.o_proj.weight", d, q, 1.2)
        if family in ("apertus", "exaone4"):
            for which in ("q_norm", "k_norm"):
                norm(p + f"self_attn.{which}.weight", head_dim(c))
                out[p + f"self_attn.{which}.weight"] *= 1.5
        if family == "apertus":
            scalar = lambda x: torch.tensor(x).bfloat16()
            act = p + "mlp.act_fn."
            out[act + "alpha_p"] = scalar([0.2 + 0.3 * i])
            out[act + "alpha_n"] = scalar([-1.05 + 0.45 * i])
            if name == "apertus":  # the other file leaves them out
                out[act + "beta"] = scalar(0.375 + 0.125 * i)
                out[act + "eps"] = scalar(-0.125 * (i + 1))
        if family == "mixtral":
            mixtral.experts(c, p, linear)
            continue
        if family == "spark2_5":
            linear(p + "self_attn.g_proj.weight", c["num_attention_heads"], d, 2)
        if family in ("nanbeige", "exaone4", "spark2_5"):
            linear(p + "mlp.gate_proj.weight", f, d, 1.2)
        linear(p + "mlp.up_proj.weight", f, d)
        linear(p + "mlp.down_proj.weight", d, f, 0.8)
    norm("model.norm.weight", d)
    if not tied:
        linear("lm_head.weight", v, d, 2.0)
    if family == "spark2_5":
        return spark.renamed(out)
    return mixtral.stacked(c, out) if spec.get("stacked") else out


def save(path, spec, tensors):
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    write_json(path / "config.json", spec["config"])
    if spec["generation"]:
        write_json(path / "generation_config.json",
                   {"bos_token_id": 0, "pad_token_id": 2} | spec["generation"])
    meta = {"format": "pt"}
    shards = spec.get("shards", 1)
    if shards == 1:
        save_file(tensors, path / "model.safetensors", meta)
        return
    names = sorted(tensors)
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
             "weight_map": {}}
    for s in range(shards):
        part = names[s * len(names) // shards:(s + 1) * len(names) // shards]
        file = f"model-{s + 1:05}-of-{shards:05}.safetensors"
        save_file({n: tensors[n] for n in part}, path / file, meta)
        index["weight_map"] |= {n: file for n in part}
    write_json(path / "model.safetensors.index.json", index)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def tokenizer(path, vocab_size):
    """Byte-level, ids 0-2 special, 3-258 single bytes, then pairs of bytes;
    the last five rows of the vocabulary have no token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {s: i for i, s in enumerate(SPECIALS)}
    for c in alphabet:
        vocab[c] = len(vocab)
    merges = []
    while len(vocab) < vocab_size - 5:
        n = len(merges)
        pair = (alphabet[(n * 37 + 60) % 256], alphabet[(n * 91 + 71) % 256])
        merges.append(pair)
        vocab["".join(pair)] = len(vocab)
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True) for s in SPECIALS])
    t.save(str(path / "tokenizer.json"))
    return t


def forward_of(path, spec):
    """ids -> logits [positions, vocab], fp32."""
    tensors = {}
    for file in sorted(path.glob("*.safetensors")):
        tensors |= {k: v.float() for k, v in load_file(file).items()}
    config = spec["config"]
    for model_type, family in (("nanbeige", nanbeige), ("spark2_5", spark)):
        if config["model_type"] == model_type:
            return lambda ids: family.forward(config, tensors, ids)
    for family in (mixtral, exaone4):
        if config["model_type"] == family.COMMON["model_type"]:
            return logits_of(family.model(path))
    if config["model_type"] == "mixtral":
        return logits_of(mixtral.model(path))
    if config["model_type"] == "kimi_linear":
        return logits_of(kimi_linear.model(path))
    cls = {"apertus": ApertusForCausalLM, "arcee": ArceeForCausalLM}
    hf = AutoConfig.from_pretrained(path, attn_implementation="eager")
    model = cls[config["model_type"]](hf).float().eval()
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected, unexpected
    for key in missing:  # what a file without these two means
        assert key.endswith(("act_fn.beta", "act_fn.eps")), key
        value = 0.5 if key.endswith("beta") else -1e-6
        model.get_buffer(key).fill_(value)
    return logits_of(model)


def logits_of(model):
    def forward(ids):
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids])).logits[0]

    return forward


def rounded(values, digits):
    return [round(x, digits) for x in values]


def case(forward, prompt):
    logits = forward(prompt)
    top = torch.log_softmax(logits, -1).topk(TOP, -1)
    ids, logprobs, margins = list(prompt), [], []
    for _ in range(GREEDY):
        step = torch.log_softmax(forward(ids)[-1], -1).topk(2)
        ids.append(int(step.indices[0]))
        logprobs.append(float(step.values[0]))
        margins.append(float(step.values[0] - step.values[1]))
    return {
        "prompt_ids": prompt,
        "topk_ids": top.indices.tolist(),
        "topk_logprobs": [rounded(row, 6) for row in top.values.tolist()],
        "last_logits": rounded(logits[-1].tolist(), 5),
        "greedy_ids": ids[len(prompt):],
        "greedy_logprobs": rounded(logprobs, 6),
        "greedy_margin": rounded(margins, 6),
    }


def make(name):
    spec = SPECS[name]
    path = HERE / name
    save(path, spec, weights(name, spec))
    vocab = spec["config"]["vocab_size"]
    tok = tokenizer(path, vocab)
    forward = forward_of(path, spec)
    g = torch.Generator().manual_seed(spec["seed"])
    cases = []
    for length in (5, 17, 40):
        prompt = torch.randint(3, vocab, (length,), generator=g).tolist()
        cases.append(case(forward, prompt))
        cases[-1]["text"] = tok.decode(cases[-1]["greedy_ids"])
    lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases)
    for file in path.glob("*.safetensors"):
        file.chmod(0o644)
    (path / "golden.json").write_text(
        '{"note": "fp32 arithmetic over the bf16 weights", "cases": [\n'
        + lines + "\n]}\n")
    margins = sum((c["greedy_margin"] for c in cases), [])
    size = sum(f.stat().st_size for f in path.iterdir())
    print(f"{name}: {size} bytes, least greedy margin {min(margins):.4f}, "
          f"median {sorted(margins)[len(margins) // 2]:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for checkpoint in sys.argv[1:] or SPECS:
        make(checkpoint)
