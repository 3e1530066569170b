"""The progress bar of `Trainer.fit`."""

from __future__ import annotations

from typing import Any

from rich import progress
from rich.console import Console

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
        self._progress = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("epoch {task.fields[epoch]}"),
            progress.BarColumn(bar_width=None),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[numbers]}"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self._task: Any = None

    def begin(self, epoch: int, total: int | None, done: int) -> None:
        """An epoch of `total` batches, if that is known."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        shown: dict[str, Any] = {"epoch": f"{epoch}/{self.epochs}", "numbers": ""}
        self._task = self._progress.add_task("", total=total, completed=done, **shown)
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
        line = f"{numbers}  {items:,.0f}/s  {memory}  {seconds:.1f} s"
        self.console.print(line, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """No more bar."""
        self._progress.stop()
