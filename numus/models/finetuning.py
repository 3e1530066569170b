"""Fine-tuning of language models: a text in, adapters of low rank or all weights trained.

The adapters are LoRA's (Hu et al. 2022); on weights of few bits it is QLoRA (Dettmers et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import numus as nm
from numus import nn, optim
from numus.errors import ShapeError
from numus.models.language.base import CausalLM
from numus.tensor import Tensor

__all__ = ["finetune", "lora_", "merge_lora_"]


def lora_(model: Any, rank: int = 8, alpha: float = 16.0, format: Any = None) -> Any:
    """Adapt the linear layers of a language model's blocks, all else fixed; gives back the model.

    >>> config = {"model_type": "llama", "vocab_size": 20, "hidden_size": 16}
    >>> sizes = {"intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = nm.models.lora_(nm.models.from_config(config, **sizes), rank=2)
    >>> model.num_parameters(trainable_only=True)
    544

    Args:
        rank, alpha: of the adapters, whose products count `alpha / rank`.
        format: that weights are rounded to (QLoRA), as "nf4-g64"; None keeps them.
    """
    names = {n for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.QLinear)}
    inner = {n for n in names if n.rpartition(".")[2] not in ("lm_head", "proj_out", "decoder")}
    if not inner:
        raise ValueError(
            f"lora_: {type(model).__name__} has no linear layers in its blocks; train all of it"
        )
    nn.add_lora_(model, rank, alpha, format, filter=lambda name, layer: name in inner)
    return model


def merge_lora_(model: Any) -> Any:
    """Add adapters to the weights they adapt: plain linear layers again."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.LoRALinear):
            merged = layer.merge()
            device, dtype = layer.a.device, layer.base.weight.dtype
            model.set_submodule(name, merged.to(device=device, dtype=dtype))
    return model.requires_grad_(True)


def _loss(model: CausalLM, tokens: Tensor) -> Tensor:
    scores = model(tokens[:, :-1])
    scores = scores.reshape(-1, scores.shape[-1]).astype(nm.float32)
    return nn.cross_entropy(scores, tokens[:, 1:].reshape(-1))


def finetune(
    model: CausalLM,
    tokens: Sequence[int],
    *,
    steps: int = 100,
    batch: int = 4,
    length: int = 128,
    rate: float = 1e-4,
    seed: int = 0,
    report: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train what a model lets be trained on random windows of a text; gives the losses.

    Args:
        tokens: ids of the text.
        batch, length: windows of a step, and tokens of a window.
        report: called with the number of each step and its loss.
    """
    text = np.asarray(tokens, np.int64)
    if text.ndim != 1 or len(text) <= length:
        raise ShapeError(f"finetune: a text of {text.shape} tokens has no window of {length + 1}")
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = optim.AdamW(trained, lr=rate, weight_decay=0.0)

    @nm.jit
    def step(rows: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = _loss(model, rows)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        return loss

    rng, losses = np.random.default_rng(seed), []
    model.train()
    for number in range(steps):
        starts = rng.integers(0, len(text) - length, batch)
        rows = np.stack([text[at : at + length + 1] for at in starts])
        losses.append(step(nm.asarray(rows, device=model.device)).item())
        if report is not None:
            report(number, losses[-1])
    optimizer.zero_grad()
    model.eval()
    return losses
