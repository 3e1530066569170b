"""Trainer: the loop's inside, and the average loss of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numus as nm
from numus.optim.gradients import clip_grad_norm_
from numus.optim.optimizer import Optimizer
from numus.tensor import Tensor

__all__ = ["Trainer"]


class Trainer:
    """Takes steps and keeps count of their losses.

    >>> from numus import nn, optim
    >>> model = nn.Linear(2, 1)
    >>> trainer = Trainer(optim.AdamW(model.parameters(), lr=0.01))
    >>> x, y = nm.ones((4, 2)), nm.zeros((4, 1))
    >>> for _ in range(3):
    ...     loss = trainer.train_step(lambda: nn.mse_loss(model(x), y))
    >>> trainer.epoch_avg_loss() > 0
    True

    Args:
        scheduler: stepped after every step of the optimiser.
        max_grad_norm: gradients are scaled down to it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scheduler: Any = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.max_grad_norm = max_grad_norm
        self._total: Tensor | None = None
        self._count = 0

    def train_step(self, compute_loss: Callable[[], Tensor]) -> Tensor:
        """One step from the loss that a function computes; gives the loss back."""
        self.optimizer.zero_grad()
        loss = compute_loss()
        loss.backward()
        if self.max_grad_norm is not None:
            clip_grad_norm_(self.optimizer._parameters(), self.max_grad_norm)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        loss = loss.detach()
        with nm.no_grad():
            # a running sum on the device: nobody waits for a number that is not asked for
            self._total = loss if self._total is None else self._total + loss
        self._count += 1
        return loss

    def epoch_avg_loss(self) -> float:
        """The mean of the losses since the last time this was asked."""
        if self._total is None:
            raise ValueError("epoch_avg_loss: no step was taken since it was asked last")
        mean = self._total.item() / self._count
        self._total, self._count = None, 0
        return mean
