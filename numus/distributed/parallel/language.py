"""Stages of language models: a decoder of `nm.models` cut for a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numus as nm
from numus.errors import DistributedError
from numus.models.language.attention import Pass
from numus.nn.module import Module
from numus.tensor import Tensor

__all__ = ["LanguageStage", "split_language_model"]


def _parts(model: Any) -> tuple[Any, list[Module]]:
    """The body of a decoder, and its blocks."""
    base = getattr(model, "transformer", None) or getattr(model, "model", None)
    blocks = getattr(base, "h", None) or getattr(base, "layers", None)
    if base is None or not isinstance(blocks, list) or not hasattr(model, "lm_head"):
        raise TypeError(
            f"split_language_model: a {type(model).__name__} is no decoder of the kind of GPT-2 or "
            "Llama; give Pipeline its stages as modules"
        )
    return base, blocks


class LanguageStage(Module):
    """Some blocks of a decoder; the first stage has the embeddings, the last one the head.

    Args:
        blocks: their numbers.
        positions: gives the positions of a number of tokens, where they are not 0, 1, 2 …

    >>> from numus import models
    >>> config = models.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2)
    >>> model = models.GPT2LMHeadModel(config)
    >>> stage = nm.distributed.parallel.LanguageStage(model, range(0, 1))
    >>> stage(nm.asarray([[1, 2, 3]])).shape
    (1, 3, 16)
    """

    def __init__(
        self, model: Any, blocks: range, *, positions: Callable[[int], Tensor] | None = None
    ) -> None:
        base, layers = _parts(model)
        self.blocks = {str(i): layers[i] for i in blocks}
        self._positions = positions or nm.arange
        self.embeddings: dict[str, Module] = {}
        self.last: dict[str, Module] = {}
        if blocks.start == 0:
            names = ("wte", "wpe") if hasattr(base, "wte") else ("embed_tokens",)
            self.embeddings = {name: getattr(base, name) for name in names}
        if blocks.stop == len(layers):
            norm = base.ln_f if hasattr(base, "ln_f") else base.norm
            self.last = {"norm": norm, "head": model.lm_head}
        self._rope = getattr(base, "_rope", None)

    def forward(self, x: Any) -> Tensor:
        seen = Pass(self._positions(x.shape[1]).to(x.device)[None])
        if "wte" in self.embeddings:
            x = self.embeddings["wte"](x) + self.embeddings["wpe"](seen.positions)
        elif self.embeddings:
            x = self.embeddings["embed_tokens"](x)
        options: dict[str, Any] = {"seen": seen}
        if self._rope is not None:
            options["angles"] = self._rope(seen.positions, x.dtype)
        for block in self.blocks.values():
            x = block(x, **options)
        if self.last:
            x = self.last["head"](self.last["norm"](x))
        return x


def split_language_model(
    model: Any, stages: int, *, positions: Callable[[int], Tensor] | None = None
) -> list[Module]:
    """A decoder of the kind of GPT-2 or Llama as stages of a `Pipeline`, with as many blocks each,
    or one more. The embedding that is shared with the head stays shared.

    Args:
        positions: gives the positions of a number of tokens, where they are not 0, 1, 2 …: with
            context parallelism, those of this rank's part of the sequence.

    >>> from numus import models
    >>> config = models.GPT2Config(vocab_size=50, n_embd=16, n_layer=3, n_head=2)
    >>> model = models.GPT2LMHeadModel(config)
    >>> [len(s.blocks) for s in nm.distributed.parallel.split_language_model(model, 2)]
    [1, 2]
    """
    count = len(_parts(model)[1])
    if not 1 <= stages <= count:
        raise DistributedError(
            f"split_language_model: {stages} stages of {count} blocks: each needs one at least; "
            "choose a mesh with a shorter axis for the pipeline"
        )
    bounds = [count * s // stages for s in range(stages + 1)]
    return [LanguageStage(model, range(a, b), positions=positions) for a, b in pairwise(bounds)]
