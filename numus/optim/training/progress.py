"""The progress bar of `Trainer.fit`."""

from __future__ import annotations

import time
from typing import Any

from numus.terminal import Line, bar, bytes_text, duration_text, left_text


def number_text(x: Any) -> str:
    """A number of a record, to be read."""
    return f"{x:.4g}" if isinstance(x, float) else str(x)


class Bar:
    """One bar for each epoch, and a line when it has ended."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self._line = Line()
        self._epoch, self._total, self._skipped = 0, 0, 0
        self._began = time.monotonic()

    def begin(self, epoch: int, total: int | None, done: int) -> None:
        """An epoch of `total` batches, if that is known."""
        self._epoch, self._total, self._skipped = epoch, total or 0, done
        self._began = time.monotonic()

    def show(self, done: int, loss: float, rate: float, items_per_s: float, memory: int) -> None:
        """The numbers of now."""
        text = f"epoch {self._epoch}/{self.epochs}  "
        if self._total:
            text += f"{bar(done / self._total)} {done}/{self._total}  "
        else:
            text += f"{done}  "
        text += f"loss {loss:.4g}  lr {rate:.3g}  {items_per_s:,.0f}/s  {bytes_text(memory)}  "
        text += duration_text(time.monotonic() - self._began)
        if self._total > self._skipped:  # the pace is that of the batches since it began
            share = (done - self._skipped) / (self._total - self._skipped)
            text += f"  {left_text(self._began, share)}"
        self._line.show(text)

    def end(self, record: dict[str, Any]) -> None:
        """An epoch's line."""
        shown = dict(record)
        shown.pop("step")
        memory = bytes_text(shown.pop("memory"))
        seconds, items = shown.pop("seconds"), shown.pop("items_per_s")
        numbers = "  ".join(f"{k} {number_text(v)}" for k, v in shown.items())
        self._line.clear()
        print(f"{numbers}  {items:,.0f}/s  {memory}  {seconds:.1f} s")

    def close(self) -> None:
        """No more bar."""
        self._line.clear()
