"""Language models in GGUF files: llama.cpp's names and metadata as transformers' ones.

Blocks of few bits stay as they are: linear layers become `nn.QLinear`, embeddings `nn.QEmbedding`.
Llama's queries and keys lie in another order there (adjacent pairs turn together), which is undone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus.errors import RecordError
from numus.models.checkpoint import read_into
from numus.models.language.families import family_of
from numus.quant.gguf import load_gguf
from numus.quant.qtensor import QTensor
from numus.tensor import Tensor

__all__ = ["load_gguf_model"]

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"
ARCHITECTURES = ("llama", "qwen2", "qwen3")


def _renamed(name: str) -> str:
    found = _NAME.fullmatch(name)
    if found is None or found[2] not in _NAMES:
        return name
    layer = "" if found[1] is None else f"model.layers.{found[1]}."
    return f"{layer}{_NAMES[found[2]]}.{found[3]}"


def _config(metadata: dict[str, Any], tensors: dict[str, Any], path: Path) -> dict[str, Any]:
    kind = metadata.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise ValueError(
            f"{path}: an unknown architecture: general.architecture is {kind!r}; there are "
            f"{', '.join(ARCHITECTURES)}"
        )
    fields = {
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "rms_norm_eps": "attention.layer_norm_rms_epsilon",
        "rope_theta": "rope.freq_base",
        "max_position_embeddings": "context_length",
        "sliding_window": "attention.sliding_window",
    }
    given = {new: metadata.get(f"{kind}.{old}") for new, old in fields.items()}
    config: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    required = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    lacking = [f"{kind}.{fields[name]}" for name in required if name not in config]
    if "token_embd.weight" not in tensors:
        lacking.append("token_embd.weight")
    if lacking:
        raise RecordError(f"{path}: has no {', '.join(lacking)}")
    scaling = metadata.get(f"{kind}.rope.scaling.type", "none")
    if scaling not in ("none", "linear", "yarn"):
        raise ValueError(f"{path}: rope.scaling.type {scaling!r} is not none, linear or yarn")
    if scaling != "none":
        start = f"{kind}.rope.scaling."
        trained = metadata.get(start + "original_context_length", config["max_position_embeddings"])
        config["rope_scaling"] = {
            "rope_type": scaling,
            "factor": metadata.get(start + "factor", 1.0),
            "original_max_position_embeddings": trained,
        }
    config["vocab_size"] = tensors["token_embd.weight"].shape[0]
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["attention_bias"] = kind == "llama" and "blk.0.attn_q.bias" in tensors
    return {"model_type": kind, **config}


def _halves_first(x: Tensor | QTensor, heads: int) -> Tensor | QTensor:
    """Rows of a projection with the halves of each head one after the other."""
    rows = np.arange(x.shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    order = nm.asarray(rows)
    if isinstance(x, QTensor):
        parts = tuple(nm.take(part, order, axis=0) for part in x.parts)
        return QTensor(x.format, x.stored_shape, parts, x.dtype, x.axis)
    return nm.take(x, order, axis=0)


def load_gguf_model(path: Path, **options: Any) -> Any:
    """The model of a GGUF file; see `nm.models.load`."""
    tensors, metadata = load_gguf(path)
    config = _config(metadata, tensors, path)
    factors = tensors.pop(_ROPE_FACTORS, None)
    if config["model_type"] == "llama":
        own = config["num_attention_heads"]
        heads = {"attn_q": own, "attn_k": config.get("num_key_value_heads", own)}
        for name in tensors:
            found = _NAME.fullmatch(name)
            if found is not None and found[2] in heads:
                tensors[name] = _halves_first(tensors[name], heads[found[2]])
    make_config, make_model = family_of(config, str(path)).load()
    generator = nm.random.get_state()
    model = make_model(make_config.from_dict(config))
    nm.random.set_state(generator)
    renamed = {_renamed(name): x for name, x in tensors.items()}
    read_into(model, renamed, str(path), shape=lambda name: renamed[name].shape, **options)
    if isinstance(factors, Tensor):  # Llama 3.1's scaling, worked out for each pair
        model.model._rope.rates = model.model._rope.rates / np.asarray(factors, np.float32)
    return model.eval()
