"""Gradients between `backward()` and a step: held within bounds, gathered over several batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from numus.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm
from numus.optim.optimizer import Optimizer

__all__ = ["GradientAccumulator", "clip_grad_norm_", "clip_grad_value_", "get_total_norm"]


class GradientAccumulator:
    """One step for the gradients of several batches, as if they had been one.

    >>> from numus import nn, optim
    >>> model = nn.Linear(2, 1)
    >>> gather = optim.GradientAccumulator(optim.SGD(model.parameters(), lr=0.1), every=2)
    >>> for batch in nm.ones((4, 3, 2)):
    ...     with gather.batch() as scale:
    ...         (model(batch).square().mean() * scale).backward()
    >>> gather.steps
    2
    """

    def __init__(self, optimizer: Optimizer, every: int) -> None:
        if every < 1:
            raise ValueError(f"GradientAccumulator: gathers at least one batch, not {every}")
        self.optimizer = optimizer
        self.every = every
        self.batches = 0
        self.steps = 0

    @contextmanager
    def batch(self) -> Iterator[float]:
        """One batch: gives what to scale its loss by; every so often, ends with a step."""
        yield 1.0 / self.every
        self.batches += 1
        if self.batches % self.every == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1
