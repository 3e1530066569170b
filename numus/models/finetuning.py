"""Fine-tuning of language models: a text in, adapters of low rank or all weights trained.

The adapters are LoRA's (Hu et al. 2022); on weights of few bits it is QLoRA (Dettmers et al. 2023).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import numus as nm
from numus import nn, optim
from numus.errors import ShapeError
from numus.models.language.base import CausalLM
from numus.models.language.blocks import Conv1D
from numus.tensor import Tensor

__all__ = ["finetune", "layerwise_rates", "lora_", "merge_lora_"]


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
    linear = (nn.Linear, nn.QLinear, Conv1D)
    names = {n for n, m in model.named_modules() if isinstance(m, linear)}
    inner = {n for n in names if n.rpartition(".")[2] not in ("lm_head", "proj_out", "decoder")}
    if not inner:
        raise ValueError(
            f"lora_: {type(model).__name__} has no linear layers in its blocks; train all of it"
        )
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Conv1D):
            model.set_submodule(name, layer.as_linear())
    nn.add_lora_(model, rank, alpha, format, filter=lambda name, layer: name in inner)
    return model


def merge_lora_(model: Any) -> Any:
    """Add adapters to the weights they adapt: plain linear layers again, in the model's form."""
    transposed = getattr(model, "conv1d_layers", ())
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.LoRALinear):
            merged = layer.merge().to(device=layer.a.device, dtype=layer.base.weight.dtype)
            stored = name.rpartition(".")[2] in transposed
            model.set_submodule(name, Conv1D.of(merged) if stored else merged)
    return model.requires_grad_(True)


_BLOCK = re.compile(r"^(.*?\.)?(\w*_)?\d+(?=\.)")  # layers.3, encoder_layer_3, layer1.0


def layerwise_rates(model: nn.Module, rate: float, decay: float) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser: the head learns at `rate`, each block before it at `decay`
    times the rate of the next, and what comes before all blocks at the least (ELECTRA, BEiT).

    Blocks are the numbered parts of a model, in the order of its parameters; what comes after the
    last of them learns at the full rate. Parameters that are fixed are left out.

    >>> from numus import nn
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    >>> [group["lr"] for group in nm.models.layerwise_rates(model, 1.0, 0.5)]
    [0.5, 1.0]
    """
    if not 0.0 < decay <= 1.0:
        raise ValueError(f"layerwise_rates: decay={decay} must be a share above 0")
    names = [name for name, _ in model.named_parameters()]
    found = [match and match[0] for match in map(_BLOCK.match, names)]
    blocks = list(dict.fromkeys(block for block in found if block))
    last = max((i for i, block in enumerate(found) if block), default=-1)
    by_depth: dict[int, list[Tensor]] = {}
    depth = 0
    for i, (_, p) in enumerate(model.named_parameters()):
        block = found[i]
        if block:
            depth = 1 + blocks.index(block)
        elif i > last:
            depth = 1 + len(blocks)
        if p.requires_grad:
            by_depth.setdefault(depth, []).append(p)
    top = max(by_depth, default=0)
    return [
        {"params": params, "lr": rate * decay ** (top - depth)}
        for depth, params in sorted(by_depth.items())
    ]


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
    layer_decay: float = 1.0,
    ema: float | None = None,
    seed: int = 0,
    report: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train what a model lets be trained on random windows of a text; gives the losses.

    Args:
        tokens: ids of the text.
        batch, length: windows of a step, and tokens of a window.
        layer_decay: the rate of a block relative to that of the next: see `layerwise_rates`.
        ema: the decay of an exponential moving average, which the model gets at the end.
        report: called with the number of each step and its loss.
    """
    text = np.asarray(tokens, np.int64)
    if text.ndim != 1 or len(text) <= length:
        raise ShapeError(f"finetune: a text of {text.shape} tokens has no window of {length + 1}")
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = layerwise_rates(model, rate, layer_decay)
    optimizer = optim.AdamW(groups, lr=rate, weight_decay=0.0)
    average = None if ema is None else optim.EMA(model, ema, trainable_only=True)

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
        if average is not None:
            average.update()
        if report is not None:
            report(number, losses[-1])
    optimizer.zero_grad()
    if average is not None:
        average.copy_to(model)
    model.eval()
    return losses
