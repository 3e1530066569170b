"""Callbacks of `Trainer.fit`, to be extended by users."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

from numus.nn.state import require
from numus.optim.training.records import Record, Records
from numus.optim.training.strategies import Strategy

__all__ = ["Callback", "EarlyStopping"]


class TrainerState(Protocol):
    """A training under way: its counters and history, and what can be asked of it."""

    step: int
    epoch: int
    history: list[Record]
    records: Records | None  # files that the history is written to
    strategy: Strategy

    def stop(self) -> None: ...

    def save(self, path: str | Path, **more: Any) -> None: ...

    def load(self, path: str | Path, **more: Any) -> dict[str, Any]: ...


class Callback:
    """Called by `Trainer.fit`; define what you need. `trainer.stop()` ends the training.

    >>> from numus import optim
    >>> class Printer(optim.Callback):
    ...     def on_epoch_end(self, trainer, record):
    ...         print(record["epoch"], record["loss"])
    """

    def on_fit_begin(self, trainer: TrainerState) -> None:
        """Before the first step, after a checkpoint was loaded."""

    def on_epoch_begin(self, trainer: TrainerState) -> None:
        """Before the first step of an epoch."""

    def on_step_end(self, trainer: TrainerState) -> None:
        """After a step: `trainer.step` counts them."""

    def on_epoch_end(self, trainer: TrainerState, record: dict[str, Any]) -> None:
        """After an epoch and its validation: what was measured, which may be added to."""

    def on_fit_end(self, trainer: TrainerState) -> None:
        """After the last epoch, also when the training was stopped."""

    def state_dict(self) -> dict[str, Any]:
        """What has to be in a checkpoint."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` gave."""


class EarlyStopping(Callback):
    """Ends a training that no longer gets better.

    Args:
        monitor: which number of an epoch's record to look at; the validation's loss where there is
            a validation, else the training's.
        patience: how many epochs without improvement to bear.
        min_delta: what counts as an improvement.
        mode: "min" or "max".
    """

    def __init__(
        self,
        monitor: str | None = None,
        patience: int = 3,
        min_delta: float = 0.0,
        mode: str = "min",
    ) -> None:
        if mode not in ("min", "max") or patience < 1:
            raise ValueError(
                f"EarlyStopping: mode {mode!r} is min or max, patience {patience} at least 1"
            )
        self.monitor = monitor
        self.patience = patience
        self.min_delta = min_delta
        self.sign = 1 if mode == "min" else -1
        self.best = math.inf
        self.waited = 0

    def on_epoch_end(self, trainer: TrainerState, record: dict[str, Any]) -> None:
        value = self.sign * monitored(record, self.monitor)
        if value < self.best - self.min_delta:
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            trainer.stop()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        require(self, state_dict, "best", "waited")
        self.best, self.waited = state_dict["best"], state_dict["waited"]


def monitored(record: dict[str, Any], name: str | None) -> float:
    """A number of an epoch's record."""
    name = name or ("val_loss" if "val_loss" in record else "loss")
    if name not in record:
        raise KeyError(f"an epoch has no {name!r}; it has {', '.join(record)}")
    return float(record[name])
