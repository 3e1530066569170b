"""Where a training runs: in this process alone, or on several ranks (`nm.distributed`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numus as nm
from numus import nn
from numus.optim.gradients import clip_grad_norm_
from numus.optim.optimizer import Optimizer
from numus.tensor import Tensor

__all__ = ["Strategy"]


class Strategy:
    """A training in one process. Those of several ranks are `nm.distributed.strategy("ddp")`,
    `("fsdp")` and `nm.distributed.RayStrategy`.

    >>> from numus import optim
    >>> optim.Strategy().size
    1
    """

    runs_elsewhere = False  # `fit` is that of the strategy

    @property
    def size(self) -> int:
        """The number of processes."""
        return 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes records, and shows a bar."""
        return True

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        """The model to train; the optimiser is given its parameters."""
        return model

    def loader(self, loader: Any) -> Any:
        """What gives this process its part of each batch."""
        return loader

    def mean(self, x: Tensor) -> Tensor:
        """The mean over all processes."""
        return x

    def total(self, values: list[float]) -> list[float]:
        """The sums over all processes."""
        return values

    def clip(self, optimizer: Optimizer, max_norm: float) -> Tensor:
        """Scale gradients down to a norm; gives the norm that they had."""
        return clip_grad_norm_(optimizer._parameters(), max_norm)

    def save(self, path: Path, **parts: Any) -> None:
        """Write a checkpoint."""
        nn.save_checkpoint(path, **parts)

    def load(self, path: Path, **parts: Any) -> dict[str, Any]:
        """Load a checkpoint."""
        return nn.load_checkpoint(path, **parts)

    def exists(self, path: Path) -> bool:
        """Whether there is a checkpoint."""
        return path.exists()

    def fit(self, trainer: Any, loader: Any, epochs: int, options: dict[str, Any]) -> Any:
        """A whole training, where it runs elsewhere."""
        raise TypeError(f"{type(self).__name__} trains in this process")


def strategy_of(given: Any) -> Strategy:
    """The strategy of a name, or itself."""
    if given is None:
        return Strategy()
    if isinstance(given, str):
        found: Strategy = nm.distributed.strategy(given)
        return found
    if not isinstance(given, Strategy):
        raise TypeError(
            f"Trainer: strategy is a name ('ddp', 'fsdp', 'ray') or a Strategy, not a "
            f"{type(given).__name__}"
        )
    return given
