"""The part of a `Trainer` that callbacks and `Fit` use."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from numus.optim.training.records import Record, Records


class TrainerState(Protocol):
    """A training under way: its counters and history, and what can be asked of it."""

    step: int
    epoch: int
    history: list[Record]
    records: Records | None  # files that the history is written to

    def stop(self) -> None: ...

    def save(self, path: str | Path, **more: Any) -> None: ...

    def load(self, path: str | Path, **more: Any) -> dict[str, Any]: ...
