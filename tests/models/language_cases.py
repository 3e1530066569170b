"""The language models that are compared with transformers: configurations, weights and inputs.

Weights are drawn by name, so that both sides compute them; what transformers makes of them is in
tests/fixtures/language_models.npz, written by tests/fixtures/make_language_fixtures.py.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

VOCABULARY = 53
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@dataclass(frozen=True)
class Case:
    """A model of transformers: its class, the class and arguments of its configuration."""

    name: str
    model: str
    config: str
    arguments: dict[str, Any] = field(default_factory=dict)
    kind: str = "causal"  # or "masked", "seq2seq", "audio"
    new_tokens: int = 8


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **more}


def llama(name: str, family: str = "Llama", **more: Any) -> Case:
    return Case(name, f"{family}ForCausalLM", f"{family}Config", {**SMALL, **more})


_LLAMA3 = {
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
_ENCODER = {k: v for k, v in SMALL.items() if k != "num_key_value_heads"}
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
    "bos_token_id": None,
    "eos_token_id": None,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": None,
}
_WHISPER = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "num_mel_bins": 8,
    "max_source_positions": 12,
    "max_target_positions": 24,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
_GEMMA = {"head_dim": 8, "hidden_activation": "gelu_pytorch_tanh"}

CASES = [
    llama("llama", rope_parameters=rope("llama3", **_LLAMA3)),
    llama("llama-tied", tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    llama("llama-linear", rope_parameters=rope("linear", factor=2.0)),
    llama(
        "llama-dynamic",
        max_position_embeddings=8,
        rope_parameters=rope("dynamic", factor=2.0, original_max_position_embeddings=8),
    ),
    llama(
        "llama-yarn",
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=8),
    ),
    llama("mistral", "Mistral", sliding_window=4, head_dim=8),
    llama("qwen2", "Qwen2", tie_word_embeddings=True),
    llama("qwen3", "Qwen3", head_dim=8),
    llama("gemma", "Gemma", **_GEMMA),
    llama(
        "gemma2",
        "Gemma2",
        **_GEMMA,
        sliding_window=4,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
    ),
    Case(
        "gemma3",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **SMALL,
            **_GEMMA,
            "sliding_window": 4,
            "query_pre_attn_scalar": 8,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    llama("mixtral", "Mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    Case("gpt2", "GPT2LMHeadModel", "GPT2Config", _GPT2),
    Case("bert", "BertForMaskedLM", "BertConfig", _ENCODER | {"pad_token_id": 0}, "masked"),
    Case(
        "roberta",
        "RobertaForMaskedLM",
        "RobertaConfig",
        _ENCODER | {"pad_token_id": 1, "type_vocab_size": 1},
        "masked",
    ),
    Case("t5", "T5ForConditionalGeneration", "T5Config", _T5, "seq2seq"),
    Case(
        "t5-gated",
        "T5ForConditionalGeneration",
        "T5Config",
        _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "seq2seq",
    ),
    Case("whisper", "WhisperForConditionalGeneration", "WhisperConfig", _WHISPER, "audio"),
]


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The values of a parameter, from its name alone."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = rng.random(shape) - 0.5
    if len(shape) == 1:
        norm = name.endswith(".weight")  # vectors that are weights belong to norms
        return (norm + 0.4 * drawn).astype(np.float32)
    return (1.2 * drawn).astype(np.float32)


def tokens(case: Case, length: int = 11, rows: int = 2) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    return rng.integers(2, VOCABULARY, (rows, length))


def audio(case: Case) -> np.ndarray:
    """Log-mel features of two clips: (2, bins, frames)."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()) + 1)
    shape = (2, case.arguments["num_mel_bins"], 2 * case.arguments["max_source_positions"])
    return (rng.random(shape) * 2 - 1).astype(np.float32)


def targets(case: Case, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(case.name.encode()) + 2)
    return rng.integers(2, VOCABULARY, shape)


# the first row of a batch is shorter: these are its tokens that count
SHORT = 7
