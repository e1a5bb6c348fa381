# SPDX-License-Identifier: Apache-2.0
"""EXAONE 4.0 for make.py: the specs and the reference."""
import torch
from transformers import Exaone4ForCausalLM

COMMON = {
    "architectures": ["Exaone4ForCausalLM"],
    "model_type": "exaone4",
    "hidden_act": "silu",
}
SLIDING, FULL = "sliding_attention", "full_attention"


def specs(common_4x, common_5x):
    return {
        "exaone4-hybrid": {
            "seed": 109,
            "generation": {"eos_token_id": 1},
            "config": common_5x | COMMON | {
                "hidden_size": 72,
                "head_dim": 20,  # heads * head_dim = 120
                "intermediate_size": 104,
                "num_hidden_layers": 5,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "vocab_size": 287,
                "rms_norm_eps": 0.02,
                "max_position_embeddings": 400,
                "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING],
                "sliding_window": 11,
                "sliding_window_pattern": "LLG",
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 600.0,
                    "factor": 6.0,
                    "low_freq_factor": 1.25,
                    "high_freq_factor": 3.5,
                    "original_max_position_embeddings": 32,
                },
            },
        },
        "exaone4-tied": {
            "seed": 110,
            "generation": None,
            "config": common_4x | COMMON | {
                "hidden_size": 60,
                "head_dim": 16,  # heads * head_dim = 80
                "intermediate_size": 88,
                "num_hidden_layers": 4,
                "num_attention_heads": 5,
                "num_key_value_heads": 1,
                "vocab_size": 311,
                "rms_norm_eps": 0.03,
                "max_position_embeddings": 240,
                "layer_types": [FULL] * 4,
                "sliding_window": None,
                "sliding_window_pattern": None,
                "tie_word_embeddings": True,
                "rope_theta": 800.0,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 7.0,
                    "low_freq_factor": 1.5,
                    "high_freq_factor": 4.5,
                    "original_max_position_embeddings": 48,
                },
            },
        },
    }


def model(path):
    loaded, info = Exaone4ForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager",
        output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], info
    return loaded.eval()
