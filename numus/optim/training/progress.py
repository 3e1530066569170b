"""The progress bar of `Trainer.fit`."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_UNITS = ("B", "KB", "MB", "GB", "TB")


def bytes_text(count: float) -> str:
    """A number of bytes in three digits."""
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:
        count /= 1000
        unit += 1
    return f"{count:.3g} {_UNITS[unit]}"


def number_text(x: Any) -> str:
    """A number of a record, to be read."""
    return f"{x:.4g}" if isinstance(x, float) else str(x)


class Bar:
    """One bar for each epoch, and a line when it has ended."""

    def __init__(self, epochs: int, console: Console | None = None) -> None:
        self.console = console or Console()
        self.epochs = epochs
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self._task: Any = None

    def begin(self, epoch: int, total: int | None, done: int) -> None:
        """An epoch of so many batches."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        name = f"{epoch}/{self.epochs}"
        self._task = self._progress.add_task(
            "", total=total, completed=done, epoch=name, numbers=""
        )
        self._progress.start()

    def show(self, done: int, loss: float, rate: float, items_per_s: float, memory: int) -> None:
        """The numbers of now."""
        numbers = f"loss {loss:.4g}  lr {rate:.3g}  {items_per_s:,.0f}/s  {bytes_text(memory)}"
        self._progress.update(self._task, completed=done, numbers=numbers)

    def end(self, record: dict[str, Any]) -> None:
        """An epoch's line."""
        shown = dict(record)
        shown.pop("step")
        memory = bytes_text(shown.pop("memory"))
        seconds, items = shown.pop("seconds"), shown.pop("items_per_s")
        numbers = "  ".join(f"{k} {number_text(v)}" for k, v in shown.items())
        self.console.print(
            f"{numbers}  {items:,.0f}/s  {memory}  {seconds:.1f} s", highlight=False, soft_wrap=True
        )

    def close(self) -> None:
        """No more bar."""
        self._progress.stop()
