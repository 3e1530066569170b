"""The files of a training: CSV, JSON lines, TensorBoard's events, and a picture."""

from __future__ import annotations

import csv
import json
import math
import time
from pathlib import Path
from typing import Any, TextIO

from numus.png import curves, write_png

Record = dict[str, Any]


class Records:
    """The files of a training's folder.

    `steps.jsonl` has a line for every logged step, `epochs.csv` a row for every epoch,
    `curves.png` shows both. Events for TensorBoard are written where it is installed.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """Go on from a step: what was written of later ones, before an interruption, is dropped."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.steps = [r for r in _read_lines(folder / "steps.jsonl") if r["step"] <= step]
        lines = "".join(json.dumps(r) + "\n" for r in self.steps)
        (folder / "steps.jsonl").write_text(lines)
        self._lines: TextIO = open(folder / "steps.jsonl", "a")  # noqa: SIM115
        self._events = _events(folder)

    def add_step(self, record: Record) -> None:
        """A step's numbers."""
        self.steps.append(record)
        self._lines.write(json.dumps(record) + "\n")
        self._send(record, record["step"])

    def add_epoch(self, history: list[Record]) -> None:
        """The last epoch's numbers; its files are written so that they can be looked at."""
        self._lines.flush()
        names = list(dict.fromkeys(name for record in history for name in record))
        with open(self.folder / "epochs.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(history)
        self._send({f"epoch/{k}": v for k, v in history[-1].items()}, history[-1]["step"])
        write_png(self.folder / "curves.png", picture(self.steps, history))

    def _send(self, record: Record, step: int) -> None:
        if self._events is not None:
            self._events(record, step)

    def close(self) -> None:
        """Write what is left."""
        self._lines.close()
        if self._events is not None:
            self._events(None, 0)


def _read_lines(path: Path) -> list[Record]:
    """The lines of a file that are whole: the last may have been interrupted."""
    found: list[Record] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


_NO_CURVES = ("epoch", "step", "seconds", "items_per_s", "memory")


def picture(steps: list[Record], history: list[Record]) -> Any:
    """Curves: losses together, then each metric with its validation, then the rate."""
    panels: dict[str, dict[str, Any]] = {"loss": {}}
    panels["loss"]["training"] = [(r["step"], r["loss"]) for r in steps]
    for name in dict.fromkeys(k for record in history for k in record):
        if name in _NO_CURVES or name == "loss":
            continue
        points = [(r["step"], r[name]) for r in history if name in r]
        title = name.removeprefix("val_")
        panels.setdefault(title, {})["validation" if name != title else "training"] = points
    every = [y for line in panels["loss"].values() for _, y in line]
    logarithmic = ["loss"] if every and min(every) > 0 and max(every) > 10 * min(every) else []
    return curves(panels, logarithmic=logarithmic)


def _events(folder: Path) -> Any:
    """A function that writes numbers for TensorBoard; None where that is not installed."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        return None
    writer = EventFileWriter(str(folder / "tensorboard"))

    def write(record: Record | None, step: int) -> None:
        if record is None:
            return writer.close()
        values = [
            Summary.Value(tag=name, simple_value=float(x))
            for name, x in record.items()
            if isinstance(x, (int, float)) and math.isfinite(x)
        ]
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    return write
