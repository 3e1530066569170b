"""Choosing the next token: greedy, or by temperature, top-k, top-p, min-p and repetition penalty.

Draws are Gumbel noise added to scores (Gumbel-max trick), by a key and the number of the token, so
that a seed gives the same text at every call. Filters apply in transformers' order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numus as nm
from numus.tensor import Tensor

__all__ = ["Sampler"]

_NEVER = -1e30


@dataclass(frozen=True)
class Sampler:
    """How tokens are chosen.

    Args:
        temperature: scores are divided by it; 0 takes the likeliest token.
        top_k: only the k likeliest tokens count; 0: all.
        top_p: only the likeliest tokens that together have this probability (Holtzman et al. 2020).
        min_p: only tokens that are at least this fraction as likely as the likeliest.
        repetition_penalty: scores of tokens that were there are divided by it if positive, and
            multiplied if negative (Keskar et al. 2019).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        checks = {
            "temperature": self.temperature >= 0,
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "repetition_penalty": self.repetition_penalty > 0,
        }
        for name, holds in checks.items():
            if not holds:
                raise ValueError(f"generate: {name}={getattr(self, name)} is out of range")

    @property
    def penalizes(self) -> bool:
        return self.repetition_penalty != 1.0

    def penalized(self, scores: Tensor, used: Tensor | None) -> Tensor:
        """Scores (rows, vocabulary), those of tokens that were `used` lowered."""
        if used is None or not self.penalizes:
            return scores
        by = self.repetition_penalty
        return nm.where(used, nm.where(scores > 0, scores / by, scores * by), scores)

    def filtered(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scores over the temperature, of tokens that are left; and their numbers, if sorted."""
        scores = scores / (self.temperature or 1.0)
        vocabulary = scores.shape[-1]
        if not self.top_k and self.top_p == 1.0:
            if self.min_p:
                scores = self._at_least(scores, nm.max(scores, axis=-1, keepdims=True))
            return scores, None
        scores, numbers = nm.topk(scores, min(self.top_k or vocabulary, vocabulary))
        if self.top_p < 1.0:
            chance = nm.softmax(scores, axis=-1)
            before = nm.cumulative_sum(chance, axis=-1) - chance
            scores = nm.where(before < self.top_p, scores, _NEVER)  # the first is always left
        if self.min_p:
            scores = self._at_least(scores, scores[:, :1])
        return scores, numbers

    def _at_least(self, scores: Tensor, best: Tensor) -> Tensor:
        return nm.where(scores >= best + math.log(self.min_p), scores, _NEVER)

    def choose(self, scores: Tensor, key: Tensor, number: Tensor, used: Tensor | None) -> Tensor:
        """The next token of each row, (rows,).

        Args:
            key: of the random draws; `number` counts the tokens that were chosen before.
        """
        scores = self.penalized(scores.astype(nm.float32, copy=False), used)
        if self.temperature == 0:
            return nm.argmax(scores, axis=-1)
        left, numbers = self.filtered(scores)
        own = nm.random.fold_in(key, number)
        noise = nm.random.gumbel(left.shape, key=own, device=left.device)
        best = nm.argmax(left + noise, axis=-1)
        if numbers is None:
            return best
        return nm.take_along_axis(numbers, best[:, None], axis=-1)[:, 0]
