"""One call of `Trainer.fit`: its batches, callbacks, files and checkpoints."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from numus.nn.state import prepare, require
from numus.optim.training.callbacks import Callback, TrainerState
from numus.optim.training.records import Records

LAST, BEST = "last.ckpt", "best.ckpt"


class Fit:
    """One call of `fit`: its batches, callbacks and files."""

    def __init__(
        self,
        trainer: TrainerState,
        loader: Iterable[Any],
        callbacks: Sequence[Callback],
        folder: Path | None,
        checkpoint_every: int | None,
    ) -> None:
        if checkpoint_every is not None and (folder is None or checkpoint_every < 1):
            raise ValueError(
                f"Trainer.fit: checkpoint_every is at least 1, not {checkpoint_every}, and needs a "
                "folder"
            )
        self.trainer = trainer
        self.loader = loader
        self.callbacks = list(callbacks)
        self.folder = folder
        self.every = checkpoint_every
        self.done = 0  # batches of the epoch that runs
        self.best = math.inf
        self._skip = 0  # batches that a loader without a state has to give again

    def batches(self) -> Iterator[Any]:
        """The remaining batches of an epoch."""
        skip, self._skip = self._skip, 0
        return itertools.islice(self.loader, skip, None)

    def batches_per_epoch(self) -> int | None:
        """The length of the loader, if it has one."""
        try:
            return len(self.loader)  # type: ignore[arg-type]
        except TypeError:
            return None

    def is_over(self) -> bool:
        """Whether that was the epoch's last batch."""
        return self.done == self.batches_per_epoch()

    def begin(self) -> None:
        if self.folder is not None and self.trainer.strategy.is_first:
            self.trainer.records = Records(self.folder, self.trainer.step)
        for callback in self.callbacks:
            callback.on_fit_begin(self.trainer)

    def after_step(self) -> None:
        for callback in self.callbacks:
            callback.on_step_end(self.trainer)
        if self.every is not None and self.trainer.step % self.every == 0 and not self.is_over():
            self.save(LAST)

    def after_epoch(self, value: float) -> None:
        if self.trainer.records is not None:
            self.trainer.records.add_epoch(self.trainer.history)
        better = value < self.best
        self.best = min(self.best, value)
        if better:
            self.save(BEST)  # first: from the last one, this epoch is not taken again
        self.save(LAST)

    def end(self) -> None:
        for callback in self.callbacks:
            callback.on_fit_end(self.trainer)
        if self.trainer.records is not None:
            self.trainer.records.close()
            self.trainer.records = None

    # -- checkpoints ------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        if self.folder is not None:
            loader = {"loader": self.loader} if hasattr(self.loader, "state_dict") else {}
            self.trainer.save(self.folder / name, fit=self, **loader)

    def resume(self) -> None:
        """Take the folder's last checkpoint, if there is one."""
        if self.folder is None or not self.trainer.strategy.exists(self.folder / LAST):
            return
        loader: Any = self.loader
        stateful = {"loader": loader} if hasattr(loader, "load_state_dict") else {}
        self.trainer.load(self.folder / LAST, fit=self, **stateful)
        self._skip = 0 if stateful else self.done

    def state_dict(self) -> dict[str, Any]:
        callbacks = [c.state_dict() for c in self.callbacks]
        return {"done": self.done, "best": self.best, "callbacks": callbacks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._prepare_state(state_dict)()

    def _prepare_state(self, state_dict: dict[str, Any]) -> Callable[[], None]:
        require(self, state_dict, "done", "best", "callbacks")
        done, best = operator.index(state_dict["done"]), float(state_dict["best"])
        states = state_dict["callbacks"]
        if len(states) != len(self.callbacks):
            raise ValueError(
                f"Trainer.fit: {self.folder}/{LAST} was written with {len(states)} callbacks, not "
                f"{len(self.callbacks)}"
            )
        commits = [prepare(c, state) for c, state in zip(self.callbacks, states, strict=True)]

        def commit() -> None:
            self.done, self.best = done, best
            for change in commits:
                change()

        return commit
